"""A control grid from tables, and the samples behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError
from slotool.printable import name_list
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable

# Accuracies that differ by less are one, written with other digits.
MAX_EQUAL_ACCURACY = 1e-6


@dataclass(frozen=True)
class Profile:
    """A subject's ``grid``, and per point and batch size the measured µs it was planned from, and joules of a call."""

    subject: str
    grid: ControlGrid
    samples_us: dict[tuple[OperatingPoint, int], np.ndarray]
    energy_j: Mapping[tuple[OperatingPoint, int], float] = field(default_factory=dict)

    def request_j(self, points: Sequence[OperatingPoint], row: np.ndarray, batch: np.ndarray) -> float | None:
        """Return the mean joules of a request; None unless they are known of each point and batch size.

        Args:
            points: Operating points.
            row: Point of each request, int [n] into ``points``.
            batch: Size of the batch that it was in, int [n]. A size that was not measured counts as the next larger.
        """
        if not self.energy_j:
            return None
        cells = [[self.energy_j.get((point, int(size)), np.nan) for size in self.grid.sizes] for point in points]
        joules = np.array(cells)[row, np.searchsorted(self.grid.sizes, batch)] / batch
        return float(joules.mean()) if len(joules) and np.isfinite(joules).all() else None


def read_profile(
    latency: LatencyTable,
    outcomes: OutcomeTable | None = None,
    *,
    subject: str | None = None,
    quantile: float = PLANNING_QUANTILE,
    devices: Sequence[str] = (),
    **conditions: Any,
) -> Profile:
    """Return the profile of ``subject`` (may be left out when the table has but one).

    Accuracies come from ``outcomes``, or from a column ``accuracy`` of the latency table, so that one CSV of point,
    batch size, samples and accuracy is enough. ``conditions`` narrow the rows, e.g. ``threads=1``, and ``devices`` as
    in ``LatencyTable.of_devices``; rows with co-runners are left out. Raises ``InputError``, also for what
    ``ControlGrid`` rejects.
    """
    selected, subject = _rows_of(latency, subject, devices, conditions)
    rows = selected.rows
    points = [OperatingPoint.parse(key) for key in dict.fromkeys(rows["point"])]
    space = ControlSpace.of_tables(subject, points, selected, outcomes, quantile=quantile, devices=devices)
    if outcomes is None and "accuracy" in rows:
        known_of = _accuracies(rows)
        space = space.with_accuracy({point: known_of[point.key] for point in points if point.key in known_of})
    return Profile(subject, ControlGrid(space), _samples_us(rows), _energy_j(rows))


def read_samples(
    latency: LatencyTable, *, subject: str | None = None, devices: Sequence[str] = (), **conditions: Any
) -> tuple[str, dict[tuple[OperatingPoint, int], np.ndarray]]:
    """Return the subject, and the µs measured of it per point and batch size; as ``read_profile``."""
    selected, subject = _rows_of(latency, subject, devices, conditions)
    return subject, _samples_us(selected.rows)


def _rows_of(
    latency: LatencyTable, subject: str | None, devices: Sequence[str], conditions: dict[str, Any]
) -> tuple[LatencyTable, str]:
    """Return the rows of ``subject``, called by id or name, or of the only one, and its id."""
    solo = latency.where(status="ok", co_runners="", **conditions)
    names = dict(zip(solo.rows["subject"], solo.rows.get("name", solo.rows["subject"]), strict=True))
    selected = [key for key in names if subject in (None, key)] or [key for key in names if subject == names[key]]
    if len(selected) != 1:
        listed = selected if subject and selected else sorted(name or key for key, name in names.items())
        wrong = "" if subject is None else f"{len(selected) or 'no'} subjects are called {subject!r}; "
        available = name_list(listed, 8) or "no rows of this kind"
        raise InputError(f"{wrong}name a subject with --subject; the latency table holds {available}")
    return solo.where(subject=selected[0]).of_devices(devices), selected[0]


def _samples_us(rows: pd.DataFrame) -> dict[tuple[OperatingPoint, int], np.ndarray]:
    samples: dict[tuple[OperatingPoint, int], list[np.ndarray]] = {}
    for key, size, taken_s in zip(rows["point"], rows["batch_size"], rows["samples_s"], strict=True):
        samples.setdefault((OperatingPoint.parse(key), int(size)), []).append(1e6 * np.asarray(taken_s))
    return {cell: np.concatenate(parts) for cell, parts in samples.items()}


def _energy_j(rows: pd.DataFrame) -> dict[tuple[OperatingPoint, int], float]:
    if "energy_j" not in rows:
        return {}
    means = rows.dropna(subset="energy_j").groupby(["point", "batch_size"], as_index=False)["energy_j"].mean()
    cells = zip(means["point"], means["batch_size"], means["energy_j"], strict=True)
    return {(OperatingPoint.parse(key), int(size)): float(joules) for key, size, joules in cells}


def _accuracies(rows: pd.DataFrame) -> dict[str, float]:
    """Return known accuracies by point. Raises ``InputError`` if rows of a point differ, as batches cannot matter."""
    selected = rows.assign(accuracy=_numbers(rows["accuracy"])).groupby("point")["accuracy"]
    for key, low, high in zip(selected.min().index, selected.min(), selected.max(), strict=True):
        if high - low > MAX_EQUAL_ACCURACY:
            raise InputError(f"rows of point {key} have different accuracies, {low:.6g} to {high:.6g}; a point has one")
    return {str(key): float(accuracy) for key, accuracy in selected.min().dropna().items()}


def _numbers(accuracy: pd.Series) -> pd.Series:
    """Return accuracies as floats, NaN for an empty cell, which another row of its point may fill."""
    filled = accuracy.replace("", None)
    numbers = pd.to_numeric(filled, errors="coerce")
    wrong = filled[filled.notna() & numbers.isna()]
    if len(wrong):
        raise InputError(f"accuracy {wrong.iloc[0]!r} of the profile is no number")
    return numbers
