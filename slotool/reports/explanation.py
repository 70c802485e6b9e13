"""Where the time of predicted networks goes, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from slotool.predictors.trained.explanation import Explanation
from slotool.reports.figure import FAINT, PALETTE
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
