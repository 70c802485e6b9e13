"""What ``slotool profile`` says of a plan and of a finished campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.cli.output import Output, duration, table
from slotool.errors import RunError
from slotool.profiling.plan import Plan, Settings, predicted_seconds
from slotool.tables import LatencyTable

# Other processes may take this much of the machine before a person should hear of it.
BUSY_CORES = 0.2
MAX_REASONS = 20
MAX_SHOWN = 60


def report_plan(output: Output, plan: Plan, settings: Settings, out: Path, budget_s: float | None) -> None:
    """Say what would be measured and how long that may take."""
    limit = settings.memory_limit_bytes
    too_big = sum(item.memory_bytes > limit for item in plan.todo)
    predicted_s = predicted_seconds(plan.todo, settings)
    places = settings.cores_of(max(len(item.members) for item in plan.items))
    document = {
        **settings.configuration(),
        "output": str(out),
        "to_measure": len(plan.todo) - too_big,
        "to_skip": too_big,
        "finished": plan.resumed,
        "memory_limit_bytes": limit,
        "affinity": places,
        "predicted_seconds": predicted_s,
        "budget_s": budget_s,
    }
    cores = " and ".join(sorted({", ".join(map(str, cores)) for cores in places}))
    rows = [
        ["measurements to make", f"{document['to_measure']:,}"],
        [f"to skip, over {limit / 2**30:.1f} GiB", f"{too_big:,}"],
        ["finished already", f"{plan.resumed:,}"],
        ["batch sizes", ", ".join(map(str, settings.batch_sizes))],
        ["threads", f"{settings.threads}, on core {cores}"],
        ["predicted time (rough)", _time(predicted_s)],
    ]
    if budget_s is not None:
        rows.append(["budget", _time(budget_s)])
    output.result(
        f"profile-{settings.kind}-plan", document, table("Plan; nothing was measured", ["what", "how much"], rows)
    )


def report(
    output: Output, latency: LatencyTable, settings: Settings, out: Path, titles: Mapping[str, str] | None = None
) -> int:
    """Say what was found; returns how many rows are not stable. ``titles``: what a person calls the subjects that have
    another name. Raises ``RunError`` when there is no row with samples."""
    titles = titles or {}
    found = _summary(latency, titles)
    document = {"output": str(out), **settings.configuration(), **found}
    shown: list[Any] = [_counts(found, settings)]
    if found["degradation"]:
        shown.append(_degradation_table(found["degradation"], titles))
    elif found["points"]:
        shown.append(_points_table(found["points"]))
    ending = f"wrote {out}" if found["measured"] else f"nothing was left to measure; {out} is complete"
    output.result(f"profile-{settings.kind}", document, *shown, *_remarks(found, settings), ending)
    if not found["ok_rows"]:
        raise RunError(f"none of the {len(latency)} rows could be measured; {found['reasons'][0]}")
    return int(found["unstable"])


def _counts(found: dict[str, Any], settings: Settings) -> Any:
    rows = [
        ["measurements made now", f"{found['measured']:,}"],
        ["finished before", f"{found['resumed']:,}"],
        ["skipped: too big", f"{found['skipped']:,}"],
        ["failed", f"{found['failed']:,}"],
        ["timeout", f"{found['timeout']:,}"],
        [f"unstable, beyond ± {100 * settings.rule.precision:g}%", f"{found['unstable']:,}"],
    ]
    if found["left"]:
        rows.append(["left over", f"{found['left']:,}"])
    if found["measured"]:
        rows += [
            ["samples measured again", f"{found['discarded']:,}"],
            ["seconds", f"{found['seconds']:.1f}"],
            ["rows per second", f"{found['rows_per_second']:.1f}"],
        ]
    if found["latency_s"]:
        low, middle, high = found["latency_s"]
        rows.append(["lowest … middle … highest", f"{duration(low)} … {duration(middle)} … {duration(high)}"])
    return table(f"Profiled on {_threads(settings)}", ["rows", "count"], rows)


def _degradation_table(rows: list[dict[str, Any]], titles: Mapping[str, str]) -> Any:
    cells = [
        [
            titles.get(row["subject"], row["subject"])
            if row["point"] == "full"
            else f"{row['subject']}@{row['point']}",
            " + ".join(titles.get(name, name) for name in row["co_runners"].split("+")) or "–",
            row["batch_size"],
            duration(row["solo_s"]),
            duration(row["median_s"]),
            f"× {row['degradation_ratio']:.2f}",
            f"± {row['half_width']:.1%}",
        ]
        for row in rows[:MAX_SHOWN]
    ]
    title = "Degradation" if len(rows) <= MAX_SHOWN else f"Degradation, the first {MAX_SHOWN} of {len(rows):,} rows"
    return table(title, ["model", "co-runners", "batch", "solo", "co-located", "ratio", "95 % interval"], cells)


def _points_table(rows: list[dict[str, Any]]) -> Any:
    cells = [
        [p["subject"], p["point"], p["batch_size"], duration(p["median_s"]), f"± {p['half_width']:.1%}", p["n"]]
        for p in rows
    ]
    return table("Operating points", ["model", "point", "batch", "median", "95 % interval", "samples"], cells)


def _summary(latency: LatencyTable, titles: Mapping[str, str]) -> dict[str, Any]:
    """What the closing tables say; statuses count all rows of the table, ``measured`` and seconds this run's."""
    run, rows, statistics = latency.provenance["campaign"], latency.rows, latency.statistics()
    half_width = (statistics["high_s"] - statistics["low_s"]) / 2 / statistics["median_s"]
    statistics = statistics.assign(half_width=half_width)
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    status = rows["status"].value_counts()
    reasons = rows.loc[rows["status"] != "ok", ["subject", "status", "reason"]].drop_duplicates()
    medians = statistics["median_s"]
    shown = ["subject", "point", "batch_size", "co_runners", "median_s", "low_s", "high_s", "half_width", "n"]
    degradation = []
    if "degradation_ratio" in ok:
        solo = ok["solo_s"].map(_median)
        colocated = statistics[shown].assign(solo_s=solo, degradation_s=ok["degradation_s"])
        degradation = colocated.assign(degradation_ratio=ok["degradation_ratio"]).to_dict("records")
    points = statistics[statistics["backend"] == "elastic"].sort_values(["subject", "batch_size", "median_s"])
    return {
        **run,
        "rows_per_second": run["measured"] / run["seconds"] if run["measured"] else 0.0,
        **{name: int(status.get(name, 0)) for name in ("skipped", "failed", "timeout")},
        "ok_rows": len(ok),
        "unstable": int((~ok["stable"].astype(bool)).sum()),
        "interrupted": int(ok["interrupted"].sum()),
        "discarded": int(ok["discarded"].sum()),
        "latency_s": [medians.min(), medians.median(), medians.max()] if len(medians) else [],
        "points": points[shown].to_dict("records"),
        "degradation": degradation,
        "reasons": [
            f"{titles.get(subject, subject)}: {how}, {why}" for subject, how, why in reasons.itertuples(index=False)
        ][:MAX_REASONS],
    }


def _median(samples: Any) -> float:
    import numpy as np

    return float(np.median(samples))


def _remarks(found: dict[str, Any], settings: Settings) -> list[str]:
    remarks: list[str] = found["reasons"][:3]
    without = found["skipped"] + found["failed"] + found["timeout"]
    if without > len(remarks):
        remarks.append(f"… and {without - len(remarks)} more rows without samples; the table's reason column has them")
    others = found["cores_busy_with_others"]
    if found["measured"] and others > BUSY_CORES:
        remarks.append(
            f"advice: other processes kept {others:.1f} cores busy meanwhile, which these latencies show; "
            "measure on an idle machine, or with fewer --threads than cores"
        )
    elif found["interrupted"]:
        remarks.append(f"advice: {found['interrupted']} rows hold samples that other processes interrupted")
    if found["unstable"]:
        within = f"± {100 * settings.rule.precision:g}%"
        if settings.rounds == 1:
            remarks.append(f"advice: one round cannot show that medians repeat to {within}; use --rounds 2 or more")
        else:
            remarks.append(
                f"advice: in {found['unstable']} rows the samples or the rounds differ by more than {within}; "
                "the same command with --budget 5m measures them again; use an idle machine"
            )
    if found["left"]:
        remarks.append("the budget is spent; the same command goes on with what is left over")
    return remarks


def _threads(settings: Settings) -> str:
    return "1 thread" if settings.threads == 1 else f"{settings.threads} threads"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
