"""HTTP/1.1: llhttp frames every byte, a handler answers inferences, ASGI answers all other pages."""

from slotool.serving.http.inference import InferenceHandler
from slotool.serving.http.protocol import HttpProtocol

__all__ = ["HttpProtocol", "InferenceHandler"]
