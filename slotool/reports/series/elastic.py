"""An SLO-NN's accuracy against k: fixed, chosen per input, and the ideal; several rankers over one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.reports.figure import Axis, Curve, Figure, Rows, Unit, duration, log_axis, percent, share_axis


@dataclass(frozen=True)
class Line:
    """Accuracy along ``x``: mean k (a share of nodes), or mean latency in seconds; float64 [n]."""

    name: str
    x: np.ndarray
    accuracy: np.ndarray


def accuracy_against_mean_k(
    name: str, fixed: Sequence[Line], chosen: Sequence[Line], ideal: Sequence[Line], full: float, source: str
) -> Figure:
    """``fixed``: per ranker every k of the grid; ``chosen``: the same rankers' k chosen per input, one dot per target;
    ``ideal``: one dot each, the mean k at which nothing is lost if each input's need were known."""
    lines = [*fixed, *chosen, *ideal]
    x = log_axis("mean share of each layer's nodes computed (k)", np.concatenate([line.x for line in lines]))
    x = Axis(x.title, x.low, x.high, tuple((value, f"{100 * value:g} %") for value, _ in x.ticks), log=True)
    y = share_axis("accuracy", np.concatenate([[full], *(line.accuracy for line in (*fixed, *chosen))]))
    best = min(chosen, key=lambda line: _mean_k_for(line, full), default=None)
    said = "; ".join(f"{line.name} {percent(_mean_k_for(line, full), 2)}" for line in (*fixed, *chosen))
    explained = "Broad and pale: k chosen per input; ideal: if each input's need were known."
    return Figure(
        id=f"accuracy-mean-k-{name}",
        title=f"{name}: k fixed, chosen per input, and ideal",
        caption=f"{explained} Mean k within {GIVEN_UP:g} points of the full network: {said}.",
        source=source,
        x=x,
        y=y,
        curves=_curves(fixed, chosen, ideal, x, full),
        table=Rows(("", "mean k", "accuracy"), tuple(_rows(lines, lambda value: percent(value, 3)))),
        headlines=() if best is None else ((f"{name}: mean k chosen per input", _said(best, full)),),
    )


def accuracy_against_mean_latency(
    name: str, fixed: Sequence[Line], chosen: Sequence[Line], full: float, source: str
) -> Figure:
    """The same against mean latency of one answer, in seconds."""
    lines = [*fixed, *chosen]
    seconds = np.concatenate([line.x for line in lines])
    unit = Unit.best_for(seconds)
    x = log_axis(f"mean latency of one answer, {unit.name}", unit.of(seconds))
    y = share_axis("accuracy", np.concatenate([[full], *(line.accuracy for line in lines)]))
    scaled = [[Line(n.name, unit.of(n.x), n.accuracy) for n in group] for group in (fixed, chosen)]
    return Figure(
        id=f"accuracy-mean-latency-{name}",
        title=f"{name}: accuracy against mean latency",
        caption="Up and to the left is better. Broad and pale: k chosen per input, each query answered at the point it "
        "is expected to need, taking what that point took.",
        source=source,
        x=x,
        y=y,
        curves=_curves(scaled[0], scaled[1], [], x, full),
        table=Rows(("", "mean latency", "accuracy"), tuple(_rows(lines, duration))),
    )


# What mean k is compared at, in points of accuracy below the full network.
GIVEN_UP = 0.3


def _curves(
    fixed: Sequence[Line], chosen: Sequence[Line], ideal: Sequence[Line], x: Axis, full: float
) -> tuple[Curve, ...]:
    """One colour and one place in the legend per ranker: k chosen per input is broad and pale, the ideal a dot."""
    curves = [Curve("full network", np.array([x.low, x.high]), np.full(2, full), "dashes", colour=5)]
    for at, line in enumerate(chosen):
        curves.append(Curve(line.name, line.x, line.accuracy, "dots and line", _slot(at), wide=True, in_legend=False))
    for at, line in enumerate(fixed):
        curves.append(Curve(line.name, line.x, line.accuracy, "dots and line", _slot(at)))
    for at, line in enumerate(ideal):
        labels = ("ideal",)
        curves.append(
            Curve(
                line.name, line.x, line.accuracy, "dots", _slot(at), labels=labels, labels_above=True, in_legend=False
            )
        )
    return tuple(curves)


def _slot(at: int) -> int:
    """Palette slots but that of the reference."""
    return at if at < 5 else at + 1


def _mean_k_for(line: Line, full: float) -> float:
    """The least mean k within ``GIVEN_UP`` points; 1, all nodes, where there is none."""
    enough = line.x[line.accuracy >= full - GIVEN_UP / 100 - 1e-12]
    return float(enough.min()) if len(enough) else 1.0


def _said(line: Line, full: float) -> str:
    return f"{percent(_mean_k_for(line, full), 2)} of the nodes within {GIVEN_UP:g} points"


def _rows(lines: Sequence[Line], written: Callable[[float], str]) -> list[tuple[str, str, str]]:
    return [
        (line.name, written(float(x)), percent(float(y), 2))
        for line in lines
        for x, y in zip(line.x, line.accuracy, strict=True)
    ]
