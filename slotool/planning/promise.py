"""What a fleet promises, and whether a simulation shows that it holds, with a stated confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from slotool.errors import ArgumentError, InputError
from slotool.scheduling.batching import ControlGrid
from slotool.scheduling.space import outcome_columns
from slotool.simulation import SimulationResult
from slotool.simulation.result import IN_TIME
from slotool.tables import OutcomeTable

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

    ``p99_us``: of all requests, infinite where more than a hundredth are never answered.
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


class Judge:
    """Says what a simulation shows of a promise. ``outcomes``: examples that the accuracies were estimated on, whose
    own sampling error then counts; None: the accuracies count as known."""

    def __init__(self, promise: Promise, grid: ControlGrid, outcomes: OutcomeTable | None = None):
        self.promise = promise
        self._correct: np.ndarray | None = None
        if outcomes is not None:
            at = outcome_columns(grid.points, outcomes)
            self._correct = 1 - outcomes.matrix("error")[:, [at[point] for point in grid.points]]

    def __call__(self, result: SimulationResult, counted: np.ndarray) -> Verdict:
        """The verdict over the requests that ``counted``, bool [n], names."""
        in_time, rows = result.status[counted] == IN_TIME, result.row[counted]
        took_us = (result.done_us - result.scenario.arrival_us)[counted]
        right = float(result.grid.accuracy[rows[in_time]].sum())
        calls = result.summary()
        return Verdict(
            float(in_time.mean()),
            attainment_at_least(in_time, self.promise.significance),
            right / max(1, int(in_time.sum())),
            self._accuracy_at_least(rows[in_time], result.grid),
            right / len(in_time),
            float(np.quantile(np.where(np.isnan(took_us), np.inf, took_us), 0.99, method="higher")),
            calls["utilisation"],
            calls["mean_batch"],
            calls["calls"],
        )

    def _accuracy_at_least(self, rows: np.ndarray, grid: ControlGrid) -> float:
        """Mean accuracy of the mix of points that ``rows`` name, less its sampling error on the examples."""
        if not len(rows):
            return 0.0
        shares = np.bincount(rows, minlength=len(grid.points)) / len(rows)
        if self._correct is None or not self.promise.accuracy:
            return float(shares @ grid.accuracy)
        each = self._correct @ shares
        margin = stats.t.ppf(1 - self.promise.significance, len(each) - 1) * stats.sem(each)
        return float(each.mean() - margin)


def attainment_at_least(in_time: np.ndarray, significance: float) -> float:
    """Lower bound of the share of requests in time, from bool ``in_time`` [n] in order of arrival.

    The lesser of two: Student's of the means of consecutive blocks, as misses come in bursts (batch means), and
    Clopper and Pearson's, which also bounds a share of 1.
    """
    count, met = len(in_time), int(in_time.sum())
    if not met:
        return 0.0
    exact = float(stats.beta.ppf(significance, met, count - met + 1))
    if count < 2 * BLOCKS:
        return exact
    means = np.array([block.mean() for block in np.array_split(in_time, BLOCKS)])
    margin = float(stats.t.ppf(1 - significance, BLOCKS - 1) * stats.sem(means))
    return min(exact, float(in_time.mean()) - margin)
