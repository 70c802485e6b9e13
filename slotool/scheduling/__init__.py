"""EDF queue and policies: pure decision objects, no I/O, no clock of their own."""

from slotool.scheduling.accuracy_constrained import AccuracyConstrained
from slotool.scheduling.co_runners import CoRunnerEstimator, InterferenceAware
from slotool.scheduling.dispatcher import Dispatcher, Drop, RequestOutcome
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.first_applicable import FirstApplicable, by_demand
from slotool.scheduling.fixed import FixedPoint
from slotool.scheduling.latency_constrained import LatencyConstrained
from slotool.scheduling.lcao import LatencyProfile, Lcao
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
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
    "Lcao",
    "Policy",
    "Query",
    "RequestOutcome",
    "ToleranceTiers",
    "Workers",
    "by_demand",
]
