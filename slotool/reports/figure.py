"""A plot as data: curves, axes with ticks a person would choose, and numbers as a reader wants them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slotool.rules.evidence.losses import PERCENT, LossUnit

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


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
# Steps within a decade, sparser as more decades are shown.
_WITHIN_DECADE = ((0.8, (1, 1.5, 2, 3, 4, 5, 6, 8)), (2.2, (1, 2, 5)), (3.2, (1, 3)), (math.inf, (1,)))

# How much of a plot's width a character of a label takes, with its share of the gap to the point.
_CHARACTER = 0.009


@dataclass(frozen=True)
class Unit:
    """A unit of time: ``of(seconds)`` gives its multiples."""

    name: str
    seconds: float

    @classmethod
    def best_for(cls, seconds: np.ndarray) -> Unit:
        """The unit in which the typical value is at least 1."""
        typical = float(np.exp(np.mean(np.log(np.maximum(seconds, 1e-12)))))
        return cls(*next((unit for unit in _UNITS if typical >= unit[1]), _UNITS[-1]))

    def of(self, seconds: np.ndarray) -> np.ndarray:
        return np.asarray(seconds, dtype=np.float64) / self.seconds


def log_axis(title: str, values: np.ndarray, *, air: float = 0.06) -> Axis:
    """A logarithmic axis over positive ``values``, with ``air`` of its length free at each end."""
    low, high = math.log10(float(values.min())), math.log10(float(values.max()))
    margin = max(air * (high - low), 0.06)
    low, high = low - margin, high + margin
    # A short axis may lie between two round values; plain steps divide it then.
    shown = _round_values(low, high) or [v for v in linear_ticks(10**low, 10**high) if 10**low <= v <= 10**high]
    return Axis(title, 10**low, 10**high, tuple((value, _plain(value)) for value in shown), log=True)


def share_axis(title: str, values: np.ndarray, *, air: float = 0.08) -> Axis:
    """A linear axis over shares in [0, 1], written as percentages; never beyond 0 and 100 % by more than its air."""
    low, high = float(values.min()), float(values.max())
    margin = max(air * (high - low), 0.004)
    low, high = max(low - margin, -margin), min(high + margin, 1.0 + margin)
    ticks = linear_ticks(low * 100, high * 100)
    return Axis(title, low, high, tuple((v / 100, f"{v:g} %") for v in ticks if 0 <= v <= 100))


def error_axis(title: str, errors: np.ndarray, unit: LossUnit) -> Axis:
    """A linear axis over errors, or losses, written in their ``unit``; it goes beyond 0 by its air at most."""
    least, most = (float(end) * unit.per_one for end in (errors.min(), errors.max()))
    margin = 0.08 * (most - least) or max(0.1 * most, 0.4)
    low, high = (least if least < 0 else max(least - margin, -margin)), most + margin
    shown = [v for v in linear_ticks(low, high) if v >= min(least, 0.0)]
    sign = " %" if unit.per_one == PERCENT.per_one else ""
    return Axis(
        title, low / unit.per_one, high / unit.per_one, tuple((v / unit.per_one, f"{v:g}{sign}") for v in shown)
    )


def log_share_axis(title: str, least: float) -> Axis:
    """A logarithmic axis of shares from ``least``, or a tenth when that is less, to 100 %."""
    floor = 0.8 * min(least, 0.1)
    shown = _round_values(math.log10(floor), 0.0)
    return Axis(title, floor, 1.25, tuple((value, f"{100 * value:g} %") for value in shown), log=True)


def linear_axis(title: str, values: np.ndarray, *, air: float = 0.06, suffix: str = "") -> Axis:
    """A linear axis over ``values``."""
    low, high = float(values.min()), float(values.max())
    margin = air * (high - low) or max(abs(high) * 0.1, 1e-9)
    low, high = low - margin, high + margin
    return Axis(title, low, high, tuple((v, f"{v:g}{suffix}") for v in linear_ticks(low, high)))


def linear_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers within [low, high], at most ``most``, at least two where the range allows."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def spaced_labels(x: np.ndarray, y: np.ndarray, texts: list[str], horizontal: Axis, vertical: Axis) -> tuple[str, ...]:
    """``texts`` with those emptied that would be written over an earlier one; the ends of the list come first."""
    up, left = _position(y, vertical), label_is_left(x, texts, horizontal)
    width = _CHARACTER * np.array([len(text) for text in texts])
    begins = _position(x, horizontal) - np.where(left, width, 0.0)
    order = sorted(range(len(texts)), key=lambda i: min(i, len(texts) - 1 - i))
    kept: list[int] = []
    for i in order:
        beside = (begins[i] > begins[k] + width[k] or begins[k] > begins[i] + width[i] for k in kept)
        if all(free or abs(up[i] - up[k]) > 0.06 for free, k in zip(beside, kept, strict=True)):
            kept.append(i)
    return tuple(text if i in kept else "" for i, text in enumerate(texts))


def label_is_left(x: np.ndarray, texts: Sequence[str], axis: Axis) -> np.ndarray:
    """bool [n]: whether a point's text is written on its left, as the plot ends before the text would on its right."""
    at, width = _position(x, axis), _CHARACTER * np.array([len(text) for text in texts])
    found: np.ndarray = (at + width > 1.0) & (at > 0.5)
    return found


def _round_values(low: float, high: float) -> list[float]:
    """Round values between 10**low and 10**high, more per decade the fewer decades there are."""
    steps = next(steps for widest, steps in _WITHIN_DECADE if high - low <= widest)
    decades = range(math.floor(low), math.ceil(high) + 1)
    candidates = [step * 10.0**decade for decade in decades for step in steps]
    return [value for value in candidates if low - 1e-9 <= math.log10(value) <= high + 1e-9]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:g}"


def _position(values: np.ndarray, axis: Axis) -> np.ndarray:
    """Where ``values`` lie on the axis, 0 to 1."""
    if axis.log:
        return np.log(values / axis.low) / math.log(axis.high / axis.low)
    return (values - axis.low) / (axis.high - axis.low)


def duration(seconds: float | None) -> str:
    """Three significant digits in the unit that fits; a dash for nothing."""
    if seconds is None or math.isnan(seconds):
        return "–"
    name, scale = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    return f"{_significant(seconds / scale)} {name}"


def percent(share: float | None, digits: int = 1) -> str:
    """``97.3 %``; a dash for nothing."""
    return "–" if share is None or math.isnan(share) else f"{share * 100:.{digits}f} %"


def file_name(text: str) -> str:
    """``text`` as the stem of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "plot"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
