"""Engines, which compute calls: in the event loop, in worker processes, or on a ray cluster."""

from slotool.plugins import Registry
from slotool.serving.engines.base import CallCancelled, InferenceEngine, WorkerLost
from slotool.serving.engines.inline import InlineInferenceEngine
from slotool.serving.engines.local import LocalInferenceEngine

__all__ = [
    "CallCancelled",
    "InferenceEngine",
    "InlineInferenceEngine",
    "LocalInferenceEngine",
    "WorkerLost",
    "registry",
]

# A plugin's engine is called with replicas, threads, and the keywords ``max_examples``, ``hang_s``, ``address``.
registry: Registry[type[InferenceEngine]] = Registry("engines", ("inline", "local", "ray"), InferenceEngine)
