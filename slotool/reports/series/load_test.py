"""Loads: the served latency distribution, from a request log, and policies on the same arrivals, over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from slotool.errors import InputError
from slotool.reports.figure import Axis, Curve, Figure, Limit, Rows, Unit, duration, percent, share_axis
from slotool.simulation.query_log import Dynamics, QueryLog, dynamics
from slotool.workloads.client.faults import WIDTH_S, around_faults, over_time
from slotool.workloads.requests import RequestLog

MAX_POINTS = 1_500


def served_latency(name: str, log: RequestLog, source: str) -> Figure:
    """Plot the share of requests still unanswered by time, down to the last one; failed ones stay unanswered.

    Raises ``InputError`` if no request was answered.
    """
    answered_s = np.sort(log.latency_s[log.answered])
    if not len(answered_s):
        raise InputError(f"{source}: none of its {len(log):,} requests was answered; there is no latency to draw")
    summary = log.summary()
    unit = Unit.best_for(answered_s)
    deadline_s = summary["deadline_s"]
    waiting = 1.0 - np.arange(len(answered_s)) / len(log)
    shown = _thinned(waiting)
    marks = [(q, summary[f"p{q}_s"]) for q in (50, 99) if not np.isnan(summary[f"p{q}_s"])]
    at_marks = np.array([1.0 - np.sum(answered_s < value) / len(log) for _, value in marks])
    unanswered = len(log) - len(answered_s)
    return Figure(
        id=f"served-{name}",
        title=f"{name}: served latency",
        caption=_caption(summary, unanswered),
        source=source,
        x=Axis(f"latency from the intended instant of sending, {unit.name}", log=True),
        y=share_axis("share of requests not yet answered", log=True),
        curves=(
            Curve(name, unit.of(answered_s[shown]), waiting[shown], "line"),
            Curve(
                "quantiles",
                unit.of(np.array([value for _, value in marks])),
                at_marks,
                "dots",
                labels=tuple(f"p{quantile} {duration(value)}" for quantile, value in marks),
                labels_above=True,
                in_legend=False,
            ),
        ),
        limits=(Limit(deadline_s / unit.seconds, f"deadline {duration(deadline_s)}"),) if deadline_s else (),
        table=_table(log),
        headlines=_headlines(name, summary),
    )


def served_over_time(name: str, log: RequestLog, source: str) -> Figure:
    """Plot attainment and accuracy per second, with a line at every injected fault (superserve, Fig. 11a)."""
    seconds, faults = over_time(log), around_faults(log)
    time_s = np.array([second["begin_s"] for second in seconds])
    named = (("answered in time", "attainment"), ("accuracy of answered", "accuracy"))
    series = {label: np.array([second[key] for second in seconds]) for label, key in named}
    curves = {label: y for label, y in series.items() if np.isfinite(y).any()}
    rows = tuple(
        (
            f"{fault['injected_s']:.1f} s",
            fault["fault"],
            percent(fault["attainment_before"]),
            percent(fault["attainment_worst"]),
            "–" if fault["recovered_s"] is None else f"{fault['recovered_s']:.1f} s",
        )
        for fault in faults
    )
    return Figure(
        id=f"over-time-{name}",
        title=f"{name}: attainment and accuracy over time",
        caption=f"Means over {WIDTH_S:g} s of requests by when they were due; the lines are faults.",
        source=source,
        x=Axis("time, s"),
        y=share_axis("share"),
        curves=tuple(Curve(label, time_s, y, "line", at) for at, (label, y) in enumerate(curves.items())),
        limits=tuple(Limit(fault["injected_s"], fault["fault"]) for fault in faults),
        table=Rows(("at", "fault", "in time before", "in time in the worst second", "recovered in"), rows),
    )


def _caption(summary: dict[str, float], unanswered: int) -> str:
    requests, rate = f"{summary['requests']:,.0f} requests", _rate(summary)
    lost = f"; {unanswered:,} were never answered" if unanswered else ""
    if not summary["deadline_s"]:
        return f"Half of {requests}, arriving at {rate}, were answered within {duration(summary['p50_s'])}{lost}."
    if summary["deadline_meet_rate"] == 1.0:
        return f"All of {requests}, arriving at {rate}, were answered before the deadline."
    return (
        f"Where the curve crosses the deadline it shows the share of {requests}, arriving at {rate}, that missed it: "
        f"{percent(1 - summary['deadline_meet_rate'], 2)}{lost}."
    )


def _rate(summary: dict[str, float], unit: str = "") -> str:
    """Return the text of the drawn rate; a burst at one instant has none."""
    drawn = summary["drawn_rate_per_s"]
    return "one instant" if np.isnan(drawn) else f"{drawn:.0f}{unit}/s"


def _headlines(name: str, summary: dict[str, float]) -> tuple[tuple[str, str], ...]:
    rate = f"{name} at {_rate(summary, ' requests')}"
    tail = ("p99_s", "p99") if not np.isnan(summary["p99_s"]) else ("worst_s", "worst")
    times = f"{duration(summary['p50_s'])} and {duration(summary[tail[0]])}"
    lines = [(f"{rate}: p50 and {tail[1]} latency", times)]
    if summary["deadline_s"]:
        met = f"met the deadline of {duration(summary['deadline_s'])}"
        lines.append((f"{rate}: {met}", percent(summary["deadline_meet_rate"], 2)))
    return (*lines, (f"{rate}: effective accuracy", percent(summary["effective_accuracy"], 2)))


def _table(log: RequestLog) -> Rows:
    rows = [
        (
            p["point"],
            f"{p['requests']:,}",
            percent(p["share"]),
            percent(p["accuracy"], 2),
            duration(p["median_latency_s"]),
        )
        for p in log.points()
    ]
    return Rows(("operating point that answered", "requests", "share", "accuracy", "median latency"), tuple(rows))


def _thinned(waiting: np.ndarray) -> np.ndarray:
    """Return the indices evenly spread over the logarithm of the share that waits, so that the tail is kept whole."""
    if len(waiting) <= MAX_POINTS:
        return np.arange(len(waiting))
    levels = np.geomspace(waiting[0], waiting[-1], MAX_POINTS)
    return np.unique(np.append(np.searchsorted(-waiting, -levels), len(waiting) - 1))


def dynamics_figures(name: str, log: QueryLog, source: str) -> list[Figure]:
    """Return four figures with a curve per policy of simulated queries; the first also shows what came."""
    runs = {policy: dynamics(log, policy) for policy in log.rows["policy"].unique()}
    first = next(iter(runs.values()))
    came = Curve("arrived", first.begin_s, first.arrived_per_s, "dashes", 5)
    return [
        _figure(name, source, runs, "rate", "answers in time per second", lambda run: run.in_time_per_s, came),
        _figure(name, source, runs, "accuracy", "accuracy of the point chosen", lambda run: run.accuracy),
        _figure(name, source, runs, "batch", "queries per call", lambda run: run.batch),
        _figure(name, source, runs, "queue", "queries waiting", lambda run: run.waiting),
    ]


def _figure(
    name: str,
    source: str,
    runs: Mapping[str, Dynamics],
    what: str,
    title: str,
    of: Callable[[Dynamics], np.ndarray],
    *more: Curve,
) -> Figure:
    curves = [
        *more,
        *(Curve(policy, run.begin_s, of(run), "line", at) for at, (policy, run) in enumerate(runs.items())),
    ]
    finite = {curve.name: curve.y[np.isfinite(curve.y)] for curve in curves}
    write = percent if what == "accuracy" else "{:,.1f}".format
    rows = tuple(
        (curve, *(write(float(figure)) for figure in (y.min(), y.mean(), y.max())))
        for curve, y in finite.items()
        if len(y)
    )
    width_ms = 1e3 * next(iter(runs.values())).width_s
    return Figure(
        id=f"dynamics-{what}",
        title=f"{name}: {title}",
        caption=f"Means over {width_ms:,.3g} ms each." if what != "queue" else f"Every {width_ms:,.3g} ms.",
        source=source,
        x=Axis("time, s"),
        y=Axis(title),
        curves=tuple(curves),
        table=Rows(("curve", "least", "mean", "most"), rows),
    )
