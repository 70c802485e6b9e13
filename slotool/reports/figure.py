"""A plot as data, without a decision on how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

# One colour per slot, distinct for colour-blind eyes and on white paper.
PALETTE = ("#0b5fa5", "#c2540a", "#19775a", "#7a3db8", "#b02a4c", "#5c6670", "#8a6d00", "#0f7c8a")
ALARM = "#b3261e"
INK = "#1c2530"
FAINT = "#d9dee5"

Style = Literal["dots", "line", "dashes", "steps", "dots and line", "dots and steps"]


@dataclass(frozen=True)
class Axis:
    """``low`` to ``high`` in data units; ``ticks``: values and their texts, the only ones that are drawn."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False


@dataclass(frozen=True)
class Curve:
    """``x``, ``y``: float64 [n] in data units. ``colour``: slot of the palette.

    ``error``: half the length of a vertical error bar, float64 [n]. ``labels``: texts written next to points; an empty
    one is not written; below the point, or with ``labels_above`` above it. ``wide``: drawn broad and pale, so that
    a curve on the same points can be seen on top of it.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    style: Style
    colour: int = 0
    error: np.ndarray | None = None
    labels: tuple[str, ...] = ()
    labels_above: bool = False
    in_legend: bool = True
    wide: bool = False

    @property
    def paint(self) -> str:
        return PALETTE[self.colour % len(PALETTE)]


@dataclass(frozen=True)
class Band:
    """The area between ``low`` and ``high`` (float64 [n]) over ``x``."""

    name: str
    x: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Limit:
    """A vertical line at ``x`` that something should stay left of."""

    x: float
    text: str


@dataclass(frozen=True)
class Rows:
    """A small table under a plot; cells are texts as a person reads them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """One plot: ``id`` names its file, ``caption`` is one sentence on what to see, ``source`` where it comes from.

    ``headlines``: the figures for the report's summary, as (what, value).
    """

    id: str
    title: str
    caption: str
    source: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    table: Rows
    bands: tuple[Band, ...] = ()
    limits: tuple[Limit, ...] = ()
    headlines: Sequence[tuple[str, str]] = field(default=())
    square: bool = False
