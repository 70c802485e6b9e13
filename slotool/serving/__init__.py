"""One server for every kind of operating point: front ends, the router behind them, engines that compute, metrics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotool.serving.app import create_app
    from slotool.serving.engines import InlineInferenceEngine
    from slotool.serving.limits import Limits
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

# Where each is, imported when asked for: worker processes need none of them, nor the compiled policies behind them.
_MODULES = {
    "InferenceResult": "model_queue",
    "InlineInferenceEngine": "engines",
    "Limits": "limits",
    "Metrics": "metrics",
    "Rejection": "rejections",
    "Router": "router",
    "ServedModel": "served",
    "create_app": "app",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'slotool.serving' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"slotool.serving.{_MODULES[name]}"), name)
    return value
