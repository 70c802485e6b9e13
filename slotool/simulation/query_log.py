"""The queries of a simulation written down: when each came, was served and by what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import TableError
from slotool.simulation.result import STATUSES, SimulationResult
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
            raise TableError(f"{source}: row {int(descends.argmax()) + 2}, column arrival_s: lies before the row above")
        return rows

    @classmethod
    def of_results(
        cls, results: Mapping[str, SimulationResult], provenance: Mapping[str, Any] | None = None
    ) -> QueryLog:
        """The queries of every policy, by its name."""
        parts = [_rows(result).assign(policy=name) for name, result in results.items()]
        return cls(pd.concat(parts, ignore_index=True), provenance)

    def of_policy(self, policy: str) -> pd.DataFrame:
        """The rows of one policy. Raises ``TableError`` when it has none."""
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
