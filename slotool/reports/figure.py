"""A plot as data: curves, axes with ticks a person would choose, and numbers as a reader wants them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slotool.rules.evidence.losses import PERCENT, LossUnit

# Colour of each slot, distinct for colour-blind eyes and on white paper.
PALETTE = ("#0b5fa5", "#c2540a", "#19775a", "#7a3db8", "#b02a4c", "#5c6670", "#8a6d00", "#0f7c8a")
ALARM = "#b3261e"
INK = "#1c2530"
FAINT = "#d9dee5"

Style = Literal["dots", "line", "dashes", "steps", "dots and line", "dots and steps"]


@dataclass(frozen=True)
class Axis:
    """Title and scale; limits and ticks follow from the data.

    A tick is written as ``factor`` times its value, and ``sign``. ``ticks``: values and their texts in place of round
    values.
    """

    title: str
    log: bool = False
    factor: float = 1.0
    sign: str = ""
    ticks: tuple[tuple[float, str], ...] = ()

    def written(self, value: float) -> str:
        """Return the text of a tick at ``value``."""
        number = self.factor * value
        return (f"{number:,.0f}" if abs(number) >= 1_000 else f"{number:.10g}") + self.sign


def share_axis(title: str, *, log: bool = False) -> Axis:
    """Return the axis of shares, written as percentages."""
    return Axis(title, log, 100.0, " %")


def error_axis(title: str, unit: LossUnit) -> Axis:
    """Return the axis of errors, or losses, written in their ``unit``."""
    return Axis(title, False, unit.per_one, " %" if unit.per_one == PERCENT.per_one else "")


@dataclass(frozen=True)
class Curve:
    """``x``, ``y``: float64 [n] in data units. ``colour``: slot of the palette.

    ``error``: half the length of a vertical error bar, float64 [n]. ``labels``: texts written next to points, but for
    those that would overlap another; below the point, or with ``labels_above`` above it. ``wide``: drawn broad and
    pale, so that a curve on the same points can be seen on top of it.
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
    """Plot data: ``id`` names its file, ``caption`` is one sentence on what to see, ``source`` its origin.

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


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True)
class Unit:
    """A unit of time: ``of(seconds)`` gives its multiples."""

    name: str
    seconds: float

    @classmethod
    def best_for(cls, seconds: np.ndarray) -> Unit:
        """Return the unit in which the typical value is at least 1."""
        typical = float(np.exp(np.mean(np.log(np.maximum(seconds, 1e-12)))))
        return cls(*next((unit for unit in _UNITS if typical >= unit[1]), _UNITS[-1]))

    def of(self, seconds: np.ndarray) -> np.ndarray:
        return np.asarray(seconds, dtype=np.float64) / self.seconds


def duration(seconds: float | None) -> str:
    """Return the three significant digits in the unit that fits; a dash for nothing."""
    if seconds is None or math.isnan(seconds):
        return "–"
    name, scale = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    return f"{_significant(seconds / scale)} {name}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return ``97.3 %``; a dash for nothing."""
    return "–" if share is None or math.isnan(share) else f"{share * 100:.{digits}f} %"


def file_name(text: str) -> str:
    """Return ``text`` as the stem of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "plot"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
