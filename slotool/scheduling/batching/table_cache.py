"""Tables that policies compute beforehand, remembered by what the grid holds: plans try the same grid many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from slotool.scheduling.batching.grid import ControlGrid

Tables = TypeVar("Tables")
_REMEMBERED = 32


@dataclass(frozen=True)
class _Content:
    """A grid that is equal to another of the same arrays."""

    arrays: tuple[tuple[bytes, str, tuple[int, ...]], ...]
    grid: ControlGrid = field(compare=False)


def remembered(compute: Callable[..., Tables]) -> Callable[..., Tables]:
    """``compute(grid, *parameters)``, which is called once for the same latencies, accuracies, sizes and parameters.

    What it returns is shared, and not to be written to.
    """

    @lru_cache(maxsize=_REMEMBERED)
    def once(content: _Content, *parameters: Any) -> Tables:
        return compute(content.grid, *parameters)

    @wraps(compute)
    def of(grid: ControlGrid, *parameters: Any) -> Tables:
        arrays: tuple[np.ndarray, ...] = grid.latency_us, grid.accuracy, grid.sizes
        return once(_Content(tuple((each.tobytes(), each.dtype.str, each.shape) for each in arrays), grid), *parameters)

    return of
