"""Per-call overhead missing from the latency table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Overhead(NamedTuple):
    """Overhead beyond latency tables: ``reserve_us`` of each deadline for the network and the front end; a call takes
    ``call_us``, and ``slower`` times what the table says, longer than that; and ``all_busy`` times as long as it then
    would where it begins while all other workers are busy.

    ``busy_part``: of these ``call_us`` and ``slower``, what is left of them on a worker that computes all the time;
    between that and all of them by how busy a worker was over ``memory_us``, up to ``saturation`` (``ServiceTimes``).
    ``turnaround_us``: until a worker that ends a call begins the next; it counts as part of a busy worker's calls."""

    reserve_us: float = 0.0
    call_us: float = 0.0
    slower: float = 0.0
    all_busy: float = 1.0
    busy_part: float = 1.0
    memory_us: float = 0.0
    saturation: float = 1.0
    turnaround_us: float = 0.0

    def of_calls(self, table_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how long calls of ``table_us`` take on a worker that computes all the time, and on one
        that has rested; the same where that is not known."""
        rested_us = self.longer(table_us)
        return self.longer(table_us, self.busy_part) if self.memory_us else rested_us, rested_us

    def longer(self, table_us: np.ndarray, part: float = 1.0) -> np.ndarray:
        """Return how long calls of ``table_us`` take, with such a part of what the table leaves out."""
        took_us: np.ndarray = (1 + part * self.slower) * table_us + part * self.call_us
        return took_us
