"""Choices of a policy: operating points and batch sizes, with known latency and accuracy."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.model import version_name
from slotool.errors import InputError
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import Conc
from slotool.scheduling.edf import DEADLINE_PASSED
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.tables import LatencyTable, OutcomeTable

# A deadline planned with the median would be missed by every second call.
PLANNING_QUANTILE = 0.95


class ControlSpace:
    """Points, cheapest first, and T(point, batch size) in µs as far as it is known (superserve, §4.1 and A.3.1).

    ``latency_us``: µs of a call by point and batch size. ``accuracy``: mean accuracy by point. Both may be partial or
    empty: a policy then makes no promise it cannot check. ``median_us``: µs of the median call, where ``latency_us``
    is a higher quantile of samples.
    Raises ``InputError`` when there are no points, or a figure belongs to none of them.
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        latency_us: Mapping[tuple[OperatingPoint, int], float] | None = None,
        accuracy: Mapping[OperatingPoint, float] | None = None,
        median_us: Mapping[tuple[OperatingPoint, int], float] | None = None,
    ):
        self.points = tuple(points)
        self._latency_us = dict(latency_us or {})
        self._median_us = dict(median_us or {})
        self._accuracy = dict(accuracy or {})
        if not self.points:
            raise InputError("a control space needs at least one operating point")
        strangers = ({point for point, _ in self._latency_us} | set(self._accuracy)) - set(self.points)
        if strangers:
            raise InputError(f"figures for {', '.join(sorted(map(str, strangers)))}, which is not among the points")
        # Parsed points of rules, so that no request parses them again.
        self._ensembles: dict[OperatingPoint, tuple[str, tuple[OperatingPoint, ...]]] = {}
        self._batch_sizes = {
            point: sorted(batch for at, batch in self._latency_us if at == point) for point in self.points
        }

    @classmethod
    def of_tables(
        cls,
        subject: str,
        points: Sequence[OperatingPoint],
        latency: LatencyTable | None = None,
        outcomes: OutcomeTable | None = None,
        *,
        quantile: float = PLANNING_QUANTILE,
        devices: Sequence[str] = (),
        **conditions: Any,
    ) -> ControlSpace:
        """Return the space of ``subject`` from measured (or predicted) tables.

        ``quantile`` of the samples stands for T, a predicted row's upper bound for a prediction. ``conditions``
        narrow the latency rows, e.g. ``threads=1``, and ``devices`` as in ``LatencyTable.of_devices``; of several rows
        left for a point and batch the slowest counts.
        Outcome versions are point keys or, for a family, plain version names. Raises ``TableError`` as ``of_devices``.
        """
        latency_us, median_us = (
            {} if latency is None else _latencies_us(subject, points, latency, share, devices, conditions)
            for share in (quantile, 0.5)
        )
        return cls(points, latency_us, {} if outcomes is None else _accuracies(points, outcomes), median_us)

    def latency_us(self, point: OperatingPoint, batch_size: int = 1) -> float | None:
        """Return µs of a call with ``batch_size`` examples, None when unknown.

        That of the next larger batch that was profiled; beyond the largest, that one's in proportion. Both are upper
        bounds, since latency grows with the batch, but less than in proportion (superserve, A.3.1, insight 1).
        Of an ensemble (``Rule.point``) of this space's versions: the worst case, in which all of them are consulted for
        every example.
        """
        batches = self._batch_sizes.get(point)
        if batches is None:
            return self._worst_case_us(point, batch_size)
        if not batches:
            return None
        at = bisect_left(batches, batch_size)
        if at < len(batches):
            return self._latency_us[point, batches[at]]
        return self._latency_us[point, batches[-1]] * batch_size / batches[-1]

    def median_us(self, point: OperatingPoint, batch_size: int = 1) -> float | None:
        """Return µs of the median call with ``batch_size`` examples, None where no samples of that size are known."""
        return self._median_us.get((point, batch_size))

    def with_accuracy(self, accuracy: Mapping[OperatingPoint, float]) -> ControlSpace:
        """Return the same latencies, with these accuracies."""
        return ControlSpace(self.points, self._latency_us, accuracy, self._median_us)

    def batch_sizes(self, point: OperatingPoint) -> tuple[int, ...]:
        """Return the batch sizes at which the latency of ``point`` is known, ascending."""
        return tuple(self._batch_sizes.get(point, ()))

    def call_sizes(self, point: OperatingPoint) -> tuple[int, ...]:
        """Return the ascending batch sizes of a call at ``point``, perhaps an ensemble of this space's versions.

        They reach up to the largest at which each version's latency is known; 1 alone if one has none.
        """
        versions = (point,) if point in self._batch_sizes else self._consulted(point)[1]
        sizes_of = [self._batch_sizes[version] or [1] for version in versions]
        largest = min((sizes[-1] for sizes in sizes_of), default=1)
        return tuple(sorted({1, *(size for sizes in sizes_of for size in sizes if size <= largest)}))

    def accuracy(self, point: OperatingPoint) -> float | None:
        """Return the mean accuracy at ``point``, None when unknown."""
        return self._accuracy.get(point)

    def fits(self, point: OperatingPoint, batch_size: int, slack_us: float) -> bool:
        """True if ``slack_us`` is left at all, and the point is not known to take longer."""
        return slack_us > 0 and (self.latency_us(point, batch_size) or 0.0) <= slack_us

    def too_slow(self, points: Iterable[OperatingPoint], batch_size: int, slack_us: float) -> str:
        """Return the sentence for when none of these points, whose latencies are known, fits."""
        if slack_us <= 0:
            return DEADLINE_PASSED
        fastest_us = min(self.latency_us(point, batch_size) or 0.0 for point in points)
        return f"the deadline would be missed: {fastest_us:.0f} µs are needed and {slack_us:.0f} µs are left"

    def require(self, point: OperatingPoint) -> OperatingPoint:
        """Return ``point``. Raises ``InputError`` if the space lacks it."""
        if point not in self.points:
            raise InputError(f"no operating point {point}; there are {', '.join(map(str, self.points))}")
        return point

    def _worst_case_us(self, ensemble: OperatingPoint, batch_size: int) -> float | None:
        kind, versions = self._consulted(ensemble)
        times_us = [time for version in versions if (time := self.latency_us(version, batch_size)) is not None]
        if not versions or len(times_us) < len(versions):
            return None
        return max(times_us) if kind == Conc.kind else sum(times_us)

    def _consulted(self, ensemble: OperatingPoint) -> tuple[str, tuple[OperatingPoint, ...]]:
        cached = self._ensembles.get(ensemble)
        if cached is None:
            cached = self._ensembles[ensemble] = self._versions_of(ensemble)
        return cached

    def _versions_of(self, ensemble: OperatingPoint) -> tuple[str, tuple[OperatingPoint, ...]]:
        """Return an ensemble's kind of policy and its points; none if some are unknown, or it is no ensemble."""
        if all(ensemble.get(name) is None for name in ("policy", "tree")):
            return "", ()
        policy, by_version = from_point(ensemble), {version_name(point): point for point in self.points}
        is_complete = set(policy.versions) <= by_version.keys()
        return policy.kind, tuple(by_version[name] for name in policy.versions) if is_complete else ()


def _latencies_us(
    subject: str,
    points: Sequence[OperatingPoint],
    table: LatencyTable,
    quantile: float,
    devices: Sequence[str],
    conditions: Mapping[str, Any],
) -> dict[tuple[OperatingPoint, int], float]:
    latency_us: dict[tuple[OperatingPoint, int], float] = {}
    # Compare keys, which round numbers: a k of sixteen digits changes by parsing.
    by_key = {point.key: point for point in points}
    rows = table.where(subject=subject, status="ok", **conditions).of_devices(devices).rows
    for row in rows.to_dict("records"):
        point = by_key.get(row["point"])
        if point is not None:
            cell = point, int(row["batch_size"])
            latency_us[cell] = max(latency_us.get(cell, 0.0), 1e6 * _upper(row, quantile))
    return latency_us


def _upper(row: Mapping[Any, Any], quantile: float) -> float:
    """Return the seconds to plan with: the samples' quantile, or a prediction's upper bound (for a median: itself)."""
    if row["predicted"] and len(row["samples_s"]) == 1 and quantile > 0.5 and not math.isnan(row["high_s"]):
        return float(row["high_s"])
    return float(np.quantile(row["samples_s"], quantile))


def _accuracies(points: Sequence[OperatingPoint], outcomes: OutcomeTable) -> dict[OperatingPoint, float]:
    accuracy = 1.0 - outcomes.matrix("error").mean(axis=0)
    return {point: float(accuracy[i]) for point, i in outcome_columns(points, outcomes).items()}


def outcome_columns(points: Sequence[OperatingPoint], outcomes: OutcomeTable) -> dict[OperatingPoint, int]:
    """Return the table's version for each point, by key or version name; others are left out."""
    at = {name: i for i, name in enumerate(outcomes.versions)}
    cached = {point: at.get(point.key, at.get(version_name(point))) for point in points}
    return {point: i for point, i in cached.items() if i is not None}


def errors_at(points: Sequence[OperatingPoint], outcomes: OutcomeTable) -> np.ndarray:
    """Return the error of each example at each point, or its ensemble: float64 [examples, points].

    Raises ``InputError`` for a point that the table has no version of.
    """
    at, errors = outcome_columns(points, outcomes), outcomes.matrix("error")
    return np.stack(
        [errors[:, at[point]] if point in at else from_point(point).replay(outcomes).error for point in points], axis=1
    )
