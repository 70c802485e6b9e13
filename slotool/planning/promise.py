"""Promise of a fleet, and the verdict of a simulation on it, with a stated confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaincinv, stdtrit

from slotool.errors import ArgumentError, InputError
from slotool.rules.policies.points import from_point
from slotool.scheduling.space import errors_at
from slotool.simulation import SimulationResult
from slotool.simulation.scenario import IN_TIME, Points
from slotool.simulation.tiers import TierResult
from slotool.tables import OperatingPoint, OutcomeTable

# Consecutive parts of the traffic whose means count as independent: requests of one burst are not.
BLOCKS = 20


@dataclass(frozen=True)
class Promise:
    """Promise of ``attainment``, least share of requests answered within ``deadline_us``, and of ``accuracy``.

    ``accuracy``: least mean accuracy of these answers, 0 for none; ``confidence``: of both. Raises ``ArgumentError``
    for impossible shares.
    """

    deadline_us: float
    attainment: float
    accuracy: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("attainment", "confidence"):
            if not 0 < (share := getattr(self, name)) < 1:
                why = "; no traffic shows that none is ever late" if (name, share) == ("attainment", 1) else ""
                raise ArgumentError(name, f"{share:g} is not above 0 and below 1{why}{_in_percent(share)}")
        if not 0 <= self.accuracy <= 1:
            raise ArgumentError("min_accuracy", f"{self.accuracy:g} is not from 0 to 1{_in_percent(self.accuracy)}")
        if not self.deadline_us > 0:
            raise ArgumentError("deadline_ms", f"{self.deadline_us / 1e3:g} is not above 0")

    def significance(self, claims: int) -> float:
        """Return the significance of each of so many claims that hold together (Bonferroni)."""
        return (1 - self.confidence) / claims


def _in_percent(share: float) -> str:
    """Return what to type for a share that was given in per cent."""
    return f"; {share:g} % is {share / 100:g}" if 1 < share < 100 else ""


@dataclass(frozen=True)
class Verdict:
    """Figures of one fleet under the traffic: means, and bounds at the promise's confidence (``…_at_least``).

    ``accuracy_at_least``: None where accuracies count as known; ``accuracy`` then is what the promise is held against.
    ``p99_us``: of all requests, infinite where more than a hundredth are never answered. ``version_calls``: of
    tolerance tiers, how often a request calls each version, on average over all that arrive; ``other_tier``: the share
    that is answered by a stricter tier or the best version, as its own tier's could have been late. ``energy_j``:
    joules of a request, None where the latency table has none.
    """

    attainment: float
    attainment_at_least: float
    accuracy: float
    accuracy_at_least: float | None
    effective_accuracy: float
    p99_us: float
    utilisation: float
    mean_batch: float
    calls: int
    version_calls: Mapping[str, float] = field(default_factory=dict)
    other_tier: float = 0.0
    energy_j: float | None = None

    @property
    def shown_accuracy(self) -> float:
        """Accuracy that a promise is compared with."""
        return self.accuracy if self.accuracy_at_least is None else self.accuracy_at_least

    def misses(self, promise: Promise) -> list[str]:
        """Return the parts of the promise that are not shown to hold; empty when all are."""
        verdicts = []
        if self.attainment_at_least < promise.attainment:
            verdicts.append("attainment")
        if self.shown_accuracy < promise.accuracy:
            verdicts.append("accuracy")
        return verdicts

    def shortfall(self, promise: Promise) -> float:
        """Return by how much what is shown lies below the promise; 0 where it holds."""
        in_time, right = promise.attainment - self.attainment_at_least, promise.accuracy - self.shown_accuracy
        return max(0.0, in_time) + max(0.0, right)


def words_of(point: OperatingPoint) -> str:
    """Return the name of ``point`` for a reader: its key, or of one that names a routing policy its words."""
    is_ensemble = any(point.get(name) is not None for name in ("policy", "tree"))
    return from_point(point).words if is_ensemble else str(point)


@dataclass(frozen=True)
class Reach:
    """The most accurate of some points: its mean, and its bound as of ``Verdict``."""

    point: OperatingPoint
    accuracy: float
    at_least: float | None

    @property
    def shown(self) -> float:
        """Accuracy that a promise is compared with."""
        return self.accuracy if self.at_least is None else self.at_least

    def short_of(self, promise: Promise) -> str:
        """Say that the promised accuracy is out of reach."""
        name = words_of(self.point)
        bound = "" if self.at_least is None else f", at least {self.at_least:.4f} at this confidence"
        return f"nothing reaches an accuracy of {promise.accuracy:g}; the best, {name}, has {self.accuracy:.4f}{bound}"


class Judge:
    """Verdicts of simulations on a promise.

    ``outcomes``: examples that accuracies were estimated on, whose sampling error then counts beside the attainment's;
    None: the accuracies count as known.
    """

    def __init__(self, promise: Promise, outcomes: OutcomeTable | None = None):
        self.promise, self._outcomes = promise, outcomes
        # Correct each stated bound, also one without a promise: it is read as one.
        self.significance = promise.significance(1 if outcomes is None else 2)
        self._known: dict[tuple[OperatingPoint, ...], np.ndarray] = {}

    def require_enough(self, requests: int) -> None:
        """Raise ``InputError`` where not even traffic without a miss would show the attainment."""
        promise = self.promise
        least = math.ceil(math.log(self.significance) / math.log(promise.attainment))
        if requests < least:
            raise InputError(
                f"{requests:,} arrivals cannot show an attainment of {promise.attainment:g} at confidence "
                f"{promise.confidence:g}, even without a miss; {least:,} can"
            )

    def __call__(self, result: SimulationResult, counted: np.ndarray) -> Verdict:
        """Return the verdict over the requests that ``counted``, bool [n], names."""
        points, in_time = result.grid, result.status == IN_TIME
        right = np.where(in_time, result.right, 0.0)
        took_us = result.done_us - result.scenario.arrival_us
        took_us = np.where(np.isnan(took_us), np.inf, took_us)[counted]
        answered = np.bincount(result.row[in_time & counted], minlength=len(points.points)).astype(np.float64)
        total = max(1.0, float(answered.sum()))
        mix = answered / total
        # Avoid the rounding of a long sum, so that a known accuracy holds as promised.
        accuracy = float(mix @ points.accuracy) if self._outcomes is None else float(right[counted].sum()) / total
        return Verdict(
            float(in_time[counted].mean()),
            attainment_at_least(in_time[counted], self.significance),
            accuracy,
            self._accuracy_at_least(points, mix, accuracy),
            float(right[counted].mean()),
            float(np.quantile(took_us, 0.99, method="higher")),
            result.summary()["utilisation"],
            int((result.batch > 0).sum()) / max(1, result.calls),
            result.calls,
            *_tiers(result),
        )

    def most_accurate(self, points: Points) -> Reach:
        """Return the most accurate of these points."""
        reaches = []
        for at, (point, accuracy) in enumerate(zip(points.points, points.accuracy.tolist(), strict=True)):
            only = (np.arange(len(points.points)) == at).astype(np.float64)
            reaches.append(Reach(point, accuracy, self._accuracy_at_least(points, only, accuracy)))
        return max(reaches, key=lambda each: each.shown)

    def _accuracy_at_least(self, points: Points, mix: np.ndarray, accuracy: float) -> float | None:
        """Return the lower bound of the mean accuracy of the mix of points, from the examples; None if known.

        The answers in time may be worse than the mix, and then count.
        """
        if self._outcomes is None:
            return None
        if not mix.any():
            return 0.0
        each = self._correct(points, self._outcomes) @ mix
        return mean_at_least(each, self.significance, min(float(each.mean()), accuracy))

    def _correct(self, grid: Points, outcomes: OutcomeTable) -> np.ndarray:
        """Return float64 [examples, points]."""
        if grid.points not in self._known:
            self._known[grid.points] = 1 - errors_at(grid.points, outcomes)
        return self._known[grid.points]


def _tiers(result: SimulationResult) -> tuple[dict[str, float], float]:
    """Return ``version_calls`` and ``other_tier`` of a verdict."""
    if not isinstance(result, TierResult):
        return {}, 0.0
    requests = max(1, len(result.status))
    calls = zip(result.versions, result.version_calls.tolist(), strict=True)
    return {version: count / requests for version, count in calls}, result.other_tier / requests


def attainment_at_least(in_time: np.ndarray, significance: float) -> float:
    """Return a lower bound, 0 at least, of the share of requests in time: bool ``in_time`` [n] in order of arrival.

    The lesser of Clopper and Pearson's, which also bounds a share of 1, and Student's of the means of consecutive
    blocks, as misses come in bursts; of fewer than 40 requests the former alone.
    """
    count, met = len(in_time), int(in_time.sum())
    if not met:
        return 0.0
    exact = float(betaincinv(met, count - met + 1, significance))
    if count < 2 * BLOCKS:
        return exact
    means = np.array([block.mean() for block in np.array_split(in_time, BLOCKS)])
    return min(exact, max(0.0, float(in_time.mean()) - _margin(means, significance)))


def mean_at_least(values: np.ndarray, significance: float, mean: float) -> float:
    """Lower bound, from 0 on, of the ``mean`` of float64 ``values`` [n], none of them above 1.

    The lesser of Student's and Clopper and Pearson's of as many right answers, which also bounds values that are all
    alike; it is wide for values between 0 and 1, as none vary more than those that are one of the two.
    """
    count, right = len(values), mean * len(values)
    if right <= 0:
        return 0.0
    exact = float(betaincinv(right, count - right + 1, significance))
    if count < 2:
        return exact
    return max(0.0, min(exact, mean - _margin(values, significance)))


def attainment_at_most(in_time: np.ndarray, significance: float) -> float:
    """Upper bound of the share of requests in time: what the lower bound of the misses' share leaves."""
    return 1.0 - attainment_at_least(~in_time, significance)


def _margin(values: np.ndarray, significance: float) -> float:
    """Return how far the mean of float64 ``values`` [n] is to be trusted to one side, by Student's t."""
    return float(stdtrit(len(values) - 1, 1 - significance) * values.std(ddof=1) / math.sqrt(len(values)))
