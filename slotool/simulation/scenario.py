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
