"""Policies on the same arrivals, over time: rate, accuracy of the point chosen, batch, queue (superserve, §6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from slotool.reports.axes import linear_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import percent
from slotool.simulation.query_log import Dynamics


def dynamics_figures(name: str, runs: Mapping[str, Dynamics]) -> list[Figure]:
    """Four figures with a curve per policy of ``runs``; the first also shows what came."""
    first = next(iter(runs.values()))
    came = Curve("arrived", first.begin_s, first.arrived_per_s, "dashes", 5)
    return [
        _figure(name, runs, "rate", "answers in time per second", lambda run: run.in_time_per_s, came),
        _figure(name, runs, "accuracy", "accuracy of the point chosen", lambda run: run.accuracy),
        _figure(name, runs, "batch", "queries per call", lambda run: run.batch),
        _figure(name, runs, "queue", "queries waiting", lambda run: run.waiting),
    ]


def _figure(
    name: str,
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
    known = {curve.name: curve.y[np.isfinite(curve.y)] for curve in curves}
    values = np.concatenate([np.zeros(0 if what == "accuracy" else 1), *known.values()])
    write = percent if what == "accuracy" else "{:,.1f}".format
    rows = tuple(
        (curve, *(write(float(figure)) for figure in (y.min(), y.mean(), y.max())))
        for curve, y in known.items()
        if len(y)
    )
    width_ms = 1e3 * next(iter(runs.values())).width_s
    return Figure(
        id=f"dynamics-{what}",
        title=f"{name}: {title}",
        caption=f"Means over {width_ms:,.3g} ms each." if what != "queue" else f"Every {width_ms:,.3g} ms.",
        source=name,
        x=linear_axis("time, s", np.concatenate([run.begin_s for run in runs.values()]), air=0.01),
        y=linear_axis(title, values),
        curves=tuple(curves),
        table=Rows(("curve", "least", "mean", "most"), rows),
    )
