"""The batching policies by name, as the command line and the benchmarks know them."""

from __future__ import annotations

import math

from slotool.errors import InputError
from slotool.scheduling.batching.fixed import FixedBatching, MinCost
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.max_accuracy import MaxAccuracy
from slotool.scheduling.batching.max_batch import MaxBatch
from slotool.scheduling.batching.model_switching import ModelSwitching
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.batching.slack_fit import SlackFit
from slotool.scheduling.batching.value_iteration import ValueIteration
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

POLICIES: dict[str, type[BatchingPolicy]] = {
    made.name: made
    for made in (ValueIteration, SlackFit, MaxBatch, MaxAccuracy, MinCost, ModelSwitching, FixedBatching)
}


def compile_policies() -> None:
    """Make each policy once, of the least there is, so that none has to be compiled while requests wait."""
    point = OperatingPoint.of(version="least")
    grid = ControlGrid(ControlSpace([point], {(point, 1): 100.0, (point, 2): 150.0}, {point: 1.0}))
    for name in POLICIES:
        make_policy(name, grid, 1_000.0)


def require_policy(name: str) -> None:
    """Raises ``InputError`` unless ``name`` is one of ``POLICIES`` or ``fixed@POINT``."""
    base, _, point = name.partition("@")
    if base not in POLICIES or (point and base != FixedBatching.name):
        raise InputError(f"no policy {name!r}; there are {', '.join(POLICIES)} and fixed@POINT")


def make_policy(name: str, grid: ControlGrid, deadline_us: float) -> BatchingPolicy:
    """``name`` of ``POLICIES``, or ``fixed@POINT``. Raises ``InputError`` for an unknown name or point.

    ``deadline_us``: what queries usually have, infinite when that is not known.
    """
    require_policy(name)
    base, _, point = name.partition("@")
    if point:
        return FixedBatching(grid, OperatingPoint.parse(point))
    if base == ModelSwitching.name:
        return ModelSwitching(grid, deadline_us=deadline_us)
    if base == ValueIteration.name:
        return ValueIteration(grid, deadline_us if deadline_us < math.inf else None)
    return POLICIES[base](grid)
