"""Arrival processes, the open-loop load client, and the log of what became of every request."""

from slotool.workloads.arrivals import ArrivalProcess
from slotool.workloads.poisson import Poisson
from slotool.workloads.requests import REQUESTS_SCHEMA, RequestLog

__all__ = ["REQUESTS_SCHEMA", "ArrivalProcess", "Poisson", "RequestLog"]
