"""Registry of batching policies by name, and their compilation before requests need them."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from slotool.compilation import from_cache_only
from slotool.errors import InputError
from slotool.plugins import Registry
from slotool.process import module_command
from slotool.scheduling.batching.baselines import (
    FixedBatching,
    MaxAccuracy,
    MaxBatch,
    MinCost,
    ModelSwitching,
    SlackFit,
)
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.hindsight import Hindsight
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.batching.value_iteration import ValueIteration
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

POLICIES: dict[str, type[BatchingPolicy]] = {
    policy.name: policy
    for policy in (Hindsight, ValueIteration, SlackFit, MaxBatch, MaxAccuracy, MinCost, ModelSwitching, FixedBatching)
}
registry: Registry[type[BatchingPolicy]] = Registry("policies", POLICIES, BatchingPolicy)


def compile_policy(name: str) -> None:
    """Make the policy of the smallest grid there is, which compiles it or loads it from the cache on disk."""
    point = OperatingPoint.of(version="smallest")
    grid = ControlGrid(ControlSpace([point], {(point, 1): 100.0, (point, 2): 150.0}, {point: 1.0}))
    make_policy(name.partition("@")[0], grid, 1_000.0)


def compile_apart(name: str) -> None:
    """Compile the policy in another process if the cache on disk lacks it: a thread that compiles delays requests."""
    with from_cache_only() as missing, suppress(Exception):  # an unusable policy is an error of who makes it
        compile_policy(name)
    if missing:
        command = module_command("slotool.scheduling.batching", name.partition("@")[0])
        subprocess.run(command, stderr=subprocess.DEVNULL)


def policies_named(policies: str | Sequence[str]) -> list[str]:
    """Return known policies, of a text those between commas; ``fixed@depth=1,width=0.5`` is one despite its comma."""
    names: list[str] = []
    for part in map(str.strip, policies.split(",")) if isinstance(policies, str) else policies:
        continues = names and names[-1].startswith(f"{FixedBatching.name}@") and "=" in part and "@" not in part
        names[-1:] = [f"{names[-1]},{part}"] if continues else [*names[-1:], part]
    for name in names:
        require_policy(name)
    return list(dict.fromkeys(names))


def require_policy(name: str, *others: str) -> None:
    """Raise ``InputError`` unless ``name`` is one of ``POLICIES``, ``fixed@POINT`` or a plugin's.

    ``others``: further names that the caller takes.
    """
    base, _, point = name.partition("@")
    if base not in registry or (point and base != FixedBatching.name):
        raise InputError(registry.unknown(name, "fixed@POINT", *others))


def make_policy(name: str, grid: ControlGrid, deadline_us: float) -> BatchingPolicy:
    """Return the policy ``name`` of ``POLICIES``, ``fixed@POINT``, or of a plugin.

    Raises ``InputError`` for an unknown name or point, ``PluginError`` for an unusable plugin. ``deadline_us``: usual
    deadline of queries, infinite if unknown.
    """
    require_policy(name)
    base, _, point = name.partition("@")
    if point:
        return FixedBatching(grid, OperatingPoint.parse(point))
    if base == ModelSwitching.name:
        return ModelSwitching(grid, deadline_us=deadline_us)
    for valued in (Hindsight, ValueIteration):
        if base == valued.name:
            return valued(grid, deadline_us if deadline_us < math.inf else None)
    return (POLICIES.get(base) or registry.load(base))(grid)
