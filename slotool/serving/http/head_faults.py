"""Heads of requests that llhttp lets pass and RFC 9112 does not."""

from __future__ import annotations

from slotool.serving.guard import host_fault
from slotool.serving.http.requests import HttpRequest
from slotool.serving.rejections import Rejection


def head_fault(request: HttpRequest) -> Rejection | None:
    """What RFC 9112 has a server reject and llhttp lets pass: sections 2.3, 3.2 and 6.1."""
    if request.version not in ("1.0", "1.1"):
        return Rejection(505, "bad-request", f"HTTP/{request.version} is not spoken here: HTTP/1.1 and HTTP/1.0 are")
    if (rejection := host_fault(request.version, request.headers)) is not None:
        return rejection
    if request.encodings not in (b"", b"chunked"):
        return Rejection(501, "bad-request", "of transfer encodings only chunked is known here")
    return None
