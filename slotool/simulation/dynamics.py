"""A simulation over time: arrivals, answers, accuracy, batches and queue length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.simulation.query_log import QueryLog
from slotool.simulation.result import IN_TIME, STATUSES, SimulationResult

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
    return _over_time(
        outcome.scenario.arrival_us,
        outcome.scenario.deadline_us,
        np.where(outcome.row >= 0, outcome.started_us, np.nan),
        outcome.done_us,
        outcome.status == IN_TIME,
        outcome.right,
        outcome.batch,
        bins,
    )


def logged_dynamics(log: QueryLog, policy: str, bins: int = BINS) -> Dynamics:
    """Return dynamics of logged queries. Raises ``InputError`` for no bins, ``TableError`` for an unknown policy."""
    rows = log.of_policy(policy)
    seconds = {name: rows[name].to_numpy(np.float64) for name in ("arrival_s", "deadline_s", "started_s", "done_s")}
    return _over_time(
        1e6 * seconds["arrival_s"],
        1e6 * (seconds["arrival_s"] + seconds["deadline_s"]),
        1e6 * seconds["started_s"],
        1e6 * seconds["done_s"],
        (rows["status"] == STATUSES[IN_TIME]).to_numpy(),
        rows["accuracy"].to_numpy(np.float64),
        rows["batch_size"].to_numpy(),
        bins,
    )


def _over_time(
    arrival_us: np.ndarray,
    deadline_us: np.ndarray,
    started_us: np.ndarray,
    done_us: np.ndarray,
    in_time: np.ndarray,
    accuracy: np.ndarray,
    batch: np.ndarray,
    bins: int,
) -> Dynamics:
    """All [n], a value a query; ``started_us`` is NaN for one that was never served."""
    if bins < 1 or not len(arrival_us):
        raise InputError(f"dynamics need bins and queries; there are {bins} and {len(arrival_us)}")
    served = np.isfinite(started_us)
    left_us = np.where(served, started_us, deadline_us)
    ended_us = max(float(arrival_us[-1]), float(np.max(done_us[served], initial=0.0)), 1.0)
    edges_us = np.linspace(0.0, ended_us, bins + 1)
    width_s = ended_us / bins / 1e6

    def tally(instants_us: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.histogram(instants_us, edges_us, weights=weights)[0].astype(np.float64)

    begun, calls = tally(started_us[served]), tally(started_us[served], 1.0 / batch[served])
    with np.errstate(invalid="ignore"):
        mean_accuracy = tally(started_us[served], accuracy[served]) / begun
        mean_batch = begun / calls
    gone = np.searchsorted(np.sort(left_us), edges_us[:-1], side="right")
    return Dynamics(
        edges_us[:-1] / 1e6,
        width_s,
        tally(arrival_us) / width_s,
        tally(done_us[in_time]) / width_s,
        mean_accuracy,
        mean_batch,
        np.searchsorted(arrival_us, edges_us[:-1], side="right").astype(np.float64) - gone,
    )
