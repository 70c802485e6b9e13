"""A simulation over time: arrivals, answers, accuracy, batches and queue length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.simulation.result import IN_TIME, SimulationResult

BINS = 100


@dataclass(frozen=True)
class Dynamics:
    """Per bin of time, float64 [bins]; ``begin_s``: where it begins, all of them ``width_s`` long.

    ``arrived_per_s``, ``in_time_per_s``: by instants of arrival and of answer. ``accuracy``: mean over the points that
    served the queries whose call began in it; ``batch``: mean over these calls; NaN without any. ``waiting``: queries
    in the queue as it begins; one that was never served counts until its deadline.
    """

    begin_s: np.ndarray
    width_s: float
    arrived_per_s: np.ndarray
    in_time_per_s: np.ndarray
    accuracy: np.ndarray
    batch: np.ndarray
    waiting: np.ndarray


def dynamics(outcome: SimulationResult, bins: int = BINS) -> Dynamics:
    """Source: the system dynamics of superserve, §6. Raises ``InputError`` for no bins or no queries."""
    if bins < 1 or not len(outcome.scenario):
        raise InputError(f"dynamics need bins and queries; there are {bins} and {len(outcome.scenario)}")
    arrival_us, served = outcome.scenario.arrival_us, outcome.row >= 0
    left_us = np.where(served, outcome.started_us, outcome.scenario.deadline_us)
    ended_us = max(float(arrival_us[-1]), float(np.max(outcome.done_us[served], initial=0.0)), 1.0)
    edges_us = np.linspace(0.0, ended_us, bins + 1)
    width_s = ended_us / bins / 1e6

    def tally(instants_us: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.histogram(instants_us, edges_us, weights=weights)[0].astype(np.float64)

    began_us, batch = outcome.started_us[served], outcome.batch[served]
    begun, calls = tally(began_us), tally(began_us, 1.0 / batch)
    with np.errstate(invalid="ignore"):
        accuracy = tally(began_us, outcome.grid.accuracy[outcome.row[served]]) / begun
        mean_batch = begun / calls
    gone = np.searchsorted(np.sort(left_us), edges_us[:-1], side="right")
    return Dynamics(
        edges_us[:-1] / 1e6,
        width_s,
        tally(arrival_us) / width_s,
        tally(outcome.done_us[outcome.status == IN_TIME]) / width_s,
        accuracy,
        mean_batch,
        np.searchsorted(arrival_us, edges_us[:-1], side="right").astype(np.float64) - gone,
    )
