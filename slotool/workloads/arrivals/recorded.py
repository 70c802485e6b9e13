"""Arrivals that were recorded: counts or rates per interval, lists of instants, and tables that replay them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from shlex import quote
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.printable import row_name
from slotool.regular_files import require_regular
from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE
from slotool.workloads.arrivals.processes import ArrivalProcess, gamma_arrivals, positive_rate, stretched

_MINUTE = re.compile(r"(?:minute_)?(\d+)")
# Assumed length of a burst at one instant, seconds, so that it has a rate.
BURST_S = 1.0


class RateTrace(ArrivalProcess):
    """Shape of ``rates`` (any unit, one per interval of equal length), laid over any duration.

    A day of minutes drawn for 120 s is that day, 720 times as fast: every interval keeps its share of all arrivals
    (superserve, §6.3). Within an interval arrivals are Poisson. ``mean_rate_per_s`` is that over the whole.
    Raises ``InputError`` for rates that are negative, not finite, or all 0.
    """

    name: ClassVar[str] = "rate-trace"

    def __init__(self, rates: np.ndarray, mean_rate_per_s: float):
        rates = np.asarray(rates, dtype=np.float64)
        if not len(rates) or not np.isfinite(rates).all() or (rates < 0).any() or rates.sum() == 0:
            raise InputError("a trace of rates must be finite, not negative, and not all 0")
        self._mean = positive_rate(mean_rate_per_s)
        self.rates_per_s = rates / rates.mean() * mean_rate_per_s

    @property
    def mean_rate_per_s(self) -> float:
        return self._mean

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        edges_s = np.linspace(0.0, duration_s, len(self.rates_per_s) + 1)
        arrivals = gamma_arrivals(self._mean * duration_s, 1.0, generator)
        times_s = stretched(arrivals, edges_s, self.rates_per_s)
        return times_s[times_s < duration_s]


class RecordedInstants(ArrivalProcess):
    """Instants as recorded, from the first one on; ``mean_rate_per_s`` plays them faster or slower, to that rate.

    ``times_s``: float64 [n], ascending. ``from_start``: time 0 is the start, and not the first instant. A burst, all at
    one instant, lasts for ``BURST_S`` from then on and has no other rate.
    Raises ``InputError`` when fewer than two are given, they descend, or a rate is asked for of a burst.
    """

    name: ClassVar[str] = "recorded"

    def __init__(self, times_s: np.ndarray, mean_rate_per_s: float | None = None, *, from_start: bool = False):
        times_s = np.asarray(times_s, dtype=np.float64)
        if len(times_s) < 2 or not np.isfinite(times_s).all():
            raise InputError("a recording needs at least two finite instants")
        wrong = np.flatnonzero(np.diff(times_s) < 0)
        if len(wrong):
            raise InputError(f"instant {wrong[0] + 2} of the recording lies before the one it follows")
        self._at_once = bool(times_s[-1] == times_s[0])
        if self._at_once and mean_rate_per_s is not None:
            raise InputError("all instants of the recording are one: no rate makes them faster or slower")
        mean_rate = len(times_s) / BURST_S if self._at_once else (len(times_s) - 1) / (times_s[-1] - times_s[0])
        self._mean = mean_rate if mean_rate_per_s is None else positive_rate(mean_rate_per_s)
        self._times_s = (times_s - (0.0 if from_start else times_s[0])) * (mean_rate / self._mean)

    @property
    def mean_rate_per_s(self) -> float:
        return self._mean

    @property
    def duration_s(self) -> float:
        """Until just after the last instant; of a burst ``BURST_S`` longer."""
        if self._at_once:
            return float(self._times_s[-1]) + BURST_S
        return math.nextafter(float(self._times_s[-1]), math.inf)

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        times_s: np.ndarray = self._times_s[self._times_s < duration_s]
        return times_s


def read_trace(path: Path, mean_rate_per_s: float | None = None) -> ArrivalProcess:
    """Return the arrivals recorded in a CSV file, recognised by its columns.

    ``TIMESTAMP``: one row per request, a date with time or seconds (Azure LLM inference traces). ``1`` … ``1440`` or
    ``minute_1`` …: counts per minute, one row per function, summed (Azure Functions). ``rate_per_s``: one row per
    interval, all of one length. Raises ``TableError`` naming file and row, also for counts or instants that make no
    sense.
    """
    require_regular(path, TableError)
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise TableError(f"{path}: not a readable CSV trace ({' '.join(str(error).split())[:120]})") from error
    if frame.empty:
        raise TableError(f"{path}: the trace has no rows")
    minutes = [name for name in frame.columns if _MINUTE.fullmatch(str(name))]
    try:
        if "TIMESTAMP" in frame:
            return RecordedInstants(_seconds(frame["TIMESTAMP"]), mean_rate_per_s)
        if "rate_per_s" in frame:
            rates = _numbers(frame["rate_per_s"])
            return RateTrace(rates, float(rates.mean()) if mean_rate_per_s is None else mean_rate_per_s)
        if minutes:
            ordered = sorted(minutes, key=lambda name: int(_MINUTE.fullmatch(str(name))[1]))  # type: ignore[index]
            counts = np.sum([_numbers(frame[name]) for name in ordered], axis=1)
            return RateTrace(counts, counts.mean() / 60.0 if mean_rate_per_s is None else mean_rate_per_s)
    except InputError as error:
        raise TableError(f"{path}: {error}") from error
    raise TableError(
        f"{path}: no column of a trace; expected TIMESTAMP (one row per request: seconds, or date and time), "
        "rate_per_s (one row per interval) or minute_1, minute_2 … (requests per minute, one row per function)"
    )


def _numbers(values: pd.Series) -> np.ndarray:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise InputError(
            f"{row_name(values.index[wrong[0]])}, column {values.name}: '{values.iloc[wrong[0]]}' is no rate or count"
        )
    return numbers


def _seconds(values: pd.Series) -> np.ndarray:
    instants = numbers = pd.to_numeric(values, errors="coerce")
    if are_dates := bool(numbers.isna().mean() > 0.5):
        instants = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)  # offsets change in summer
    wrong = np.flatnonzero(instants.isna())
    if len(wrong):
        raise InputError(
            f"{row_name(values.index[wrong[0]])}, column TIMESTAMP: {values.iloc[wrong[0]]!r} is no instant"
        )
    if are_dates:
        numbers = (instants - instants.iloc[0]).dt.total_seconds()
    seconds = numbers.to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(seconds < 0)
    if len(wrong):
        raise InputError(
            f"{row_name(values.index[wrong[0]])}, column TIMESTAMP: lies before the first instant, or is negative"
        )
    return seconds


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
                f"slotool generate arrivals --trace {quote(str(path))} -o arrivals.parquet makes one"
            ) from None

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        wrong = np.flatnonzero(np.diff(rows["arrival_s"].to_numpy()) < 0)
        if len(wrong):
            raise TableError(f"{source}: {row_name(wrong[0] + 1)}, column arrival_s: lies before the row above it")
        if len(late := np.flatnonzero(rows["arrival_s"].to_numpy() > MAX_S)):
            raise TableError(
                f"{source}: {row_name(late[0])}, column arrival_s: {rows['arrival_s'].iloc[late[0]]:g} s are more than "
                "a year; seconds since the start of the traffic are expected: subtract the first from dates, divide "
                "milliseconds by 1000"
            )
        return rows

    @property
    def times_s(self) -> np.ndarray:
        """Ascending instants in seconds, float64 [n]."""
        return self.rows["arrival_s"].to_numpy()


def _is_trace(path: Path) -> bool:
    if path.suffix != ".csv":
        return False
    try:
        read_trace(path)
    except TableError:
        return False
    return True
