"""The table of allowed losses, as ``build-tables`` and ``evaluate`` print it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.commands.display import duration, table

# Field of a row of ``assessment.aclo_sweep``, its heading, and how it is written.
_COLUMNS = (
    ("loss", "allowed", "{:.3f}".format),
    ("target", "target", "{:.4f}".format),
    ("mean_k", "mean k", "{:.4g}".format),
    ("accuracy", "accuracy", "{:.4f}".format),
    ("difference", "vs full", "{:+.4f}".format),
    ("standard_error", "± SE", "{:.4f}".format),
    ("latency_s", "latency", duration),
    ("fixed_k", "fixed k", "{:.4g}".format),
    ("fixed_accuracy", "its accuracy", "{:.4f}".format),
    ("same_accuracy_k", "k as accurate", "{:.4g}".format),
)


def loss_table(title: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Rows of ``assessment.aclo_sweep``; a column that no row has is left out."""
    columns = [column for column in _COLUMNS if any(column[0] in row for row in rows)]
    cells = [[write(row[name]) for name, _, write in columns] for row in rows]
    return table(title, [heading for _, heading, _ in columns], cells)
