"""A kind of workers that a fleet may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool import devices
from slotool.scheduling.batching import Profile
from slotool.tables import OperatingPoint

# µs measured, by point and batch size.
SamplesUs = Mapping[tuple[OperatingPoint, int], np.ndarray]


@dataclass(frozen=True)
class WorkerType:
    """``profile``: latencies of the operating points on one worker of ``threads`` threads; ``price``: of one, per
    hour or in any other unit. ``source``: the file of the latencies, or the table itself; ``device``: of its rows.
    ``beside``: of one that shares its machine, ``samples_us`` next to 0, 1, … busy workers; the profile then is the one
    next to all of them."""

    name: str
    profile: Profile
    threads: int
    price: float
    source: Any = None
    device: str = devices.CPU
    beside: tuple[SamplesUs, ...] = ()
