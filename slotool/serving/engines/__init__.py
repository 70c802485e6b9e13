"""Where calls are computed: in the event loop, in worker processes."""

from slotool.serving.engines.base import CalledOff, Engine, WorkerLost
from slotool.serving.engines.inline import InlineEngine
from slotool.serving.engines.local import LocalEngine

__all__ = ["CalledOff", "Engine", "InlineEngine", "LocalEngine", "WorkerLost"]
