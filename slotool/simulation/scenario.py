"""The scenario of a simulation: queries, their deadlines and options, workers and their deaths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slotool.errors import InputError

# A year: beyond it differences of instants lose their fractions.
MAX_INSTANT_US = 3.2e13


@dataclass(frozen=True)
class Scenario:
    """n queries of one example each, in order of arrival, and the workers that serve them.

    ``arrival_us``, ``deadline_us``: float64 [n], instants. ``min_accuracy``: float64 [n], 0 for none; ``priority``:
    int64 [n], 1 the most important, 0 the least; None where no query has one. ``death_us``: float64 [workers], ``inf``
    for one that lives. Raises ``InputError`` for NaN, arrivals that descend, are negative, not finite or beyond a year,
    a deadline not after its arrival, arrays of unequal length, or no worker.
    """

    arrival_us: np.ndarray
    deadline_us: np.ndarray
    death_us: np.ndarray = field(default_factory=lambda: np.full(1, np.inf))
    min_accuracy: np.ndarray | None = None
    priority: np.ndarray | None = None

    def __post_init__(self) -> None:
        arrivals = self.arrival_us
        for name in ("deadline_us", "min_accuracy", "priority"):
            given = getattr(self, name)
            if given is not None and len(given) != len(arrivals):
                raise InputError(f"{len(given)} values of {name} for {len(arrivals)} queries")
        if not np.isfinite(arrivals).all() or (len(arrivals) and arrivals[0] < 0) or (np.diff(arrivals) < 0).any():
            raise InputError("arrivals must be finite, not negative, and in ascending order")
        if not (self.deadline_us > arrivals).all():
            raise InputError("every deadline must lie after its query's arrival")
        for name in ("arrival_us", "deadline_us", "death_us", "min_accuracy", "priority"):
            given = getattr(self, name)
            if given is not None and (given.ndim != 1 or np.isnan(given).any()):
                raise InputError(f"{name} must be one row of numbers, none of them NaN")
        if len(arrivals) and arrivals[-1] > MAX_INSTANT_US:
            raise InputError(f"an arrival after {arrivals[-1]:g} µs; a simulation lasts at most a year")
        if not len(self.death_us):
            raise InputError("a simulation needs at least one worker")

    @classmethod
    def of(
        cls, times_s: np.ndarray, deadline_s: float | np.ndarray, workers: int = 1, death_s: tuple[float, ...] = ()
    ) -> Scenario:
        """Arrivals in seconds, each with ``deadline_s`` from its arrival; the first workers die at ``death_s``.

        Raises ``InputError``, also for more deaths than workers or a time that is not positive.
        """
        if workers < 1 or len(death_s) > workers:
            raise InputError(f"{len(death_s)} deaths among {workers} workers")
        if any(not time > 0 for time in death_s):
            raise InputError("a worker's death must be at a positive time")
        arrival_us = np.asarray(times_s, dtype=np.float64) * 1e6
        deaths = np.full(workers, np.inf)
        deaths[: len(death_s)] = np.asarray(death_s, dtype=np.float64) * 1e6
        return cls(arrival_us, arrival_us + np.asarray(deadline_s) * 1e6, deaths)

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def levels(self) -> np.ndarray:
        """float64 [n]: priorities as numbers that grow as importance falls, ``inf`` for none."""
        priority = np.zeros(len(self)) if self.priority is None else self.priority
        return np.where(priority == 0, np.inf, priority)

    @property
    def order(self) -> np.ndarray:
        """int64 [n]: each query's place when all are sorted as the queue sorts; empty when that is their order."""
        if self.priority is None and not (np.diff(self.deadline_us) < 0).any():
            return np.empty(0, dtype=np.int64)
        places: np.ndarray = np.empty(len(self), dtype=np.int64)
        places[np.lexsort((self.arrival_us, self.levels, self.deadline_us))] = np.arange(len(self))
        return places
