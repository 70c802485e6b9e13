"""One server for every dial: HTTP front ends, the engine behind them, metrics."""

from slotool.serving.app import create_app
from slotool.serving.engine import Answer, InlineEngine, ServedModel
from slotool.serving.frontend import Limits
from slotool.serving.metrics import Metrics
from slotool.serving.refusals import Refusal

__all__ = ["Answer", "InlineEngine", "Limits", "Metrics", "Refusal", "ServedModel", "create_app"]
