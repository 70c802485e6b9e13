"""Figures as PNG, drawn with matplotlib; no display is needed."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator
from matplotlib.transforms import Bbox

from slotool.reports.figure import ALARM, FAINT, INK, Axis, Band, Curve, Figure, Limit

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
    """Save each figure in the new ``folder`` by its id; return the files."""
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
            path_effects=[withStroke(linewidth=3, foreground="white")],  # lines end before a letter
        )
        for x, y, label in zip(curve.x, curve.y, curve.labels, strict=False)
        if label
    ]


def _space(labels: Sequence[Annotation], axes: Axes) -> None:
    """Move labels without room to the left of their points, and remove overlapping ones; first and last win."""
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
