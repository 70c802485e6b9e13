"""EDF queue and policies: pure decision objects, no I/O, no clock of their own."""

from slotool.scheduling.demand import (
    AccuracyConstrained,
    CoRunnerEstimator,
    FirstApplicable,
    FixedPoint,
    InterferenceAware,
    LatencyConstrained,
    by_demand,
)
from slotool.scheduling.dispatcher import Dispatcher, Drop, RequestOutcome
from slotool.scheduling.edf import EdfQueue, Query
from slotool.scheduling.latency_profile import LatencyProfile
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.scheduling.tolerance_tiers import ToleranceTiers
from slotool.scheduling.workers import Batch, Workers

__all__ = [
    "AccuracyConstrained",
    "Batch",
    "CannotMeet",
    "CoRunnerEstimator",
    "ControlSpace",
    "Decision",
    "Dispatcher",
    "Drop",
    "EdfQueue",
    "FirstApplicable",
    "FixedPoint",
    "InterferenceAware",
    "LatencyConstrained",
    "LatencyProfile",
    "Policy",
    "Query",
    "RequestOutcome",
    "ToleranceTiers",
    "Workers",
    "by_demand",
]
