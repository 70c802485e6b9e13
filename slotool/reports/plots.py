"""Figures and predicted networks as PNG, drawn with matplotlib; no display is needed."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator
from matplotlib.transforms import Bbox

from slotool.predictors.trained.explanation import Explanation
from slotool.reports.figure import ALARM, FAINT, INK, PALETTE, Axis, Band, Curve, Figure, Limit

DOTS_PER_INCH = 160
# Letters of the legend's font in a line, of which a curve's sign takes six.
LEGEND_LETTERS = 120
# Points between a point and its label; share of an axis below 0.
LABEL_GAP, MARGIN = 7, 0.02
# Ticks within a decade, fewer as more decades are shown.
STEPS = ((1.0, (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)), (3.2, (1.0, 2.0, 5.0)), (np.inf, (1.0,)))
STYLE: Any = {
    # Names come from files: a dollar sign in one is no formula.
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8a94a0",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
}
_LINES = {"line": "-", "dashes": "--", "dots and line": "-", "steps": "-", "dots and steps": "-", "dots": ""}


def save_png(figure: Figure, path: Path) -> None:
    """Draw ``figure`` into the PNG file ``path``."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; the remark would print it on the terminal as it is.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        draw(figure).savefig(path, format="png")


def draw(figure: Figure) -> Canvas:
    """Return ``figure`` drawn, with its title above and its caption below."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        canvas = Canvas(figsize=(7.2, 7.0) if figure.square else (8.4, 5.4), dpi=DOTS_PER_INCH, layout="constrained")
        axes = canvas.add_subplot()
        for band in figure.bands:
            _draw_band(axes, band)
        for limit in figure.limits:
            _draw_limit(axes, limit)
        labels = [label for curve in figure.curves for label in _draw_curve(axes, curve)]
        _set_axis(axes, figure.x, "x")
        _set_axis(axes, figure.y, "y")
        if figure.square:
            axes.set_box_aspect(1)
            ends = (*axes.get_xlim(), *axes.get_ylim())
            axes.set(xlim=(min(ends), max(ends)), ylim=(min(ends), max(ends)))
        names = axes.get_legend_handles_labels()[1]
        columns = min(6, max(1, LEGEND_LETTERS // (max(map(len, names), default=0) + 6)))
        pad = 10 + 16 * math.ceil(len(names) / columns)
        axes.set_title(figure.title, loc="left", fontsize=13, fontweight="bold", pad=pad)
        if len(names) > 1:
            place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
            axes.legend(frameon=False, fontsize=9, ncols=columns, handlelength=1.6, columnspacing=1.4, **place)
        canvas.supxlabel("\n".join(textwrap.wrap(figure.caption, 98)), fontsize=9, color="#4a5561", x=0.02, ha="left")
        canvas.draw_without_rendering()
        _space(labels, axes)
    return canvas


def save_plots(figures: Iterable[Figure], folder: Path, progress: Callable[[], None] = lambda: None) -> list[Path]:
    """``save_png`` each into ``folder``, which is made; the files, named by the figures' ids."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures:
        paths.append(folder / f"{figure.id}.png")
        save_png(figure, paths[-1])
        progress()
    return paths


def _draw_curve(axes: Axes, curve: Curve) -> list[Annotation]:
    """Draw ``curve``; return its labels."""
    reference = curve.style == "dashes"
    dots = "dots" in curve.style
    dense = dots and len(curve.x) > 60
    axes.plot(
        curve.x,
        curve.y,
        color=curve.paint,
        linestyle=_LINES[curve.style],
        linewidth=1.3 if reference else 6.0 if curve.wide else 1.9,
        drawstyle="steps-post" if "steps" in curve.style else "default",
        marker="o" if dots else "",
        markersize=3.2 if dense else 9.5 if curve.wide else 6.5,
        alpha=0.6 if dense else 0.4 if curve.wide else 1.0,
        markeredgewidth=0,
        label=curve.name if curve.in_legend else "_",
        zorder=2 if reference else 3,
    )
    if curve.error is not None:
        axes.errorbar(curve.x, curve.y, yerr=curve.error, fmt="none", ecolor=curve.paint, elinewidth=1.1, capsize=2.5)
    return [
        axes.annotate(
            label,
            (float(x), float(y)),
            xytext=(LABEL_GAP, 4 if curve.labels_above else -4),
            textcoords="offset points",
            fontsize=8.5,
            va="bottom" if curve.labels_above else "top",
            in_layout=False,
            zorder=5,
        )
        for x, y, label in zip(curve.x, curve.y, curve.labels, strict=False)
    ]


def _space(labels: Sequence[Annotation], axes: Axes) -> None:
    """Write labels that the plot has no room for on the left of their points, and remove those that would be written
    over another: the first and the last come first."""
    boxes: list[Bbox] = []
    for at in sorted(range(len(labels)), key=lambda at: min(at, len(labels) - 1 - at)):
        label = labels[at]
        if label.get_window_extent().x1 > axes.bbox.x1:
            label.set(horizontalalignment="right", position=(-LABEL_GAP, label.get_position()[1]))
        box = label.get_window_extent()
        if box.count_overlaps(boxes):
            label.remove()
        else:
            boxes.append(box)


def _draw_band(axes: Axes, band: Band) -> None:
    axes.fill_between(band.x, band.low, band.high, color=FAINT, alpha=0.75, linewidth=0, label=band.name, zorder=1)


def _draw_limit(axes: Axes, limit: Limit) -> None:
    axes.axvline(limit.x, color=ALARM, linewidth=1.6, linestyle=(0, (5, 3)), zorder=2)
    axes.annotate(
        limit.text,
        (limit.x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-5, -4),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        color=ALARM,
        fontsize=9,
    )


def _set_axis(axes: Axes, axis: Axis, which: str) -> None:
    axes.set(**{f"{which}scale": "log" if axis.log else "linear", f"{which}label": axis.title})
    drawn = axes.xaxis if which == "x" else axes.yaxis
    if axis.ticks:
        drawn.set_ticks(np.array([value for value, _ in axis.ticks]), [text for _, text in axis.ticks])
    else:
        drawn.set_major_formatter(lambda value, _: axis.written(value))
    if not axis.log:
        # Counts, times and shares are not negative.
        low, high = drawn.get_view_interval()
        if low < 0 <= drawn.get_data_interval()[0]:
            axes.set(**{f"{which}lim": (-MARGIN * (high - low), high)})
        return
    if not axis.ticks:
        low, high = np.log10(drawn.get_view_interval())
        drawn.set_major_locator(LogLocator(subs=next(steps for most, steps in STEPS if high - low <= most)))
    drawn.set_ticks([], minor=True)


# Types with a colour of their own; all others share the last.
MAX_TYPES = len(PALETTE) - 1
OTHERS = "others"


def save_explanations(found: Sequence[Explanation], path: Path) -> None:
    """One bar a network into the PNG file ``path``, its parts in milliseconds by type of operator."""
    seconds = [{name: s for name, (_, s) in each.by_type().items()} for each in found]
    totals: dict[str, float] = {}
    for each in seconds:
        for name, value in each.items():
            totals[name] = totals.get(name, 0.0) + value
    first = sorted(totals, key=lambda name: -totals[name])[:MAX_TYPES]
    parts = {name: np.array([each.get(name, 0.0) for each in seconds]) for name in first}
    if len(totals) > len(first):
        parts[OTHERS] = np.array([sum(s for name, s in each.items() if name not in first) for each in seconds])
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(8.4, 1.8 + 0.45 * len(found)), dpi=DOTS_PER_INCH, layout="constrained")
        axes = canvas.add_subplot()
        left, rows = np.zeros(len(found)), np.arange(len(found))
        for colour, (name, values) in enumerate(parts.items()):
            axes.barh(rows, 1e3 * values, left=1e3 * left, color=PALETTE[colour], label=name, edgecolor=FAINT)
            left += values
        axes.set_yticks(rows, [each.graph.name or each.graph.id for each in found])
        axes.invert_yaxis()
        axes.set(xlabel="predicted latency, ms")
        canvas.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
        canvas.savefig(path, format="png")


RATE = "throughput, examples/s"
PANELS = ("latency, ms", RATE, "memory of weights and outputs, MB")


@dataclass(frozen=True)
class SweepCurve:
    """Of one network: ``values`` [n], and float64 [n] each, NaN where unknown: latency and its interval in seconds,
    examples per second, bytes of weights and outputs."""

    values: np.ndarray
    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    throughput: np.ndarray
    memory_bytes: np.ndarray


def save_sweep(curves: Mapping[str, SweepCurve], fact: str, path: Path, slo_s: float | None = None) -> None:
    """Three panels into the PNG file ``path``, of latency with a line at ``slo_s``; axes are logarithmic but that of
    throughput."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(10.5, 3.9), dpi=DOTS_PER_INCH, layout="constrained")
        panels: Sequence[Any] = canvas.subplots(1, len(PANELS))
        for number, (name, curve) in enumerate(curves.items()):
            colour = PALETTE[number % len(PALETTE)]
            panels[0].fill_between(curve.values, 1e3 * curve.low_s, 1e3 * curve.high_s, color=colour, alpha=0.2, lw=0)
            columns = (1e3 * curve.latency_s, curve.throughput, curve.memory_bytes / 1e6)
            for axes, column in zip(panels, columns, strict=True):
                axes.plot(curve.values, column, "o-", color=colour, label=name, markersize=4)
        if slo_s is not None:
            panels[0].axhline(1e3 * slo_s, color=ALARM, linestyle="--", linewidth=1.2)
        ticks = sorted({int(value) for curve in curves.values() for value in curve.values})
        for axes, title in zip(panels, PANELS, strict=True):
            axes.set(xlabel=fact, xscale="log", yscale="linear" if title == RATE else "log")
            axes.set_title(title, loc="left", fontsize=11)
            if title == RATE:
                axes.set_ylim(bottom=0)
            else:
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_xticks(_apart(ticks), [str(value) for value in _apart(ticks)])
            axes.minorticks_off()
        names = panels[0].get_legend_handles_labels()
        canvas.legend(*names, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
        canvas.savefig(path, format="png")


def _apart(ticks: Sequence[int], most: int = 7) -> list[int]:
    """Some of the values, so that their texts do not touch."""
    return list(ticks[:: -(-len(ticks) // most)])
