"""Policies on a virtual clock, and the best that could have been done with full knowledge."""

from slotool.simulation.bound import fluid_bound
from slotool.simulation.events import simulate
from slotool.simulation.integer_program import optimum_by_integer_program
from slotool.simulation.optimum import Optimum, optimum_of_one_worker
from slotool.simulation.result import SimulationResult
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes

__all__ = [
    "Optimum",
    "Scenario",
    "ServiceTimes",
    "SimulationResult",
    "fluid_bound",
    "optimum_by_integer_program",
    "optimum_of_one_worker",
    "simulate",
]
