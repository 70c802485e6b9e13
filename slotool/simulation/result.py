"""Result of a simulation: the fate of every query, and summary figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from slotool.simulation.scenario import Scenario
from slotool.tables import OperatingPoint

WAITING, IN_TIME, LATE, EXPIRED, REJECTED = 0, 1, 2, 3, 4
# What a query's status is called once the simulation is over.
STATUSES = {IN_TIME: "in-time", LATE: "late", EXPIRED: "expired", REJECTED: "rejected"}


class Points(Protocol):
    """Operating points that answer, and their accuracy, float64 [points]."""

    @property
    def points(self) -> tuple[OperatingPoint, ...]: ...

    @property
    def accuracy(self) -> np.ndarray: ...


@dataclass(frozen=True)
class SimulationResult:
    """Per query: int8 ``status``; float64 ``started_us``, ``done_us`` (NaN when never served), ``row`` (int16) of the
    grid and ``batch`` (int16), how many were served together (-1 and 0 when never).

    ``EXPIRED``: the deadline came while it waited, or no worker was left. ``REJECTED``: the policy had no way to meet
    it. Both are drops. ``busy_us``: worker time spent, ``calls``: on how many calls.
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
        """float64 [n]: how accurate the answer to each query is expected to be; 0 where there is none."""
        expected: np.ndarray = np.where(self.row >= 0, self.grid.accuracy[self.row], 0.0)
        return expected

    @property
    def utility(self) -> float:
        """Sum of the accuracies of the answers in time (superserve, Eq. 1 and 2)."""
        return float(self.grid.accuracy[self.row[self.status == IN_TIME]].sum())

    def summary(self) -> dict[str, Any]:
        """Rates are over all queries. ``accuracy``: mean over those in time, NaN without any (superserve, §6.1);
        ``effective_accuracy``: a query not answered in time counts as wrong; ``utilisation``: of the workers alive."""
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
