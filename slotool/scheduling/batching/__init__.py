"""Policies over the whole control space, operating point × batch size: one file each, compiled, no clock, no memory.

Import this only where such a policy is wanted: it brings in Numba.
"""

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
from slotool.scheduling.batching.profile import Profile, read_profile, read_samples
from slotool.scheduling.batching.registry import POLICIES, compile_apart, make_policy, require_policy
from slotool.scheduling.batching.value_iteration import ValueIteration

__all__ = [
    "POLICIES",
    "BatchingPolicy",
    "ControlGrid",
    "FixedBatching",
    "Hindsight",
    "MaxAccuracy",
    "MaxBatch",
    "MinCost",
    "ModelSwitching",
    "Profile",
    "SlackFit",
    "ValueIteration",
    "compile_apart",
    "make_policy",
    "read_profile",
    "read_samples",
    "require_policy",
]
