"""Deadlines met and accuracy of LCAO, solo and co-located with busy copies on the same core."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slotool.reports.figure import Axis, Curve, Figure, Limit, Rows, Unit, duration, percent, share_axis
from slotool.workloads.interference import ACLO, FULL_NETWORK, LCAO, LEAST, InterferenceTable

# Palette slots: solo and co-located, as in the paper's Fig. 6; the full network; the cheapest point.
COLOURS = (0, 1, 2, 3, 4)
FULL_COLOUR, MIN_COLOUR = 5, 7


def colocation_figures(name: str, table: InterferenceTable, source: str) -> Iterator[Figure]:
    """Accuracy against latency (slo-aware-neural-networks, Fig. 6), deadlines met, and ACLO's speed-up (Fig. 5)."""
    if len(table.deadlines_s):
        yield _accuracy_against_latency(name, table, source)
        yield _deadline_attainment(name, table, source)
    if any(table.answers(ACLO, co_runners) for co_runners in table.co_runner_counts):
        yield _accuracy_against_speedup(name, table, source)


def co_located(co_runners: int) -> str:
    """Words for a number of copies."""
    return "solo" if not co_runners else f"with {co_runners} co-runner{'s' * (co_runners > 1)}"


def _accuracy_against_latency(name: str, table: InterferenceTable, source: str) -> Figure:
    """Median latency and accuracy LCAO reaches at each deadline; vertical lines: the full network's median latency."""
    answered = {
        co_runners: [a for a in table.answers(LCAO, co_runners) if len(a.right)]
        for co_runners in table.co_runner_counts
    }
    full = {co_runners: table.answers(FULL_NETWORK, co_runners)[0] for co_runners in table.co_runner_counts}
    every = [a for answers in answered.values() for a in answers]
    medians_s = np.array([np.median(a.latency_s) for a in [*every, *full.values()]])
    unit = Unit.best_for(medians_s)
    curves = []
    for co_runners, answers in answered.items():
        curves.append(
            Curve(
                co_located(co_runners),
                unit.of(np.array([np.median(a.latency_s) for a in answers])),
                np.array([a.accuracy for a in answers]),
                "dots",
                COLOURS[co_runners % len(COLOURS)],
                error=np.array([a.standard_error for a in answers]),
            )
        )
    limits = tuple(
        Limit(float(unit.of(np.array([np.median(a.latency_s)]))[0]), f"full network {co_located(co_runners)}")
        for co_runners, a in full.items()
    )
    most = table.co_runner_counts[-1]
    return Figure(
        id=f"lcao-{name}",
        title=f"{name}: accuracy and latency under deadlines",
        caption=(
            "Each dot is a deadline and the k it left time for. The full network takes "
            f"{duration(full[table.co_runner_counts[0]].quantile_s(0.95))} {co_located(table.co_runner_counts[0])} and "
            f"{duration(full[most].quantile_s(0.95))} {co_located(most)} at the 95th percentile (bars: ± 1 SE)."
        ),
        source=source,
        x=Axis(f"median latency of one answer, {unit.name}", log=True),
        y=share_axis("accuracy of answered queries"),
        curves=tuple(curves),
        limits=limits,
        table=_table(table),
    )


def _deadline_attainment(name: str, table: InterferenceTable, source: str) -> Figure:
    deadlines_s = table.deadlines_s
    unit = Unit.best_for(deadlines_s)
    x, most = unit.of(deadlines_s), table.co_runner_counts[-1]
    curves = []
    for co_runners in table.co_runner_counts:
        answers, colour = table.answers(LCAO, co_runners), COLOURS[co_runners % len(COLOURS)]
        met = np.array([a.met_share(a.target) for a in answers])
        curves.append(Curve(f"LCAO {co_located(co_runners)}", x, met, "dots and line", colour))
    for strategy, what, colour in ((FULL_NETWORK, "full network", FULL_COLOUR), (LEAST, "least k", MIN_COLOUR)):
        fixed = table.answers(strategy, most)[0]
        kept = np.array([fixed.met_share(deadline_s) for deadline_s in deadlines_s])
        curves.append(Curve(f"{what} {co_located(most)}", x, kept, "dashes" if strategy == LEAST else "line", colour))
    deadline_s = 1e-6 * float(table.provenance.get("deadline_us") or 1e6 * deadlines_s[-1])
    at = min(table.summary(), key=lambda row: (row["co_runners"] != most, abs(row["deadline_us"] - 1e6 * deadline_s)))
    return Figure(
        id=f"deadlines-{name}",
        title=f"{name}: deadline attainment",
        caption=(
            f"Of queries with {duration(1e-6 * at['deadline_us'])}, {percent(at['met_share'], 2)} are answered in time "
            f"{co_located(most)} and {percent(at['full_met_share'], 2)} by the full network; "
            f"{percent(1 - at['least_met_share'], 2)} no choice of k could have saved."
        ),
        source=source,
        x=Axis(f"deadline, {unit.name}", log=True),
        y=share_axis("share of queries in time"),
        curves=tuple(curves),
        limits=(Limit(float(unit.of(np.array([deadline_s]))[0]), "full network's p95 solo"),),
        table=_table(table),
        headlines=((f"{name}: in time {co_located(most)}, at the full network's p95", percent(at["met_share"], 2)),),
    )


def _accuracy_against_speedup(name: str, table: InterferenceTable, source: str) -> Figure:
    curves, cells = [], []
    for co_runners in table.co_runner_counts:
        answers, full = table.answers(ACLO, co_runners), table.answers(FULL_NETWORK, co_runners)[0]
        faster = np.array([full.latency_s.mean() / a.latency_s.mean() for a in answers])
        accuracy, error = (np.array([getattr(a, what) for a in answers]) for what in ("accuracy", "standard_error"))
        colour = COLOURS[co_runners % len(COLOURS)]
        curves.append(Curve(co_located(co_runners), faster, accuracy, "dots and line", colour, error=error))
        cells += [
            (percent(a.target, 2), co_located(co_runners), percent(a.accuracy, 2), f"{a.mean_k:.4f}", f"{times:.2f} ×")
            for a, times in zip(answers, faster, strict=True)
        ]
    times = np.concatenate([curve.x for curve in curves])
    return Figure(
        id=f"aclo-{name}",
        title=f"{name}: speed-up at accuracy targets",
        caption="Mean latency of the full network over that of the least k each input needs, with the same co-runners "
        f"(bars are ± 1 standard error): up to {times.max():.1f} times.",
        source=source,
        x=Axis("average speed-up over the full network", log=bool(times.max() > 5 * times.min())),
        y=share_axis("accuracy reached"),
        curves=tuple(curves),
        table=Rows(("target", "co-runners", "accuracy", "mean k", "speed-up"), tuple(cells)),
    )


def _table(table: InterferenceTable) -> Rows:
    columns = ("deadline", "co-runners", "in time", "full network", "least k", "rejected", "accuracy", "± SE", "mean k")
    return Rows(
        columns,
        tuple(
            (
                duration(1e-6 * row["deadline_us"]),
                co_located(row["co_runners"]),
                percent(row["met_share"], 2),
                percent(row["full_met_share"], 2),
                percent(row["least_met_share"], 2),
                percent(row["rejected_share"]),
                percent(row["accuracy"], 2),
                percent(row["standard_error"], 2),
                f"{row['mean_k']:.4f}",
            )
            for row in table.summary()
        ),
    )
