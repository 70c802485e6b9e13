"""What a fleet promises, and whether a simulation shows that it holds, with a stated confidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaincinv, stdtrit

from slotool.errors import ArgumentError, InputError
from slotool.scheduling.space import errors_at
from slotool.simulation import SimulationResult
from slotool.simulation.result import IN_TIME, Points
from slotool.simulation.tiers import TierResult
from slotool.tables import OperatingPoint, OutcomeTable

# Consecutive parts of the traffic whose means count as independent: requests of one burst are not.
BLOCKS = 20


@dataclass(frozen=True)
class Promise:
    """``attainment``: least share of requests answered within ``deadline_us``; ``accuracy``: least mean accuracy of
    these answers, 0 for none; ``confidence``: with which both are to hold.

    Raises ``ArgumentError`` for shares that are not within 0 and 1.
    """

    deadline_us: float
    attainment: float
    accuracy: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("attainment", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ArgumentError(name, f"{getattr(self, name):g} is not between 0 and 1")
        if not 0 <= self.accuracy <= 1:
            raise ArgumentError("min_accuracy", f"{self.accuracy:g} is not within 0 and 1")
        if not self.deadline_us > 0:
            raise ArgumentError("deadline_ms", f"{self.deadline_us / 1e3:g} is not above 0")

    @property
    def significance(self) -> float:
        """Of each part of the promise, so that all hold together (Bonferroni)."""
        return (1 - self.confidence) / (2 if self.accuracy else 1)

    def require_enough(self, requests: int) -> None:
        """Raises ``InputError`` where not even traffic without a miss would show the attainment."""
        least = math.ceil(math.log(self.significance) / math.log(self.attainment))
        if requests < least:
            raise InputError(
                f"{requests:,} arrivals cannot show an attainment of {self.attainment:g} at confidence "
                f"{self.confidence:g}, even without a miss; {least:,} can"
            )


@dataclass(frozen=True)
class Verdict:
    """Of one fleet under the traffic: means, and what holds at the promise's confidence (``…_at_least``).

    ``p99_us``: of all requests, infinite where more than a hundredth are never answered. ``version_calls``: of
    tolerance tiers, how often a request calls each version, on average over all that arrive; ``other_tier``: the share
    that is answered by a stricter tier or the best version, as its own tier's could have been late.
    """

    attainment: float
    attainment_at_least: float
    accuracy: float
    accuracy_at_least: float
    effective_accuracy: float
    p99_us: float
    utilisation: float
    mean_batch: float
    calls: int
    version_calls: Mapping[str, float] = field(default_factory=dict)
    other_tier: float = 0.0

    def misses(self, promise: Promise) -> list[str]:
        """What of the promise is not shown to hold; empty when all is."""
        found = []
        if self.attainment_at_least < promise.attainment:
            found.append("attainment")
        if self.accuracy_at_least < promise.accuracy:
            found.append("accuracy")
        return found

    def shortfall(self, promise: Promise) -> float:
        """By how much what is shown lies below the promise; 0 where it holds."""
        in_time, right = promise.attainment - self.attainment_at_least, promise.accuracy - self.accuracy_at_least
        return max(0.0, in_time) + max(0.0, right)


@dataclass(frozen=True)
class Part:
    """Requests that one pool of workers served: ``at``: int64 [m], their places in the traffic."""

    result: SimulationResult
    at: np.ndarray
    workers: int


class Judge:
    """Says what simulations show of a promise. ``outcomes``: examples that the accuracies were estimated on, whose
    own sampling error then counts; None: the accuracies count as known."""

    def __init__(self, promise: Promise, outcomes: OutcomeTable | None = None):
        self.promise, self._outcomes = promise, outcomes
        self._known: dict[tuple[OperatingPoint, ...], np.ndarray] = {}

    def __call__(self, parts: Sequence[Part], counted: np.ndarray) -> Verdict:
        """The verdict over the requests that ``counted``, bool [n], names."""
        in_time, right, took_us = np.zeros(len(counted), dtype=bool), np.zeros(len(counted)), np.empty(len(counted))
        mixes: list[tuple[Points, np.ndarray]] = []
        for part in parts:
            result, grid = part.result, part.result.grid
            met = result.status == IN_TIME
            in_time[part.at], took_us[part.at] = met, result.done_us - result.scenario.arrival_us
            right[part.at[met]] = result.right[met]
            answered = result.row[met & counted[part.at]]
            mixes.append((grid, np.bincount(answered, minlength=len(grid.points)).astype(np.float64)))
        total = max(1.0, sum(float(mix.sum()) for _, mix in mixes))
        mixes = [(grid, mix / total) for grid, mix in mixes]
        calls = sum(part.result.calls for part in parts)
        took_us = np.where(np.isnan(took_us), np.inf, took_us)[counted]
        accuracy = float(right[counted].sum()) / total
        busy = sum(part.workers * part.result.summary()["utilisation"] for part in parts if len(part.at))
        served = sum(int((part.result.batch > 0).sum()) for part in parts)
        return Verdict(
            float(in_time[counted].mean()),
            attainment_at_least(in_time[counted], self.promise.significance),
            accuracy,
            self._accuracy_at_least(mixes, accuracy),
            float(right[counted].mean()),
            float(np.quantile(took_us, 0.99, method="higher")),
            busy / sum(part.workers for part in parts),
            served / max(1, calls),
            calls,
            *_tiers(parts),
        )

    def _accuracy_at_least(self, mixes: Sequence[tuple[Points, np.ndarray]], accuracy: float) -> float:
        """Mean accuracy of the mix of points, or of the answers in time where that is lower, less its sampling error on
        the examples."""
        if not any(mix.any() for _, mix in mixes):
            return 0.0
        if self._outcomes is None or not self.promise.accuracy:
            return float(sum(mix @ grid.accuracy for grid, mix in mixes))
        each = np.sum([self._correct(grid, self._outcomes) @ mix for grid, mix in mixes], axis=0)
        margin = _margin(each, self.promise.significance)
        return min(float(each.mean()), accuracy) - margin

    def _correct(self, grid: Points, outcomes: OutcomeTable) -> np.ndarray:
        """float64 [examples, points]."""
        if grid.points not in self._known:
            self._known[grid.points] = 1 - errors_at(grid.points, outcomes)
        return self._known[grid.points]


def _tiers(parts: Sequence[Part]) -> tuple[dict[str, float], float]:
    """``version_calls`` and ``other_tier`` of a verdict."""
    calls: Counter[str] = Counter()
    requests = other = 0
    for part in parts:
        if isinstance(part.result, TierResult):
            calls.update(dict(zip(part.result.versions, part.result.version_calls.tolist(), strict=True)))
            requests += len(part.at)
            other += part.result.other_tier
    return {version: count / max(1, requests) for version, count in calls.items()}, other / max(1, requests)


def attainment_at_least(in_time: np.ndarray, significance: float) -> float:
    """Lower bound of the share of requests in time, from bool ``in_time`` [n] in order of arrival.

    The lesser of two: Student's of the means of consecutive blocks, as misses come in bursts (batch means), and
    Clopper and Pearson's, which also bounds a share of 1.
    """
    count, met = len(in_time), int(in_time.sum())
    if not met:
        return 0.0
    exact = float(betaincinv(met, count - met + 1, significance))
    if count < 2 * BLOCKS:
        return exact
    means = np.array([block.mean() for block in np.array_split(in_time, BLOCKS)])
    margin = _margin(means, significance)
    return min(exact, float(in_time.mean()) - margin)


def attainment_at_most(in_time: np.ndarray, significance: float) -> float:
    """Upper bound of the share of requests in time: what the lower bound of the misses' share leaves."""
    return 1.0 - attainment_at_least(~in_time, significance)


def _margin(values: np.ndarray, significance: float) -> float:
    """How far the mean of float64 ``values`` [n] is to be trusted to one side, by Student's t."""
    return float(stdtrit(len(values) - 1, 1 - significance) * values.std(ddof=1) / math.sqrt(len(values)))
