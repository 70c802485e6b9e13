"""Model-Switching: which point serves which load, what load does to tails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slotool.reports.axes import linear_axis, log_axis, share_axis, spaced_labels
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import duration, percent
from slotool.rules.switching import LoadTest, SwitchingPlan


def plan_figures(plan: SwitchingPlan, source: str) -> Iterator[Figure]:
    """The plan's thresholds, and the load tests that they come from where they were kept."""
    yield accuracy_against_load(plan, source)
    if any(_on_configuration(plan, load) for load in plan.loads):
        yield tail_against_load(plan, source)


def accuracy_against_load(plan: SwitchingPlan, source: str) -> Figure:
    """Accuracy of the point that serves each arrival rate: Algorithm 1 as steps."""
    steps = plan.breakpoints
    most = max((rate for rate, _ in steps), default=0.0)
    starts = np.array([0.0, *(rate for rate, _ in steps)])
    accuracy = np.array([plan.accuracy[point] for _, point in steps])
    until = {point: rate for rate, point in steps}
    since = {point: start for start, (_, point) in zip(starts, steps, strict=False)}
    x = linear_axis("arrivals per second", np.array([0.0, most or 1.0]))
    y = share_axis("accuracy of the point that serves", np.array(list(plan.accuracy.values())), air=0.2)
    names = [point for _, point in steps]
    curve = Curve(
        "the plan's point", starts, np.append(accuracy, accuracy[-1:]), "dots and steps",
        hover=(*(f"{point} up to {rate:,.0f}/s" for rate, point in steps), "beyond that the fastest"),
        labels=(*spaced_labels(starts[:-1], accuracy, names, x, y), ""), labels_above=True,
    )  # fmt: skip
    by_accuracy = sorted(plan.rates_per_s, key=lambda point: -plan.accuracy[point])
    return Figure(
        id="switching-plan",
        title=f"{plan.subject}: switching plan for {duration(plan.deadline_s)}",
        caption=f"Which point serves each arrival rate, so that P99 stays within {duration(plan.deadline_s)} on "
        f"{plan.replicas} workers of {plan.threads} threads."
        + (f" Beyond {most:,.0f} requests/s none keeps it." if steps else " None keeps it at any rate tried."),
        source=source,
        x=x,
        y=y,
        curves=(curve,) if steps else (),
        table=Rows(
            ("point", "serves", "accuracy", "keeps the deadline up to"),
            tuple(
                (
                    point,
                    f"{since[point]:,.0f} – {until[point]:,.0f}/s" if point in until else "never",
                    percent(plan.accuracy[point], 2),
                    f"{plan.rates_per_s[point]:,.0f}/s",
                )
                for point in by_accuracy
            ),
        ),
        headlines=((f"{plan.subject}: rate served within {duration(plan.deadline_s)}", f"{most:,.0f} requests/s"),),
    )


def _on_configuration(plan: SwitchingPlan, load: LoadTest) -> bool:
    return (load.replicas, load.threads) == (plan.replicas, plan.threads) and load.p99_s is not None


def tail_against_load(plan: SwitchingPlan, source: str) -> Figure:
    """P99 of each point by arrival rate, as the plan's load tests measured it, and the deadline (paper, Fig. 3)."""
    by_point: dict[str, list[LoadTest]] = {point: [] for point in plan.rates_per_s}
    for load in sorted(plan.loads, key=lambda load: load.rate_per_s):
        if _on_configuration(plan, load):
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
