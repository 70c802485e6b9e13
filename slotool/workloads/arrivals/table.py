"""Arrivals written down, so that a simulation and a load test replay the very same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from slotool.errors import TableError
from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE
from slotool.workloads.arrivals.traces import read_trace

ARRIVALS_SCHEMA = Schema(
    "arrivals", 1, (Column("arrival_s", "number", "when the request arrives, since the start", rule=NOT_NEGATIVE),)
)

# Dates counted in seconds lie beyond, and nobody simulates or sends requests for longer.
MAX_S = 366 * 86_400.0


class ArrivalTable(Table):
    """Rows of ``ARRIVALS_SCHEMA``, one per request, ascending; provenance says what drew them.

    Raises ``TableError`` naming the first row that lies before the one above it, or more than a year after the start.
    """

    schema = ARRIVALS_SCHEMA

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read Parquet or CSV. Raises ``TableError``; of a recorded trace with the command that reads one."""
        try:
            return super().load(path)
        except TableError as error:
            if not _is_trace(Path(path)):
                raise
            raise TableError(
                f"{path} is a recorded trace, not an arrival table ({error}); "
                f"slotool generate arrivals --trace {path} -o arrivals.parquet makes one"
            ) from None

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        wrong = np.flatnonzero(np.diff(rows["arrival_s"].to_numpy()) < 0)
        if len(wrong):
            raise TableError(f"{source}: row {wrong[0] + 2}, column arrival_s: lies before the row above it")
        if len(late := np.flatnonzero(rows["arrival_s"].to_numpy() > MAX_S)):
            raise TableError(
                f"{source}: row {late[0] + 2}, column arrival_s: {rows['arrival_s'].iloc[late[0]]:g} s are more than a "
                "year; seconds since the start of the traffic are expected: subtract the first from dates, divide "
                "milliseconds by 1000"
            )
        return rows

    @property
    def times_s(self) -> np.ndarray:
        """float64 [n], ascending seconds."""
        return self.rows["arrival_s"].to_numpy()


def _is_trace(path: Path) -> bool:
    if path.suffix != ".csv":
        return False
    try:
        read_trace(path)
    except TableError:
        return False
    return True
