"""One server for every kind of operating point: front ends, the router behind them, engines that compute, metrics."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

# Imported on demand: worker processes need none of them, nor the compiled policies behind them.
if TYPE_CHECKING:
    from slotool.serving.engines import InlineInferenceEngine
    from slotool.serving.monitoring.metrics import Metrics
    from slotool.serving.operations.app import create_app
    from slotool.serving.protocol.bounds import RequestLimits
    from slotool.serving.rejections import Rejection
    from slotool.serving.request import InferenceResult
    from slotool.serving.routing.router import Router
    from slotool.serving.served import ServedModel

__all__ = [
    "InferenceResult",
    "InlineInferenceEngine",
    "Metrics",
    "Rejection",
    "RequestLimits",
    "Router",
    "ServedModel",
    "create_app",
]

__getattr__ = names_on_demand(__name__)
