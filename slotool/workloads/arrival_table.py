"""Arrivals written down, so that a simulation and a load test replay the very same ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from slotool.errors import TableError
from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE

ARRIVALS_SCHEMA = Schema(
    "arrivals", 1, (Column("arrival_s", "number", "when the request arrives, since the start", rule=NOT_NEGATIVE),)
)


class ArrivalTable(Table):
    """Rows of ``ARRIVALS_SCHEMA``, one per request, ascending; provenance says what drew them.

    Raises ``TableError`` naming the first row that lies before the one above it.
    """

    schema = ARRIVALS_SCHEMA

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        wrong = np.flatnonzero(np.diff(rows["arrival_s"].to_numpy()) < 0)
        if len(wrong):
            raise TableError(f"{source}: row {wrong[0] + 2}, column arrival_s: lies before the row above it")
        return rows

    @property
    def times_s(self) -> np.ndarray:
        """float64 [n], ascending seconds."""
        return self.rows["arrival_s"].to_numpy()
