"""Scenario of a simulation (queries, deadlines, workers and their deaths), and its result: the fate of every query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from slotool.errors import InputError
from slotool.printable import counted
from slotool.tables import OperatingPoint

# A year: beyond it differences of instants lose their fractions.
MAX_INSTANT_US = 3.2e13


@dataclass(frozen=True)
class Scenario:
    """Queries of one example each, n in order of arrival, and the workers that serve them.

    ``arrival_us``, ``deadline_us``: float64 [n], instants, each ascending. ``death_us``: float64 [workers], ``inf`` for
    one that lives. Raises ``InputError`` for NaN, instants that descend, arrivals that are negative, not finite or
    beyond a year, a deadline not after its arrival, arrays of unequal length, or no worker.
    """

    arrival_us: np.ndarray
    deadline_us: np.ndarray
    death_us: np.ndarray = field(default_factory=lambda: np.full(1, np.inf))

    def __post_init__(self) -> None:
        arrivals = self.arrival_us
        if len(self.deadline_us) != len(arrivals):
            raise InputError(f"{len(self.deadline_us)} values of deadline_us for {len(arrivals)} queries")
        if not np.isfinite(arrivals).all() or (len(arrivals) and arrivals[0] < 0) or (np.diff(arrivals) < 0).any():
            raise InputError("arrivals must be finite, not negative, and in ascending order")
        if not (self.deadline_us > arrivals).all():
            raise InputError("every deadline must lie after its query's arrival")
        for name in ("arrival_us", "deadline_us", "death_us"):
            values = getattr(self, name)
            if values.ndim != 1 or np.isnan(values).any():
                raise InputError(f"{name} must be one row of numbers, none of them NaN")
        if (np.diff(self.deadline_us) < 0).any():
            raise InputError("deadlines must be in the order of the arrivals")
        if len(arrivals) and arrivals[-1] > MAX_INSTANT_US:
            raise InputError(f"an arrival after {arrivals[-1]:g} µs; a simulation lasts at most a year")
        if not len(self.death_us):
            raise InputError("a simulation needs at least one worker")

    @classmethod
    def of(
        cls, times_s: np.ndarray, deadline_s: float | np.ndarray, workers: int = 1, death_s: tuple[float, ...] = ()
    ) -> Scenario:
        """Return a scenario of arrivals in seconds, due ``deadline_s`` later; the first workers die at ``death_s``.

        Raises ``InputError``, also for more deaths than workers or a time that is not positive.
        """
        if workers < 1 or len(death_s) > workers:
            raise InputError(f"{counted(len(death_s), 'death')} among {counted(workers, 'worker')}")
        if any(not time > 0 for time in death_s):
            raise InputError("a worker's death must be at a positive time")
        arrival_us = np.asarray(times_s, dtype=np.float64) * 1e6
        deaths = np.full(workers, np.inf)
        deaths[: len(death_s)] = np.asarray(death_s, dtype=np.float64) * 1e6
        return cls(arrival_us, arrival_us + np.asarray(deadline_s) * 1e6, deaths)

    def __len__(self) -> int:
        return len(self.arrival_us)


WAITING, IN_TIME, LATE, EXPIRED, REJECTED = 0, 1, 2, 3, 4
# Names of a query's final status.
STATUSES = {IN_TIME: "in-time", LATE: "late", EXPIRED: "expired", REJECTED: "rejected"}


class Points(Protocol):
    """Operating points that answer, and their accuracy, float64 [points]."""

    @property
    def points(self) -> tuple[OperatingPoint, ...]: ...

    @property
    def accuracy(self) -> np.ndarray: ...


@dataclass(frozen=True)
class SimulationResult:
    """Results by query: int8 ``status``; float64 ``started_us``, ``done_us``; int16 ``row`` and ``batch`` size.

    A query never served has NaN, NaN, -1 and 0. ``EXPIRED``: the deadline passed in the queue, or no worker was left.
    ``REJECTED``: the policy had no way to meet it. Both are drops. ``busy_us``: worker time of all ``calls``.
    """

    grid: Points
    scenario: Scenario
    status: np.ndarray
    started_us: np.ndarray
    done_us: np.ndarray
    row: np.ndarray
    batch: np.ndarray
    busy_us: float
    calls: int

    @property
    def right(self) -> np.ndarray:
        """Expected accuracy of each answer, float64 [n]; 0 without one."""
        return np.where(self.row >= 0, self.grid.accuracy[self.row], 0.0)

    @property
    def utility(self) -> float:
        """Sum of the accuracies of the answers in time (superserve, Eq. 1 and 2)."""
        return float(self.grid.accuracy[self.row[self.status == IN_TIME]].sum())

    def summary(self) -> dict[str, Any]:
        """Return rates over all queries, accuracy, effective accuracy and utilisation.

        ``accuracy``: mean over those in time, NaN without any (superserve, §6.1); ``effective_accuracy``: a query not
        answered in time counts as wrong; ``utilisation``: of the workers alive.
        """
        count = len(self.status)
        in_time = int((self.status == IN_TIME).sum())
        tally = {name: int((self.status == code).sum()) for code, name in STATUSES.items() if code != IN_TIME}
        return {
            "queries": count,
            "attainment": in_time / count,
            "accuracy": self.utility / in_time if in_time else float("nan"),
            "effective_accuracy": self.utility / count,
            **tally,
            "drops": tally["expired"] + tally["rejected"],
            "mean_batch": float((self.status != 0)[self.batch > 0].sum() / self.calls) if self.calls else 0.0,
            "utilisation": self.busy_us / self._alive_us(),
            "calls": self.calls,
        }

    def _alive_us(self) -> float:
        deaths = self.scenario.death_us
        # A worker may have died at work that nobody finished.
        at_work = deaths[deaths <= self.scenario.deadline_us.max()]
        ended_us = max(
            self.scenario.arrival_us[-1],
            np.max(self.done_us[self.batch > 0], initial=1.0),
            np.max(at_work, initial=1.0),
        )
        return float(np.minimum(deaths, ended_us).sum())
