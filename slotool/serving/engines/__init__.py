"""Where calls are computed: in the event loop, in worker processes."""

from slotool.serving.engines.base import CallCancelled, InferenceEngine, WorkerLost
from slotool.serving.engines.inline import InlineInferenceEngine
from slotool.serving.engines.local import LocalInferenceEngine

__all__ = ["CallCancelled", "InferenceEngine", "InlineInferenceEngine", "LocalInferenceEngine", "WorkerLost"]
