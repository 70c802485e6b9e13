"""Arrival processes, recorded traces, the open-loop load client, and the log of what became of every request."""

from slotool.workloads.arrival_table import ARRIVALS_SCHEMA, ArrivalTable
from slotool.workloads.arrivals import ArrivalProcess
from slotool.workloads.bursty import Bursty
from slotool.workloads.markov import MarkovModulated
from slotool.workloads.poisson import Poisson
from slotool.workloads.requests import REQUESTS_SCHEMA, RequestLog
from slotool.workloads.time_varying import TimeVarying
from slotool.workloads.traces import RateTrace, RecordedInstants, read_trace

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
