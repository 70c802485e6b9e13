"""Model-Switching: which point serves which load, what load does to tails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slotool.printable import counted
from slotool.reports.figure import Axis, Curve, Figure, Rows, duration, percent, share_axis
from slotool.rules.switching import EFFECTIVE_ACCURACY, LoadTest, SwitchingPlan


def plan_figures(plan: SwitchingPlan, source: str) -> Iterator[Figure]:
    """Yield the plan's thresholds, and the load tests that they come from where they were kept."""
    yield accuracy_against_load(plan, source)
    if any(_on_configuration(plan, load) for load in plan.loads):
        yield tail_against_load(plan, source)
    if plan.by == EFFECTIVE_ACCURACY and plan.loads:
        yield effective_accuracy_by_load(plan, source)


def accuracy_against_load(plan: SwitchingPlan, source: str) -> Figure:
    """Accuracy of the point that serves each arrival rate: Algorithm 1 as steps."""
    steps = plan.breakpoints
    most = max((rate for rate, _ in steps), default=0.0)
    starts = np.array([0.0, *(rate for rate, _ in steps)])
    accuracy = np.array([plan.accuracy[point] for _, point in steps])
    until = {point: rate for rate, point in steps}
    since = {point: start for start, (_, point) in zip(starts, steps, strict=False)}
    curve = Curve(
        "the plan's point", starts, np.append(accuracy, accuracy[-1:]), "dots and steps",
        labels=tuple(point for _, point in steps), labels_above=True,
    )  # fmt: skip
    by_accuracy = sorted(plan.rates_per_s, key=lambda point: -plan.accuracy[point])
    return Figure(
        id="switching-plan",
        title=f"{plan.subject}: switching plan for {duration(plan.deadline_s)}",
        caption=_caption(plan, most),
        source=source,
        x=Axis("arrivals per second"),
        y=share_axis("accuracy of the point that serves"),
        curves=(curve,) if steps else (),
        table=Rows(
            ("point", "serves", "accuracy", "good for up to"),
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


def _workers(plan: SwitchingPlan) -> str:
    return f"{counted(plan.replicas, 'worker')} of {counted(plan.threads, 'thread')}"


def _caption(plan: SwitchingPlan, max_per_s: float) -> str:
    within, workers = duration(plan.deadline_s), _workers(plan)
    if plan.by == EFFECTIVE_ACCURACY:
        share = f"answered correctly within {within}"
        return f"Which point serves each arrival rate, so that the most requests are {share} on {workers}."
    beyond = f" Beyond {max_per_s:,.0f} requests/s none keeps it." if max_per_s else " None keeps it at any rate tried."
    return f"Which point serves each arrival rate, so that P99 stays within {within} on {workers}." + beyond


def effective_accuracy_by_load(plan: SwitchingPlan, source: str) -> Figure:
    """Plot the share of requests that each point answers correctly in time, by arrival rate, and the plan's choice."""
    by_point = {point: loads for point in plan.rates_per_s if (loads := plan.loads_of(point))}
    loads = [load for tests in by_point.values() for load in tests]
    rates = np.array([load.rate_per_s for load in loads])
    curves = []
    for at, (point, tests) in enumerate(by_point.items()):
        tried = sorted(tests, key=lambda load: load.rate_per_s)
        in_time = np.array([plan.accuracy[point] * load.attainment for load in tried])
        curves.append(Curve(point, np.array([load.rate_per_s for load in tried]), in_time, "dots and line", at))
    every = np.geomspace(rates.min(), rates.max(), 60)
    chosen = Curve("the plan", every, plan.effective_accuracy(every), "dashes", 4)
    return Figure(
        id="switching-effective",
        title=f"{plan.subject}: effective accuracy by load",
        caption=f"Share of all requests sent that were answered correctly within {duration(plan.deadline_s)}, in the "
        "load tests of each point, and what the plan may expect by them.",
        source=source,
        x=Axis("arrivals per second", log=True),
        y=share_axis("effective accuracy"),
        curves=(*curves, chosen),
        table=Rows(
            ("point", "arrivals", "in time", "effective accuracy"),
            tuple(
                (load.point, f"{load.rate_per_s:,.0f}/s", percent(load.attainment, 1),
                 percent(plan.accuracy[load.point] * load.attainment, 1))
                for load in loads
            ),
        ),
    )  # fmt: skip


def _on_configuration(plan: SwitchingPlan, load: LoadTest) -> bool:
    return (load.replicas, load.threads) == (plan.replicas, plan.threads) and load.p99_s is not None


def tail_against_load(plan: SwitchingPlan, source: str) -> Figure:
    """Plot each point's p99 by arrival rate from the plan's load tests, and the deadline (paper, Fig. 3)."""
    by_point: dict[str, list[LoadTest]] = {point: [] for point in plan.rates_per_s}
    for load in sorted(plan.loads, key=lambda load: load.rate_per_s):
        if _on_configuration(plan, load):
            by_point[load.point].append(load)
    measured = {point: loads for point, loads in by_point.items() if loads}
    rates = np.array([load.rate_per_s for load in plan.loads])
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
        caption=f"P99 of all requests sent, on {_workers(plan)}; rates at which a hundredth was not answered at all "
        "are left out.",
        source=source,
        x=Axis("arrivals per second", log=True),
        y=Axis("P99, ms", log=True),
        curves=(deadline, *curves),
        table=Rows(("point", "good for up to", "accuracy"), tuple(breakpoints)),
    )
