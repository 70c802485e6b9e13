"""Plots of curves and points by their data alone: axes are chosen to fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from slotool.reports.figure import Axis, Curve, Figure, Rows, Style, share_axis

# Name of a curve, and its points.
Series = Mapping[str, tuple[ArrayLike, ArrayLike]]


def curves(
    title: str,
    caption: str,
    x: tuple[str, str],
    y: tuple[str, str],
    series: Series,
    *,
    style: Style = "dots and line",
    dashed: Series | None = None,
) -> Figure:
    """A plot of ``series``. ``x`` and ``y``: an axis's title, and linear, log or share. ``dashed``: references."""
    drawn = [
        Curve(name, np.asarray(xs, dtype=float), np.asarray(ys, dtype=float), kind, at)
        for at, (name, (xs, ys), kind) in enumerate(
            [(name, points, style) for name, points in series.items()]
            + [(name, points, "dashes") for name, points in (dashed or {}).items()]
        )
    ]
    return Figure("figure", title, caption, "", _axis(*x), _axis(*y), tuple(drawn), Rows((), ()))


def _axis(title: str, kind: str) -> Axis:
    return share_axis(title) if kind == "share" else Axis(title, log=kind == "log")
