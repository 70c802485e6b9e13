"""Arrival processes, recorded traces, the open-loop load client, and the log of what became of every request."""

from slotool.workloads.arrivals.bursty import Bursty
from slotool.workloads.arrivals.markov import MarkovModulated
from slotool.workloads.arrivals.poisson import Poisson
from slotool.workloads.arrivals.process import ArrivalProcess
from slotool.workloads.arrivals.table import ARRIVALS_SCHEMA, ArrivalTable
from slotool.workloads.arrivals.time_varying import TimeVarying
from slotool.workloads.arrivals.traces import RateTrace, RecordedInstants, read_trace
from slotool.workloads.requests import REQUESTS_SCHEMA, RequestLog

__all__ = [
    "ARRIVALS_SCHEMA",
    "REQUESTS_SCHEMA",
    "ArrivalProcess",
    "ArrivalTable",
    "Bursty",
    "MarkovModulated",
    "Poisson",
    "RateTrace",
    "RecordedInstants",
    "RequestLog",
    "TimeVarying",
    "read_trace",
]
