"""``slotool profile``: latencies measured on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed, Threads, cores_given, parse_numbers

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.profiling.plan import Plan, Settings
    from slotool.profiling.subjects import Subject
    from slotool.tables import LatencyTable

# Other processes may take this much of the machine before a person should hear of it.
BUSY_CORES = 0.2


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Measure latency on this machine.")
    group.command("solo")(profile_solo)
    # A group of one command must not swallow its name.
    group.callback()(lambda: None)
    app.add_typer(group, name="profile")


def profile_solo(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="GRAPHS_OR_ARTIFACT...", help="Graph files, and folders of trained models."),
    ],
    out: Out,
    backend: Annotated[
        str, typer.Option("--backend", help="What runs graphs: torch or keras. A trained model runs as it is served.")
    ] = "torch",
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda:0 (graphs on torch only).")] = "cpu",
    threads: Threads = None,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes: 1,8 or 1:8:1.")] = "1",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Fewest samples per row.")] = 20,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many subjects.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds after which an item has hung.")] = 60.0,
    max_seconds: Annotated[
        float,
        typer.Option("--max-seconds-per-item", min=0.0, help="Sampling stops here even if the median is unsure."),
    ] = 0.5,
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and a predicted time.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure graphs and trained models, each alone, and write the latency table.

    A fresh process with threads and cores set does the measuring. Run the same command again to resume one that was
    interrupted, or to add new subjects; nothing is measured twice.

    Example: slotool profile solo mlps.parquet -o latency.parquet --threads 1 --limit 100

    Example: slotool profile solo family -o family-latency.parquet --batch 1,8
    """
    from itertools import islice

    from slotool.cli.output import Output
    from slotool.profiling.campaign import plan_only
    from slotool.profiling.plan import Settings
    from slotool.profiling.subjects import read_subjects
    from slotool.profiling.timer import StoppingRule

    settings = Settings(
        backend=backend,
        device=device,
        threads=cores_given(threads),
        batch_sizes=_batch_sizes(batch),
        rule=StoppingRule(runs=runs, max_seconds=max_seconds),
        timeout_s=timeout,
        seed=seed,
    )
    output = Output(as_json=json)
    subjects = islice(read_subjects(inputs), limit)
    if dry_run:
        _report_plan(output, plan_only(subjects, settings, out, force), settings, out)
    else:
        _report(output, _measure(output, subjects, settings, out, force), settings, out)


def _measure(output: Output, subjects: Iterable[Subject], settings: Settings, out: Path, force: bool) -> LatencyTable:
    from slotool.profiling.campaign import SoloCampaign

    with SoloCampaign(subjects, settings, out, force=force) as campaign:
        todo, resumed = len(campaign.plan.todo), campaign.plan.resumed
        if resumed and todo:
            output.note(f"resuming: {resumed} rows are finished, {todo} are left")
        try:
            with output.progress(f"profiling on {_threads(settings)}", total=todo) as progress:
                return campaign.run(progress.advance)
        except KeyboardInterrupt:
            output.note(f"interrupted; finished rows are in {out}.journal, the same command again resumes")
            raise


def _batch_sizes(text: str) -> tuple[int, ...]:
    sizes = parse_numbers(text, "--batch")
    if any(size < 1 or size != int(size) for size in sizes):
        raise typer.BadParameter(f"{text!r}: a batch size is a whole number from 1 up", param_hint="--batch")
    return tuple(sorted({int(size) for size in sizes}))


def _report_plan(output: Output, plan: Plan, settings: Settings, out: Path) -> None:
    from slotool.cli.output import table
    from slotool.profiling.plan import predicted_seconds

    limit = settings.memory_limit_bytes
    too_big = sum(item.subject.memory_bytes(item.batch_size) > limit for item in plan.todo)
    predicted_s = predicted_seconds(plan.todo, settings)
    document = {
        **settings.configuration(),
        "output": str(out),
        "to_measure": len(plan.todo) - too_big,
        "to_skip": too_big,
        "finished": plan.resumed,
        "memory_limit_bytes": limit,
        "affinity": settings.affinity(),
        "predicted_seconds": predicted_s,
    }
    rows = [
        ["rows to measure", f"{document['to_measure']:,}"],
        [f"rows to skip, over {limit / 2**30:.1f} GiB", f"{too_big:,}"],
        ["rows finished already", f"{plan.resumed:,}"],
        ["batch sizes", ", ".join(map(str, settings.batch_sizes))],
        ["threads", f"{settings.threads}, on core {', '.join(map(str, settings.affinity()))}"],
        ["predicted time (rough)", _time(predicted_s)],
    ]
    output.result("profile-solo-plan", document, table("Plan; nothing was measured", ["what", "how much"], rows))


def _report(output: Output, latency: LatencyTable, settings: Settings, out: Path) -> None:
    from slotool.cli.output import duration, table

    found = _summary(latency, settings)
    document = {"output": str(out), **settings.configuration(), **found}
    rows = [
        ["measured now", f"{found['measured']:,}"],
        ["finished before", f"{found['resumed']:,}"],
        ["skipped: too big", f"{found['skipped']:,}"],
        ["failed", f"{found['failed']:,}"],
        ["timeout", f"{found['timeout']:,}"],
        [f"unstable, beyond ± {settings.rule.precision:.0%}", f"{found['unstable']:,}"],
    ]
    if found["measured"]:
        rows += [
            ["seconds", f"{found['seconds']:.1f}"],
            ["rows per second", f"{found['rows_per_second']:.1f}"],
        ]
    if found["latency_s"]:
        low, middle, high = found["latency_s"]
        rows.append(["median latency", f"{duration(low)} … {duration(middle)} … {duration(high)}"])
    shown: list[Any] = [table(f"Profiled on {_threads(settings)}", ["rows", "count"], rows)]
    if found["points"]:
        cells = [
            [p["subject"], p["point"], p["batch_size"], duration(p["median_s"]), f"± {p['half_width']:.1%}", p["n"]]
            for p in found["points"]
        ]
        columns = ["model", "point", "batch", "median", "95 % interval", "samples"]
        shown.append(table("Operating points", columns, cells))
    ending = f"wrote {out}" if found["measured"] else f"nothing was left to measure; {out} is complete"
    output.result("profile-solo", document, *shown, *_remarks(found, settings), ending)
    if not found["ok_rows"]:
        from slotool.errors import RunError

        raise RunError(f"none of the {len(latency)} rows could be measured; {found['reasons'][0]}")


def _summary(latency: LatencyTable, settings: Settings) -> dict[str, Any]:
    """What the closing table says; statuses count all rows of the table, ``measured`` and seconds this run's."""
    from slotool.profiling.timer import is_stable

    run, rows, statistics = latency.provenance["campaign"], latency.rows, latency.statistics()
    half_width = (statistics["high_s"] - statistics["low_s"]) / 2 / statistics["median_s"]
    statistics = statistics.assign(half_width=half_width)
    status = rows["status"].value_counts()
    reasons = rows.loc[rows["status"] != "ok", ["subject", "status", "reason"]]
    medians = statistics["median_s"]
    samples = rows.loc[rows["status"] == "ok", "samples_s"]
    shown = ["subject", "point", "batch_size", "median_s", "low_s", "high_s", "half_width", "n"]
    points = statistics[statistics["backend"] == "elastic"].sort_values(["subject", "batch_size", "median_s"])
    return {
        **run,
        "rows_per_second": run["measured"] / run["seconds"] if run["measured"] else 0.0,
        **{name: int(status.get(name, 0)) for name in ("skipped", "failed", "timeout")},
        "ok_rows": int(status.get("ok", 0)),
        "unstable": sum(not is_stable(values, settings.rule.precision) for values in samples),
        "latency_s": [medians.min(), medians.median(), medians.max()] if len(medians) else [],
        "points": points[shown].to_dict("records"),
        "reasons": [f"{subject}: {how}, {why}" for subject, how, why in reasons.itertuples(index=False)][:20],
    }


def _remarks(found: dict[str, Any], settings: Settings) -> list[str]:
    remarks: list[str] = found["reasons"][:3]
    without = found["skipped"] + found["failed"] + found["timeout"]
    if without > len(remarks):
        remarks.append(f"… and {without - len(remarks)} more rows without samples; the table's reason column has them")
    others = found["cores_busy_with_others"]
    if found["measured"] and others > BUSY_CORES:
        remarks.append(
            f"advice: other processes kept {others:.1f} cores busy meanwhile, which these latencies show; "
            "measure on a quiet machine, or with fewer --threads than cores"
        )
    if found["unstable"]:
        remarks.append(
            f"advice: {found['unstable']} medians are not yet sure to ± {settings.rule.precision:.0%}; measure again "
            f"on a quiet machine or with --max-seconds-per-item above {settings.rule.max_seconds:g}, and --force"
        )
    return remarks


def _threads(settings: Settings) -> str:
    return "1 thread" if settings.threads == 1 else f"{settings.threads} threads"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
