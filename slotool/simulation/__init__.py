"""Policies on a virtual clock, and the best that could have been done with full knowledge."""

from slotool.simulation.events import simulate
from slotool.simulation.optimum import Optimum, fluid_bound, optimum_of_one_worker
from slotool.simulation.scenario import Scenario, SimulationResult
from slotool.simulation.service import ServiceTimes

__all__ = [
    "Optimum",
    "Scenario",
    "ServiceTimes",
    "SimulationResult",
    "fluid_bound",
    "optimum_of_one_worker",
    "simulate",
]
