"""How long a call takes in a simulation: the plan's own figure, or a sample of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid
from slotool.tables import OperatingPoint


class ServiceTimes:
    """µs of every cell of a grid: float64 ``values``, those of cell c at ``starts[c]:starts[c + 1]``.

    Workers that share a machine slow each other down: where ``per_machine`` is b, there are b times the cells, those of
    block j for calls that begin while j other workers of the machine are busy.
    A call draws one of its cell's values by the number of the call alone, so that two simulators draw alike.
    Raises ``InputError`` for values that are not positive and finite, and starts that do not ascend through them all.
    """

    def __init__(self, values: np.ndarray, starts: np.ndarray, seed: int = 0, per_machine: int = 1):
        self.values = np.ascontiguousarray(values, dtype=np.float64)
        self.starts = np.ascontiguousarray(starts, dtype=np.int64)
        self.seed, self.per_machine = seed, per_machine
        # By these the compiled draw goes into the values, and divides.
        if self.values.ndim != 1 or not (self.values > 0).all() or not np.isfinite(self.values).all():
            raise InputError("service times must be positive and finite")
        ends = self.starts.ndim == 1 and len(self.starts) and (self.starts[0], self.starts[-1]) == (0, len(self.values))
        if not ends or not (np.diff(self.starts) > 0).all():
            raise InputError("service times must have at least one value for each cell, one cell's after the other's")
        if not 0 <= seed < 2**63:
            raise InputError(f"a seed of {seed} is not within 0 and 2^63 − 1")

    @classmethod
    def planned(cls, grid: ControlGrid) -> ServiceTimes:
        """Every call takes exactly what the grid says."""
        return cls(grid.latency_us.ravel(), np.arange(grid.latency_us.size + 1))

    @classmethod
    def sampled(
        cls, grid: ControlGrid, samples_us: Mapping[tuple[OperatingPoint, int], np.ndarray], seed: int = 0
    ) -> ServiceTimes:
        """Every call takes one of the samples measured at its point and batch size; at a size that was not, of the
        next larger one. Raises ``InputError`` for a cell without any."""
        cells: list[np.ndarray] = []
        for point in grid.points:
            for size in grid.sizes:
                larger = (int(s) for s in grid.sizes if s >= size and len(samples_us.get((point, int(s)), ())))
                found = next(larger, None)
                if found is None:
                    raise InputError(f"no latency sample of {point} at batch size {size}")
                cells.append(np.asarray(samples_us[point, found], dtype=np.float64))
        return cls(np.concatenate(cells), np.cumsum([0, *map(len, cells)]), seed)

    @classmethod
    def colocated(cls, each: Sequence[ServiceTimes]) -> ServiceTimes:
        """Of workers that share a machine: ``each`` by how many of the others are busy when a call begins, 0, 1, …"""
        ends = np.cumsum([0, *(len(times.values) for times in each)])
        starts = [times.starts[:-1] + end for times, end in zip(each, ends, strict=False)]
        values = np.concatenate([times.values for times in each])
        return cls(values, np.concatenate([*starts, ends[-1:]]), each[0].seed, len(each))

    @property
    def min_us(self) -> np.ndarray:
        """float64 [cells]: the least that a call of each cell can take."""
        return np.minimum.reduceat(self.values, self.starts[:-1])

    def draw(self, cell: int, call: int) -> float:
        """µs that call number ``call`` takes, when it is of ``cell``."""
        return float(draw_us(self.values, self.starts, cell, self.seed, call))


@njit(cache=True)
def draw_us(values: np.ndarray, starts: np.ndarray, cell: int, seed: int, call: int) -> float:
    first, count = starts[cell], starts[cell + 1] - starts[cell]
    if count == 1:
        only_us: float = values[first]
        return only_us
    # splitmix64 of the call's number: a stream that may be entered anywhere.
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(call) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    drawn_us: float = values[first + np.int64(x % np.uint64(count))]
    return drawn_us
