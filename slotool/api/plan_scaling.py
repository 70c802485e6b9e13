"""Of ``slotool.plan``, of one model or several: workers that come with the load."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Pool
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.scaling import ScalingLimits
    from slotool.planning.shared import SharedFleet, SharedFleetSearch
    from slotool.planning.traffic import Traffic


def scaling_limits(search: FleetSearch, fleet: Fleet) -> ScalingLimits | None:
    """For a service file of this machine's worker processes; None where all workers are to be there always."""
    from slotool.planning.scaling import limits_of

    if not _may_come(fleet.pool, search.requests):
        return None
    return limits_of(search, fleet, search.whole)


def shared_scaling_limits(search: SharedFleetSearch, fleet: SharedFleet) -> ScalingLimits | None:
    """As ``scaling_limits``, of workers that several models share."""
    from slotool.planning.scaling import limits_together

    if not _may_come(next(iter(fleet.pools.values())), search.requests):
        return None
    whole: dict[str, Traffic] = {name: alone.whole for name, alone in search.alone.items()}
    return limits_together(search, fleet, whole)


def _may_come(pool: Pool, requests: int) -> bool:
    from slotool.planning.fleet_search import MAX_CONFIRMED
    from slotool.planning.service_text import is_gpu, runs_here

    # Each worker has a GPU of its own: there are no others to come.
    return not is_gpu(pool.worker) and runs_here(pool) and requests <= MAX_CONFIRMED


def scaling_of(limits: ScalingLimits) -> dict[str, Any]:
    """As a document, with its sentence; ``verdicts`` by model, of a single one ``verdict``."""
    document = asdict(limits)
    verdicts = document.pop("verdicts")
    own = {"verdict": verdicts[""]} if "" in verdicts else {"verdicts": verdicts}
    return {**document, **own, "sentence": str(limits)}
