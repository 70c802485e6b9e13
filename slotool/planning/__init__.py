"""Plans made by measuring real servers under real load."""

from slotool.planning.server_process import RunningServer, server_process
from slotool.planning.switching import PlanSearch, possible_configurations

__all__ = ["PlanSearch", "RunningServer", "possible_configurations", "server_process"]
