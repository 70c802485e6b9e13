"""Where calls are computed: in the event loop, in worker processes."""

from slotool.serving.engines.base import Engine, WorkerLost
from slotool.serving.engines.inline import InlineEngine

__all__ = ["Engine", "InlineEngine", "WorkerLost"]
