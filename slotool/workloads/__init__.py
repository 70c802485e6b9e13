"""Arrival processes, recorded traces, the open-loop load client, and the log of what became of every request."""

from slotool.workloads.arrivals.processes import ArrivalProcess, Bursty, Poisson, TimeVarying
from slotool.workloads.arrivals.recorded import ARRIVALS_SCHEMA, ArrivalTable, RateTrace, RecordedInstants, read_trace
from slotool.workloads.requests import REQUESTS_SCHEMA, RequestLog

__all__ = [
    "ARRIVALS_SCHEMA",
    "REQUESTS_SCHEMA",
    "ArrivalProcess",
    "ArrivalTable",
    "Bursty",
    "Poisson",
    "RateTrace",
    "RecordedInstants",
    "RequestLog",
    "TimeVarying",
    "read_trace",
]
