"""One server for every kind of operating point: front ends, the router behind them, engines that compute, metrics."""

from slotool.serving.app import create_app
from slotool.serving.engines import InlineInferenceEngine
from slotool.serving.frontend import Limits
from slotool.serving.metrics import Metrics
from slotool.serving.model_queue import InferenceResult
from slotool.serving.rejections import Rejection
from slotool.serving.router import Router
from slotool.serving.served import ServedModel

__all__ = [
    "InferenceResult",
    "InlineInferenceEngine",
    "Limits",
    "Metrics",
    "Rejection",
    "Router",
    "ServedModel",
    "create_app",
]
