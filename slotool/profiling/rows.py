"""Rows of a campaign, and the pooling of rounds of one item into one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slotool import strict_json
from slotool.tables.latency import LATENCY_SCHEMA
from slotool.tables.rounds import USUAL_NOISE, median_interval, round_medians, rounds_agree
from slotool.timing.timer import StoppingRule, is_stable

Row = Mapping[str, Any]
# Subject, point, batch size, co-runners.
Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class _Parts:
    """Columns, with types, that planning and pooling of a campaign use."""

    subject: str
    point: str
    batch_size: int
    status: str
    content: str
    rounds: int
    discarded: int
    interrupted: bool
    stable: bool
    measured_at: float | None
    limit_s: float | None
    limit_bytes: float | None = None
    co_runners: str = ""
    samples_s: list[float] = field(default_factory=list)
    samples_per_round: list[int] = field(default_factory=list)
    solo_s: list[float] = field(default_factory=list)
    device_samples_s: list[float] = field(default_factory=list)


def check_row(row: Row) -> None:
    """Raise ``JsonError`` unless a row from outside can be planned with and pooled."""
    parts = strict_json.convert(row, _Parts)
    if parts.status == "ok" and (not parts.samples_s or ("solo_s" in row and not parts.solo_s)):
        raise strict_json.JsonError("status ok without samples")
    counts = parts.samples_per_round
    if sum(counts) != len(parts.samples_s) or min(counts, default=1) < 1 or len(counts) > max(parts.rounds, 0):
        raise strict_json.JsonError("samples_per_round does not fit the samples")


def key_of(row: Row) -> Key:
    """Return the key of a row, which is unique in a table."""
    return str(row["subject"]), str(row["point"]), int(row["batch_size"]), str(row.get("co_runners", ""))


def judged(row: Row, rule: StoppingRule) -> dict[str, Any]:
    """Return the row with ``stable`` and, with co-runners, its degradation, both computed from its samples.

    A row is stable if it has two rounds or more, which agree (``rounds_agree``), its samples give their median to ± the
    rule's precision, and none was interrupted. One round cannot show differences between rounds.
    """
    if row["status"] != "ok":
        return {**row, "stable": False}
    samples = np.asarray(row["samples_s"])
    enough = len(samples) >= rule.runs and not row["interrupted"] and is_stable(samples, rule.precision)
    verdict = {**row, "stable": bool(enough and rounds_agree(samples, row["samples_per_round"], rule.precision))}
    if len(row.get("solo_s", ())):
        colocated_s, solo_s = float(np.median(samples)), float(np.median(row["solo_s"]))
        verdict |= {"degradation_s": colocated_s - solo_s, "degradation_ratio": colocated_s / solo_s}
    return verdict


def pooled(first: Row, second: Row) -> dict[str, Any]:
    """Pool two rows of one key, to be ``judged``: all samples of both; one without samples is dropped."""
    if first["status"] != "ok" or second["status"] != "ok":
        return dict(first if first["status"] == "ok" else second)
    several = {
        column.name: _ROUNDS[column.rounds](column.name, first, second)
        for column in LATENCY_SCHEMA.columns
        if column.rounds != "first" and column.name in first and column.name in second
    }
    return {**first, **several}


def _mean(name: str, first: Row, second: Row) -> float | None:
    """Return the mean of a column over the rounds of both rows, the first's value if one has none."""
    if first[name] is None or second[name] is None:
        return first[name]
    rounds = first["rounds"], second["rounds"]
    return float((rounds[0] * first[name] + rounds[1] * second[name]) / sum(rounds))


def _remarks(name: str, first: Row, second: Row) -> str:
    return "; ".join(dict.fromkeys(part for row in (first, second) for part in str(row[name]).split("; ") if part))


# Values of two rows as one: ``Column.rounds``.
_ROUNDS: dict[str, Callable[[str, Row, Row], Any]] = {
    "all": lambda name, first, second: [*first[name], *second[name]],
    "any": lambda name, first, second: first[name] or second[name],
    "sum": lambda name, first, second: first[name] + second[name],
    "last": lambda name, _, second: second[name],
    "mean": _mean,
    "remarks": _remarks,
}


def by_key(rows: Iterable[Row], rule: StoppingRule) -> dict[Key, Row]:
    """Return one judged row per key, with rounds pooled in order."""
    pooled_rows: dict[Key, Row] = {}
    for row in rows:
        key = key_of(row)
        pooled_rows[key] = judged(pooled(pooled_rows[key], row) if key in pooled_rows else row, rule)
    return pooled_rows


def doubt(row: Row) -> float:
    """Return the relative error of an unstable row's median; 0 for a stable row, or one without samples.

    It is that of the samples, or the spread of the rounds, or for one round the usual spread.
    """
    if row["status"] != "ok" or row["stable"]:
        return 0.0
    samples = np.asarray(row["samples_s"])
    low, high = median_interval(samples)
    medians, middle = round_medians(samples, row["samples_per_round"]), float(np.median(samples))
    spread = float(np.ptp(medians)) / middle if len(medians) > 1 else USUAL_NOISE.scale
    return max((high - low) / middle, spread)
