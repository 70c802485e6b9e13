"""Queries of a simulation, each with its arrival, its call and its point; and what becomes of them over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.printable import row_name
from slotool.simulation.scenario import IN_TIME, STATUSES, SimulationResult
from slotool.tables import Column, Schema, Table
from slotool.tables.schema import FINITE, NOT_NEGATIVE, POSITIVE

QUERIES_SCHEMA = Schema(
    "simulated-queries",
    1,
    (
        Column("policy", "text", "scheduling policy that served the queue"),
        Column("arrival_s", "number", "when the query arrived, since the start", rule=NOT_NEGATIVE),
        Column("deadline_s", "number", "seconds allowed from arrival_s", rule=POSITIVE),
        Column("started_s", "number", "when its call began; none: never served", optional=True, rule=NOT_NEGATIVE),
        Column("done_s", "number", "when its call ended; none: never served", optional=True, rule=NOT_NEGATIVE),
        Column("status", "text", f"{', '.join(sorted(STATUSES.values()))}; all but in-time and late are drops"),
        Column("point", "text", "operating point that served it; empty: none", default=""),
        Column("accuracy", "number", "mean accuracy of that point", optional=True, rule=FINITE),
        Column("batch_size", "integer", "queries of its call; 0: none", default=0, rule=NOT_NEGATIVE),
    ),
)


class QueryLog(Table):
    """Rows of ``QUERIES_SCHEMA``, a row per policy and query, in order of arrival within a policy.

    Raises ``TableError`` for a table without rows, or with arrivals of a policy that descend.
    """

    schema = QUERIES_SCHEMA

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        if rows.empty:
            raise TableError(f"{source}: no query was simulated")
        descends = (rows["arrival_s"].diff() < 0) & (rows["policy"] == rows["policy"].shift())
        if descends.any():
            raise TableError(
                f"{source}: {row_name(int(descends.argmax()))}, column arrival_s: lies before the row above"
            )
        return rows

    @classmethod
    def of_results(
        cls, results: Mapping[str, SimulationResult], provenance: Mapping[str, Any] | None = None
    ) -> QueryLog:
        """Return the queries of every policy, by its name."""
        parts = [_rows(result).assign(policy=name) for name, result in results.items()]
        return cls(pd.concat(parts, ignore_index=True), provenance)

    def of_policy(self, policy: str) -> pd.DataFrame:
        """Return the rows of one policy. Raises ``TableError`` when it has none."""
        rows = self.rows[self.rows["policy"] == policy]
        if rows.empty:
            raise TableError(f"{self.source}: no rows of policy {policy!r}")
        return rows.reset_index(drop=True)


def _rows(result: SimulationResult) -> pd.DataFrame:
    served, scenario = result.row >= 0, result.scenario
    keys = np.array([*(point.key for point in result.grid.points), ""], dtype=object)
    names = np.array([STATUSES.get(code, "") for code in range(max(STATUSES) + 1)], dtype=object)
    return pd.DataFrame(
        {
            "arrival_s": scenario.arrival_us / 1e6,
            "deadline_s": (scenario.deadline_us - scenario.arrival_us) / 1e6,
            "started_s": np.where(served, result.started_us, np.nan) / 1e6,
            "done_s": np.where(served, result.done_us, np.nan) / 1e6,
            "status": names[result.status],
            "point": keys[result.row],
            "accuracy": np.where(served, result.right, np.nan),
            "batch_size": result.batch.astype(np.int64),
        }
    )


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


def dynamics(log: QueryLog, policy: str, bins: int = BINS) -> Dynamics:
    """Return the dynamics of a policy's queries, as in superserve, section 6.

    Raises ``InputError`` for no bins, ``TableError`` for an unknown policy.
    """
    if bins < 1:
        raise InputError(f"dynamics need bins; there are {bins}")
    rows = log.of_policy(policy)
    columns = ("arrival_s", "deadline_s", "started_s", "done_s")
    arrival_us, allowed_us, started_us, done_us = (1e6 * rows[name].to_numpy(np.float64) for name in columns)
    in_time, batch = (rows["status"] == STATUSES[IN_TIME]).to_numpy(), rows["batch_size"].to_numpy()
    accuracy, served = rows["accuracy"].to_numpy(np.float64), np.isfinite(started_us)
    left_us = np.where(served, started_us, arrival_us + allowed_us)
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
