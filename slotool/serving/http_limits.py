"""uvicorn's HTTP/1.1 protocol with bounds on a request's head, in bytes and in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotool.serving import refusals
from slotool.serving.refusals import Refusal


class LimitedHttp(HttpToolsProtocol):
    """Refuses heads (request line and headers) of more than ``head_bytes``, or not whole within ``head_s`` seconds.

    The time counts from the connection, and on a connection kept alive from the first byte of the next head.
    What cannot be parsed is refused as JSON, as everything else is. ``dropped``: told the cause of each refusal.
    """

    def __init__(
        self, *args: Any, head_bytes: int, head_s: float, dropped: Callable[[str], None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._head_limit, self._head_s, self._dropped = head_bytes, head_s, dropped
        self._head_bytes = 0
        self._in_head = False
        self._alarm: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_alarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._head_limit:
            self._refusal = self._too_long()
            # Raised through the parser, which then reads no further and has uvicorn answer.
            raise self._refusal
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        # A head that follows a body in one chunk is counted from the next chunk on.
        begins = not self._in_head and self._expects_head()
        self._head_bytes = len(data) if begins else self._head_bytes + len(data) if self._in_head else 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > self._head_limit:
            self._refuse(self._too_long())
        elif not self._expects_head():
            self._unset_alarm()
        elif self._alarm is None:
            self._set_alarm()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or refusals.bad_request("this is not an HTTP/1.1 request"))

    def _expects_head(self) -> bool:
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self._head_s, self._late)

    def _unset_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _late(self) -> None:
        self._alarm = None
        if self.transport.is_closing() or not self._expects_head():
            return
        if self._in_head:
            self._refuse(refusals.too_slow(f"the request's head did not arrive within {self._head_s:g} s"))
        else:
            self.transport.close()

    def _too_long(self) -> Refusal:
        return Refusal(431, "too-large", f"the request's head is longer than {self._head_limit} bytes")

    def _refuse(self, refusal: Refusal) -> None:
        self._unset_alarm()
        self._dropped(refusal.cause)
        body = json.dumps({"error": str(refusal)}).encode()
        head = (
            f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
