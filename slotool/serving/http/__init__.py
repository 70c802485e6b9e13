"""HTTP/1.1 on a connection: llhttp frames every byte, inferences have a handler of their own, all else goes to ASGI."""

from slotool.serving.http.inference import InferenceHandler
from slotool.serving.http.protocol import HttpProtocol

__all__ = ["HttpProtocol", "InferenceHandler"]
