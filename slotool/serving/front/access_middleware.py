"""What the access log and callers that trace get of the requests which the ASGI application answers."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotool.serving.access.guard import is_inference
from slotool.serving.front.frontend import FrontEnd
from slotool.serving.monitoring import trace_context
from slotool.serving.monitoring.access_log import facts_of


class AccessMiddleware:
    """ASGI middleware: returns a request's trace context, and has ``front`` record the request, if it records any.
    Handlers leave an ``InferenceResult`` in the request's state as ``answer``."""

    def __init__(self, app: ASGIApp, front: FrontEnd):
        self._app, self._front = app, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        traceparent = headers.get(trace_context.HEADER)
        if trace_context.trace_id(traceparent) is None:
            traceparent = None
        if traceparent is None and not self._front.has_records:
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        # An answer that is broken off before it begins is the application's own 500.
        status, bytes_in, bytes_out = 500, 0, 0

        async def counted_receive() -> Message:
            nonlocal bytes_in
            message = await receive()
            bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, bytes_out
            if message["type"] == "http.response.start":
                status = message["status"]
                if traceparent is not None:
                    named = (trace_context.HEADER.encode(), traceparent.encode())
                    message = {**message, "headers": [*message["headers"], named]}
            bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            if self._front.has_records:
                self._add(scope, headers, status, began_s, bytes_in, bytes_out)

    def _add(
        self,
        scope: Scope,
        headers: dict[str, str],
        status: int,
        began_s: float,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        front, client = self._front, scope.get("client")
        answer = scope.get("state", {}).get("answer")
        named: Any = scope.get("path_params", {}).get("model")
        if named is None and scope["path"] == "/compute":
            named = front.named(headers.get("model"))
        front.record(
            headers,
            is_inference=is_inference(scope),
            protocol="http",
            client=front.client_name(headers.get("authorization")),
            peer=client[0] if client else None,
            path=scope["path"],
            model=named,
            status=status,
            total_us=1e6 * (time.monotonic() - began_s),
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            answer={} if answer is None else facts_of(answer),
        )


def _headers(scope: Scope) -> dict[str, str]:
    """Those that are given once, names in lower case."""
    found: dict[str, str] = {}
    twice = set()
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in found:
            twice.add(name)
        found[name] = value.decode("latin-1")
    return {name: value for name, value in found.items() if name not in twice}
