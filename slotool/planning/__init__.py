"""Plans: the cheapest fleet that keeps a promise in simulation, and switching plans from load tests of real servers."""

from slotool.planning.server_process import RunningServer, server_process
from slotool.planning.switching import PlanSearch, possible_configurations

__all__ = ["PlanSearch", "RunningServer", "possible_configurations", "server_process"]
