"""Parts of a connection: timer, flow control, closing, and a request on its way to an answer."""

from __future__ import annotations

import asyncio
import logging
import math
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
import numpy as np
from starlette.types import ASGIApp, Message, Scope

from slotool.serving.http.requests import Head, HttpRequest
from slotool.serving.protocol.bodies import Body
from slotool.serving.protocol.reply import Reply
from slotool.serving.protocol.tensors import HEADER_LENGTH

# How long a client may take to read a last answer and close its side.
LINGER_S = 2.0


class Deadline:
    """Deadline that calls ``on_late`` once the event loop's clock has passed it.

    Moving it later only stores a number, which the running timer reads when it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]):
        self._loop, self._on_late = loop, on_late
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        # Instant of the timer.
        self._timer_s = math.inf

    def set(self, at_s: float) -> None:
        """Set the deadline, in seconds of the loop's clock; infinity for never."""
        self._at_s = at_s
        if at_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def cancel(self) -> None:
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, math.inf

    def _look(self) -> None:
        self._timer, self._timer_s = None, math.inf
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
        else:
            self._at_s = math.inf
            self._on_late()


class FlowControl:
    """Paused directions of a connection: reading by the server, writing to a client that does not read."""

    def __init__(self, transport: asyncio.Transport):
        self._transport = transport
        self._is_read_paused = False
        self.write_paused = False
        self._writable = asyncio.Event()

    def pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    async def drained(self) -> None:
        """Wait until the client has read most of what it was sent, or has disconnected."""
        if self.write_paused:
            await self._writable.wait()


class Outbox:
    """Answers to many clients, written in one go.

    A client on the same machine wakes for an answer and sleeps again before the next is ready: each wake-up costs the
    server more than a write.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Write ``answer`` at the next ``flush``."""
        self._answers.append((transport, answer))

    def add_rejection(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Write ``answer`` when this turn of the event loop ends, if no ``flush`` comes before."""
        if not self._answers:
            asyncio.get_running_loop().call_soon(self.flush)
        self.add(transport, answer)

    def flush(self) -> None:
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        for transport, answer in answers:
            transport.write(answer)


class Lingering:
    """End of a connection after its last answer: the server sends no more, but still reads.

    Closing at once would reset the connection if unread bytes remain, and a reset can overtake the answer. It ends when
    the client closes its side, or ``LINGER_S`` seconds after the client has read everything.
    """

    def __init__(self, transport: asyncio.Transport, deadline: Deadline, clock_s: Callable[[], float]):
        self._transport, self._deadline, self._clock_s = transport, deadline, clock_s
        self._unsent_bytes = math.inf

    def begin(self) -> None:
        if not self._transport.is_closing():
            try:
                if self._transport.can_write_eof():  # TLS cannot; its client closes as the answer says so.
                    self._transport.write_eof()
            except OSError:
                # The client has reset the connection, which asyncio has not noticed yet: nobody waits.
                self._transport.abort()
            else:
                self._deadline.set(self._clock_s() + LINGER_S)

    def late(self) -> None:
        """Abort the connection after the deadline, unless the client still reads."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:
            # A slow reader of a long answer.
            self._unsent_bytes = unsent_bytes
            self._deadline.set(self._clock_s() + LINGER_S)
        else:
            self._transport.abort()


LOG = logging.getLogger("uvicorn.error")
# Buffered bytes of a body that arrives faster than the application reads.
HIGH_WATER_BYTES = 65_536
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("latin-1") for status in HTTPStatus
}
# Status codes of answers without a body (RFC 9110, section 6.4.1).
_WITHOUT_BODY = (204, 304)


class AsgiCycle:
    """Request and the application's answer (asgi.readthedocs.io, HTTP connection scope).

    An answer that begins before the request's body was read is the connection's last, so that no byte of that body can
    be taken for the next request, whatever a proxy in between does. ``keep_alive``: the connection goes on after this
    answer; ``close`` ends it; ``on_response`` is called once the answer is complete.
    """

    def __init__(
        self,
        exchange: Exchange,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        keep_alive: bool,
        close: Callable[[], None],
        on_response: Callable[[], None],
    ):
        self._scope, self._transport, self._flow = scope, transport, flow
        self._close, self._on_response = close, on_response
        self._owes_continue = exchange.request.expects_continue
        self._body, self._more_body = bytearray(exchange.take_body()), not exchange.is_complete
        self._news = asyncio.Event()
        self._news.set()
        self.keep_alive = keep_alive
        self.response_started = self._response_complete = self._disconnected = False
        # Head of the answer that waits for its first body bytes, format of the body, and bytes still to come.
        self._head = b""
        self._framed: Callable[[bytes, bool], bytes] = _nothing
        self._left_bytes = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes to the request's body."""
        self._body += data
        if len(self._body) > HIGH_WATER_BYTES:
            self._flow.pause_reading()
        self._news.set()

    def finish_body(self) -> None:
        """Mark the request's body as complete."""
        self._more_body = False
        self._news.set()

    def disconnect(self) -> None:
        """Tell the application that the client has left; what it still sends is discarded."""
        self._disconnected = True
        self._news.set()

    async def run(self, app: ASGIApp) -> None:
        """Run the application; a broken-off answer closes the connection."""
        fault: BaseException | None = None
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as error:
            fault = error
        if self._response_complete or (self._disconnected and fault is None):
            if fault is not None:
                LOG.error("Exception in ASGI application\n", exc_info=fault)
            return
        fault = fault or RuntimeError("the ASGI application has returned without an answer")
        LOG.error("Exception in ASGI application\n", exc_info=fault)
        if self._disconnected or (self.response_started and not self._head):
            self._close()
            return
        # Nothing has been sent yet.
        self.response_started = self._response_complete = True
        self._transport.write(Reply.broken(fault).http(self._scope["method"], close=True))
        self._close()
        self._on_response()

    async def receive(self) -> Message:
        if self._owes_continue and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._owes_continue = False
        if not self._disconnected and not self._response_complete:
            self._flow.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._disconnected or self._response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        if not self._disconnected:
            await self._flow.drained()
        if self._disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self._response_complete or message["type"] != expected:
            raise RuntimeError(f"ASGI message {message['type']!r} where {expected!r} was to come")
        if self.response_started:
            self._send_body(message.get("body", b""), bool(message.get("more_body")))
        else:
            self._send_head(message["status"], message.get("headers", []))

    def _send_head(self, status: int, headers: Any) -> None:
        self.response_started = True
        self._owes_continue = False
        self.keep_alive = self.keep_alive and not self._more_body
        lines, length = [_STATUS_LINES[status]], None
        for name, value in headers:
            if b"\n" in name + value or b"\r" in name + value:
                raise RuntimeError(f"a header of the answer has a line break in it: {name!r}")
            lines.append(b"%b: %b\r\n" % (name, value))
            if name.lower() == b"content-length":
                length = int(value)
        if self._scope["method"] == "HEAD" or status in _WITHOUT_BODY:
            self._framed = _nothing
        elif length is not None:
            self._framed, self._left_bytes = self._counted, length
        elif self._scope["http_version"] == "1.0":  # without chunks, the body ends with the connection
            self._framed, self.keep_alive = _as_it_is, False
        else:
            self._framed = _chunk
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._head = b"".join([*lines, b"\r\n"])
        if length is None:
            self._write(b"")

    def _send_body(self, body: bytes, more_body: bool) -> None:
        self._write(self._framed(body, more_body))
        if more_body:
            return
        self._response_complete = True
        self._news.set()
        if not self.keep_alive:
            self._close()
        self._on_response()

    def _write(self, data: bytes) -> None:
        """Write data, in one packet with the head if that is not sent yet."""
        data, self._head = self._head + data, b""
        if data:
            self._transport.write(data)

    def _counted(self, body: bytes, more_body: bool) -> bytes:
        self._left_bytes -= len(body)
        if self._left_bytes < 0 or (self._left_bytes > 0 and not more_body):
            raise RuntimeError("the answer is not as long as its Content-Length says")
        return body


def _nothing(body: bytes, more_body: bool) -> bytes:
    return b""


def _as_it_is(body: bytes, more_body: bool) -> bytes:
    return body


def _chunk(body: bytes, more_body: bool) -> bytes:
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk if more_body else chunk + b"0\r\n\r\n"


def scope_of(request: HttpRequest, connection: dict[str, Any], state: dict[str, Any]) -> Scope:
    """Return a request's ASGI scope; ``connection`` adds to it. Raises ``ValueError`` for a target that is no path."""
    try:
        url = httptools.parse_url(request.target)
        if url.path is None:
            raise ValueError("a target without a path")
        path = url.path.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError) as error:
        raise ValueError("a target that is no URL") from error
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.version,
        **connection,
        "root_path": "",
        "headers": request.headers,
        "state": state.copy(),
        "method": request.method,
        "path": urllib.parse.unquote(path) if "%" in path else path,
        "raw_path": url.path,
        "query_string": url.query or b"",
    }


# Memory is reserved for this multiple of a received body; tensors begin at a multiple of ``ALIGNED`` bytes.
RESERVED, ALIGNED = 4, 16


class Exchange:
    """Request between its head and its answer, with exactly one of ``reply``, ``head`` and ``scope``.

    ``reply``: known without the body, which is discarded; ``head``: the inference handler answers the complete request;
    ``scope``: the ASGI application answers it, through ``cycle`` once that has begun.

    ``arrival_us``: earliest arrival of a request with a ``head``, by the router's clock. ``body_bytes``: received bytes
    of the body, of which ``received`` are not taken yet; ``body``: its place in the intake while it is unfinished;
    ``is_complete``: all of it has come; ``is_queued``: its turn to be answered is fixed.
    """

    __slots__ = (
        "_room", "arrival_us", "body", "body_bytes", "cycle", "head", "is_complete", "is_queued", "received", "reply",
        "request", "scope",
    )  # fmt: skip

    def __init__(
        self,
        request: HttpRequest,
        *,
        reply: Reply | None = None,
        head: Head | None = None,
        arrival_us: float = 0.0,
        scope: Scope | None = None,
    ):
        self.request, self.reply, self.head, self.scope = request, reply, head, scope
        self.arrival_us = arrival_us
        self.cycle: AsgiCycle | None = None
        self.received: bytes | memoryview = b""
        self._room: np.ndarray | None = None
        self.body: Body | None = None
        self.body_bytes = 0
        self.is_complete = self.is_queued = False

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes of the body.

        A body in one piece, as most are, is not copied. Pieces are copied once, to where their tensors can stay:
        clients may send two bytes at a time, which as separate objects would take 27 times the counted memory.
        """
        before = len(self.received)
        if not before:
            self.received = data
            return
        end = before + len(data)
        if self._room is None or end > len(self._room):
            room = self._new_room(end)
            room[:before] = np.frombuffer(self.received, np.uint8)
            self._room = room
        self._room[before:end] = np.frombuffer(data, np.uint8)
        self.received = self._room.data[:end]

    def _new_room(self, size: int) -> np.ndarray:
        """Return memory for the whole body, or ``RESERVED`` times the ``size`` that has come.

        The bytes after the JSON begin at a multiple of ``ALIGNED``.
        """
        size = max(2 * size, min(self.request.content_length or 0, RESERVED * size))
        json_length = "" if self.head is None else self.head.headers.get(HEADER_LENGTH, "")
        first = -int(json_length) % ALIGNED if json_length.isdecimal() and len(json_length) < 10 else 0
        return np.empty(first + size, np.uint8)[first:]

    def finish_body(self) -> None:
        """Leave the intake: the body is complete, or counted elsewhere."""
        if self.body is not None:
            self.body.finish()
            self.body = None

    def reject(self, reply: Reply) -> None:
        """Answer with ``reply``, and discard the body."""
        self.reply = reply
        self.received, self._room = b"", None
        self.finish_body()

    def take_body(self) -> bytes | memoryview:
        """Return the received part of the body, which then belongs to the caller."""
        if self.body is not None:
            self.finish_body()
        received, self.received, self._room = self.received, b"", None
        return received
