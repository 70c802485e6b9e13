"""uvicorn's HTTP/1.1 protocol with bounds: on a request's head, in bytes and in time, and on how many are read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotool.serving import refusals
from slotool.serving.admission import Admission
from slotool.serving.refusals import Refusal

# Where a request's scope tells why it is not to be served, when that was known too late to refuse it unread.
REFUSAL = "refusal"
# What asks for an inference: the model's name where the path has it.
_INFERENCE = re.compile(rb"POST /(?:v2/models/([^/ ?]+)/(?:versions/[^/ ?]+/)?infer|compute)[ ?]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*(?=\r\n)")
# Heads with which a request does not end where its length says, or expects a word before its body.
_UNUSUAL = (b"\r\ntransfer-encoding:", b"\r\nexpect:", b"\r\nupgrade:", b"\r\nconnection: close")


class HeadWithBody:
    """A transport that sends the head of a response together with the body that its length promises: one packet.

    ``flush``: there was no body, as with HEAD.
    """

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif data.endswith(b"\r\n\r\n") and b"\r\ncontent-length: " in data:
            self._held = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class LimitedHttp(HttpToolsProtocol):
    """Refuses heads (request line and headers) of more than ``head_bytes``, or not whole within ``head_s`` seconds.

    The time counts from the connection, and on a connection kept alive from the first byte of the next head.
    What cannot be parsed is refused as JSON, as everything else is. While ``admission`` lets nobody in, an inference
    request that lies there whole is refused without being parsed. ``dropped``: told the model, where it is known, and
    the cause of each refusal. ``most_connections``: beyond them a new one is told so and closed.
    """

    def __init__(
        self,
        *args: Any,
        head_bytes: int,
        head_s: float,
        most_connections: int,
        dropped: Callable[[str, str], None],
        admission: Admission,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._head_limit, self._head_s, self._dropped, self._admission = head_bytes, head_s, dropped, admission
        self._most_connections = most_connections
        self._head_bytes = 0
        self._in_head = False
        self._alarm: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None

    def connection_made(self, transport: Any) -> None:
        self._joined = HeadWithBody(transport)
        super().connection_made(self._joined)  # type: ignore[arg-type]
        if len(self.connections) > self._most_connections:
            self._refuse(refusals.too_many_connections(self._most_connections))
        else:
            self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_alarm()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._head_limit:
            self._refusal = self._too_long()
            # Raised through the parser, which then reads no further and has uvicorn answer.
            raise self._refusal
        if (refusal := self._admission.refusal()) is not None:
            self.scope["state"][REFUSAL] = refusal
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        # A head that follows a body in one chunk is counted from the next chunk on.
        begins = not self._in_head and self._expects_head()
        if self.transport.is_closing():
            return
        if begins and (refusal := self._admission.refusal()) is not None and self._turn_away(data, refusal):
            return
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

    def _turn_away(self, data: bytes, refusal: Refusal) -> bool:
        """Whether ``data`` was one whole request for an inference, and is now refused; the connection stays."""
        asked = _INFERENCE.match(data)
        head_end = data.find(b"\r\n\r\n")
        if asked is None or head_end < 0:
            return False
        head = data[: head_end + 2].lower()
        lengths = _LENGTH.findall(head)
        if len(lengths) != 1 or any(header in head for header in _UNUSUAL):
            return False
        if head_end + 4 + int(lengths[0]) != len(data) or head_end > self._head_limit:
            return False
        self._unset_keepalive_if_required()
        self._unset_alarm()
        self._dropped((asked[1] or b"").decode("latin-1"), refusal.cause)
        self.transport.write(_response(refusal, closes=False))
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

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
        self._dropped("", refusal.cause)
        self.transport.write(_response(refusal, closes=True))
        self.transport.close()


def _response(refusal: Refusal, *, closes: bool) -> bytes:
    body = json.dumps({"error": str(refusal)}, ensure_ascii=False).encode()
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{'connection: close' if closes else 'retry-after: 1'}\r\n\r\n"
    )
    return head.encode() + body
