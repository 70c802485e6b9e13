"""Measurers, which turn items into rows: one file per way of measuring."""

from __future__ import annotations

from slotool.profiling.measurers.colocated import ColocatedMeasurer, StreamsMeasurer
from slotool.profiling.measurers.solo import Measurer, SoloMeasurer
from slotool.profiling.plan import Settings

__all__ = ["MEASURERS", "Measurer", "measurer_for"]

MEASURERS: dict[str, type[Measurer]] = {
    "solo": SoloMeasurer,
    "colocated": ColocatedMeasurer,
    "colocated on streams": StreamsMeasurer,
}


def measurer_for(settings: Settings) -> Measurer:
    """Return the measurer of ``settings.kind``, on streams if co-runners share a device by them."""
    return MEASURERS[f"{settings.kind} on streams" if settings.on_streams else settings.kind](settings)
