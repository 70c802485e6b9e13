"""Plots of predicted networks: where their time goes, and latency, throughput and memory over one fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator

from slotool.predictors.trained.explanation import Explanation
from slotool.reports.figure import ALARM, FAINT, PALETTE
from slotool.reports.plots import DOTS_PER_INCH, STYLE

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
