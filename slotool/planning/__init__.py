"""Plans: the cheapest fleet that keeps a promise in simulation, and switching plans from load tests of real servers."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.planning.server_process import RunningServer, server_process
    from slotool.planning.switching import PlanSearch, possible_configurations

__all__ = ["PlanSearch", "RunningServer", "possible_configurations", "server_process"]

__getattr__ = names_on_demand(__name__)
