"""Model-Switching: what load does to each model's tail, and what deadlines do to effective accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slotool.reports.axes import linear_axis, log_axis, share_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import duration, percent
from slotool.rules.switching import LoadTest, SwitchingPlan


def tail_against_load(plan: SwitchingPlan, source: str) -> Figure:
    """P99 of each point by arrival rate, as the plan's load tests measured it, and the deadline (paper, Fig. 3)."""
    by_point: dict[str, list[LoadTest]] = {point: [] for point in plan.rates_per_s}
    for load in sorted(plan.loads, key=lambda load: load.rate_per_s):
        if (load.replicas, load.threads) == (plan.replicas, plan.threads) and load.p99_s is not None:
            by_point[load.point].append(load)
    measured = {point: loads for point, loads in by_point.items() if loads}
    rates = np.array([load.rate_per_s for load in plan.loads])
    tails_ms = 1e3 * np.array([load.p99_s for loads in measured.values() for load in loads] + [plan.deadline_s])
    curves = []
    for at, (point, loads) in enumerate(measured.items()):
        x, y_ms = (np.array(values) for values in zip(*((a.rate_per_s, 1e3 * (a.p99_s or 0.0)) for a in loads),
                   strict=True))  # fmt: skip
        curves.append(Curve(point, x, y_ms, "dots and line", at))
    ends = np.array([rates.min(), rates.max()])
    deadline = Curve(f"deadline, {duration(plan.deadline_s)}", ends, np.full(2, 1e3 * plan.deadline_s), "dashes", 4)
    breakpoints = [(point, f"{rate:,.0f}/s", percent(plan.accuracy[point], 2)) for rate, point in plan.breakpoints]
    return Figure(
        id="switching-load",
        title=f"{plan.subject}: P99 latency by load",
        caption=f"P99 of all requests sent, on {plan.replicas} workers of {plan.threads} threads; rates at which a "
        "hundredth was not answered at all are left out.",
        source=source,
        x=log_axis("arrivals per second", rates),
        y=log_axis("P99, ms", tails_ms),
        curves=(deadline, *curves),
        table=Rows(("point", "good for up to", "accuracy"), tuple(breakpoints)),
    )


def effective_accuracy_against_deadline(
    name: str, deadlines_s: Sequence[float], found: Mapping[str, Sequence[float]], source: str
) -> Figure:
    """Share of all requests answered correctly and in time, by deadline (paper, Fig. 4b).

    ``found``: per policy, the first of which is drawn on top of the others, the share at each of ``deadlines_s``.
    """
    deadlines_ms = 1e3 * np.asarray(deadlines_s)
    shares = {policy: np.asarray(values, dtype=np.float64) for policy, values in found.items()}
    curves = [Curve(policy, deadlines_ms, y, "dots and line", at) for at, (policy, y) in enumerate(shares.items())]
    return Figure(
        id="switching-deadlines",
        title=f"{name}: effective accuracy by deadline",
        caption="Share of all requests sent that were answered correctly and in time; the same arrivals for all.",
        source=source,
        x=linear_axis("deadline, ms", deadlines_ms),
        y=share_axis("effective accuracy", np.concatenate(list(shares.values()))),
        curves=(*curves[1:], curves[0]),
        table=Rows(
            ("policy", *(f"{at:g} ms" for at in deadlines_ms)),
            tuple((policy, *(percent(share, 2) for share in y)) for policy, y in shares.items()),
        ),
    )
