"""Latency of calls in a simulation: the plan's own figure, or a sample of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid
from slotool.tables import OperatingPoint


class Overhead(NamedTuple):
    """Overhead beyond latency tables.

    ``reserve_us``: part of each deadline for network and front end. A call takes ``call_us``, and ``slower`` times the
    table's latency, longer; it takes ``all_busy`` times as long if it begins while all other workers are busy.
    ``busy_part``: share of ``call_us`` and ``slower`` on a worker that computes all the time; it grows to all of them
    with idleness over ``memory_us``, up to ``saturation`` (``ServiceTimes``). ``turnaround_us``: pause between a
    worker's calls; it counts as part of a busy worker's calls.
    """

    reserve_us: float = 0.0
    call_us: float = 0.0
    slower: float = 0.0
    all_busy: float = 1.0
    busy_part: float = 1.0
    memory_us: float = 0.0
    saturation: float = 1.0
    turnaround_us: float = 0.0

    def of_calls(self, table_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of calls of ``table_us`` on a busy worker and on a rested one; equal if unknown."""
        rested_us = self.longer(table_us)
        return self.longer(table_us, self.busy_part) if self.memory_us else rested_us, rested_us

    def longer(self, table_us: np.ndarray, part: float = 1.0) -> np.ndarray:
        """Return how long calls of ``table_us`` take, with such a part of what the table leaves out."""
        return (1 + part * self.slower) * table_us + part * self.call_us


class ServiceTimes:
    """µs of every cell of a grid: float64 ``values``, those of cell c at ``starts[c]:starts[c + 1]``.

    Workers that share a machine slow each other down: where ``per_machine`` is b, there are b times the cells, those of
    block j for calls that begin while j other workers of the machine are busy.
    A call draws one of its cell's values by the number of the call alone, so that two simulators draw alike.

    ``idle``: float64 like ``values``, how long the same calls take on a worker that has rested; empty where that is
    the same. A call takes its time between the two by how busy its worker was of late: ``busy_share``, an exponential
    moving average over ``memory_us``, 0 where it rested and 1 where it computed all the time. From ``saturation`` on
    calls take ``values``.
    Raises ``InputError`` for values that are not positive and finite, starts that do not ascend through them all, and
    ``idle`` of another length or without a memory.
    """

    def __init__(
        self,
        values: np.ndarray,
        starts: np.ndarray,
        seed: int = 0,
        per_machine: int = 1,
        idle: np.ndarray | None = None,
        memory_us: float = 0.0,
        saturation: float = 1.0,
    ):
        self.values = np.ascontiguousarray(values, dtype=np.float64)
        self.idle = np.zeros(0) if idle is None else np.ascontiguousarray(idle, dtype=np.float64)
        self.starts = np.ascontiguousarray(starts, dtype=np.int64)
        self.seed, self.per_machine, self.memory_us = seed, per_machine, float(memory_us)
        self.saturation = float(saturation)
        # Indices and divisors of the compiled draw.
        for each in (self.values, self.idle):
            if each.ndim != 1 or not (each > 0).all() or not np.isfinite(each).all():
                raise InputError("service times must be positive and finite")
        if len(self.idle) and (len(self.idle) != len(self.values) or not 0 < self.memory_us < np.inf):
            raise InputError("service times of idle workers must be as many as the others, with a memory")
        if not 0 < self.saturation <= 1:
            raise InputError(f"service times saturate at a share above 0 and up to 1, not at {saturation:g}")
        ends = self.starts.ndim == 1 and len(self.starts) and (self.starts[0], self.starts[-1]) == (0, len(self.values))
        if not ends or not (np.diff(self.starts) > 0).all():
            raise InputError("service times must have at least one value for each cell, one cell's after the other's")
        if not 0 <= seed < 2**63:
            raise InputError(f"a seed of {seed} is not within 0 and 2^63 − 1")

    @classmethod
    def planned(cls, grid: ControlGrid) -> ServiceTimes:
        """Return every call takes exactly what the grid says."""
        return cls(grid.latency_us.ravel(), np.arange(grid.latency_us.size + 1))

    @classmethod
    def sampled(
        cls, grid: ControlGrid, samples_us: Mapping[tuple[OperatingPoint, int], np.ndarray], seed: int = 0
    ) -> ServiceTimes:
        """Return times drawn from the samples at each point and batch size, or at the next larger measured size.

        Raises ``InputError`` for a cell without any.
        """
        cells: list[np.ndarray] = []
        for point in grid.points:
            for size in grid.sizes:
                larger = (int(s) for s in grid.sizes if s >= size and len(samples_us.get((point, int(s)), ())))
                nearest = next(larger, None)
                if nearest is None:
                    raise InputError(f"no latency sample of {point} at batch size {size}")
                cells.append(np.asarray(samples_us[point, nearest], dtype=np.float64))
        return cls(np.concatenate(cells), np.cumsum([0, *map(len, cells)]), seed)

    @classmethod
    def colocated(cls, each: Sequence[ServiceTimes]) -> ServiceTimes:
        """Join times of workers that share a machine: ``each`` by how many others are busy as a call begins."""
        ends = np.cumsum([0, *(len(times.values) for times in each)])
        starts = [times.starts[:-1] + end for times, end in zip(each, ends, strict=False)]
        values = np.concatenate([times.values for times in each])
        idle = np.concatenate([times.idle for times in each])
        first, count = each[0], len(each)
        joined = np.concatenate([*starts, ends[-1:]])
        return cls(values, joined, first.seed, count, idle, first.memory_us, first.saturation)

    @property
    def min_us(self) -> np.ndarray:
        """Shortest possible call of each cell, µs, float64 [cells]."""
        least = np.minimum(self.values, self.idle) if len(self.idle) else self.values
        return np.minimum.reduceat(least, self.starts[:-1])

    def draw(self, cell: int, call: int, busy_share: float = 0.0) -> float:
        """Return µs that call number ``call`` takes, when it is of ``cell``, on a worker that was so busy."""
        rested = how_rested(busy_share, self.saturation)
        return float(draw_us(self.values, self.idle, self.starts, cell, self.seed, call, rested))


@njit(cache=True)
def draw_us(
    values: np.ndarray, idle: np.ndarray, starts: np.ndarray, cell: int, seed: int, call: int, rested: float
) -> float:
    first, count = starts[cell], starts[cell + 1] - starts[cell]
    at = first
    if count > 1:
        # splitmix64 of the call's number: a stream that may be entered anywhere.
        x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(call) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        at = first + np.int64(x % np.uint64(count))
    took_us: float = values[at]
    if len(idle):
        took_us += rested * (idle[at] - took_us)
    return took_us


@njit(cache=True)
def how_rested(busy_share: float, saturation: float) -> float:
    """Return 1 for a worker that has done nothing of late, 0 for one that was busy enough."""
    return max(0.0, 1 - busy_share / saturation)


@njit(cache=True)
def after_rest(busy_share: float, rested_us: float, memory_us: float) -> float:
    """Return how busy a worker counts as, when it has done nothing for so long."""
    return float(busy_share * np.exp(-rested_us / memory_us)) if memory_us > 0 else 0.0


@njit(cache=True)
def after_call(busy_share: float, took_us: float, memory_us: float) -> float:
    """Return how busy a worker counts as after a call of so long; ``busy_share``: when it began."""
    return float(1 - (1 - busy_share) * np.exp(-took_us / memory_us)) if memory_us > 0 else 0.0
