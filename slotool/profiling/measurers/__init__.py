"""What turns an item into rows: one file per way of measuring."""

from __future__ import annotations

from slotool.profiling.measurers.base import Measurer
from slotool.profiling.measurers.colocated import ColocatedMeasurer
from slotool.profiling.measurers.solo import SoloMeasurer
from slotool.profiling.plan import Settings

__all__ = ["MEASURERS", "Measurer", "measurer_for"]

MEASURERS: dict[str, type[Measurer]] = {"solo": SoloMeasurer, "colocated": ColocatedMeasurer}


def measurer_for(settings: Settings) -> Measurer:
    """The one that ``settings.kind`` names."""
    return MEASURERS[settings.kind](settings)
