"""Rows of a campaign: their columns beside the schema's, and how the visits to one item become one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slotool.profiling.timer import StoppingRule, is_stable
from slotool.tables.statistics import median_interval

Row = Mapping[str, Any]
# Subject, point, batch size, co-runners.
Key = tuple[str, str, int, str]

# With what a row without samples holds. Samples are means over blocks of calls_per_sample calls; content identifies
# what the name stood for; visits counts the times an item was come back to; discarded counts samples measured again
# because others disturbed them, disturbed says that they did not let off; stable that the median of all visits is
# sure to the precision asked for.
EXTRA_COLUMNS: Mapping[str, Any] = {
    "content": "",
    "calls_per_sample": 0,
    "open_s": None,
    "prepare_s": None,
    "cache": "warm",
    "affinity": "",
    "visits": 1,
    "discarded": 0,
    "disturbed": False,
    "stable": False,
    "measured_at": None,
}
_SAMPLES = ("samples_s", "solo_s", "device_samples_s")


def key_of(row: Row) -> Key:
    """What a row is about; a table has one row of each."""
    return str(row["subject"]), str(row["point"]), int(row["batch_size"]), str(row.get("co_runners", ""))


def judged(row: Row, rule: StoppingRule) -> dict[str, Any]:
    """The row with ``stable`` and, beside co-runners, its degradation, as its samples have it."""
    if row["status"] != "ok":
        return {**row, "stable": False}
    samples = np.asarray(row["samples_s"])
    enough = len(samples) >= rule.runs and not row["disturbed"]
    found = {**row, "stable": bool(enough and is_stable(samples, rule.precision))}
    if "solo_s" in row:
        together_s, solo_s = float(np.median(samples)), float(np.median(row["solo_s"]))
        found |= {"degradation_s": together_s - solo_s, "degradation_ratio": together_s / solo_s}
    return found


def pooled(first: Row, second: Row) -> dict[str, Any]:
    """Two rows of one key as one, to be ``judged``: all samples of both. One without samples gives way."""
    if first["status"] != "ok" or second["status"] != "ok":
        return dict(first if first["status"] == "ok" else second)
    samples = {name: [*first[name], *second[name]] for name in _SAMPLES if name in first and name in second}
    return {
        **first,
        **samples,
        "visits": first["visits"] + second["visits"],
        "discarded": first["discarded"] + second["discarded"],
        "disturbed": first["disturbed"] or second["disturbed"],
        "measured_at": second["measured_at"],
    }


def by_key(rows: Iterable[Row], rule: StoppingRule) -> dict[Key, Row]:
    """One judged row per key, the visits pooled in order."""
    found: dict[Key, Row] = {}
    for row in rows:
        key = key_of(row)
        found[key] = judged(pooled(found[key], row) if key in found else row, rule)
    return found


def doubt(row: Row) -> float:
    """Relative width of the median's interval where the row is not stable, 0 where it is or has no samples."""
    if row["status"] != "ok" or row["stable"]:
        return 0.0
    samples = np.asarray(row["samples_s"])
    low, high = median_interval(samples)
    return (high - low) / float(np.median(samples))
