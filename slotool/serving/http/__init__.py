"""HTTP/1.1 on a connection: llhttp frames every byte, inference requests take a fast path, all others go to ASGI."""

from slotool.serving.http.fast_path import FastPath
from slotool.serving.http.protocol import HttpProtocol

__all__ = ["FastPath", "HttpProtocol"]
