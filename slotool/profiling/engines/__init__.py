"""Where a campaign's items are measured: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

from slotool.plugins import Registry
from slotool.profiling.engines.base import Engine
from slotool.profiling.engines.local import LocalEngine

__all__ = ["Engine", "LocalEngine", "registry"]

# A plugin's is called with the ``Settings`` alone.
registry: Registry[type[Engine]] = Registry("engines", ("local", "ray"), Engine)
