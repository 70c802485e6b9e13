"""Connection over HTTP/1.1: llhttp frames requests, which are answered in order and bounded in bytes and time."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any, Protocol, cast

from starlette.types import ASGIApp

from slotool.serving import rejections
from slotool.serving.front.frontend import FrontEnd
from slotool.serving.http.connection import (
    HIGH_WATER_BYTES,
    AsgiCycle,
    Deadline,
    Exchange,
    FlowControl,
    Lingering,
    scope_of,
)
from slotool.serving.http.inference import InferenceHandler
from slotool.serving.http.requests import HttpRequest, RequestReader, head_fault
from slotool.serving.protocol.reply import Reply
from slotool.serving.rejections import Rejection

# Bodies up to this length are awaited before a request that is no inference, or is rejected, is answered. The
# application itself reads longer ones; a rejection is sent at once, and the connection closes.
MAX_AWAITED_BYTES = HIGH_WATER_BYTES
# Bytes parsed at once: a packet of 256 KiB may hold 14,000 requests, and others need the event loop, too.
MAX_FED_BYTES = 8_192
# Lengths of chunks and trailers: bytes beyond eight per byte of body, which the smallest chunks need.
MAX_FRAMING_BYTES = 65_536
OVERLOADED = Reply.rejecting(rejections.overloaded()).http()


class ServerState(Protocol):
    """Connections and tasks that a server waits for before it ends."""

    total_requests: int
    connections: set[Any]
    tasks: set[asyncio.Task[None]]


class HttpProtocol(asyncio.Protocol):
    """Protocol object of each connection of uvicorn's server.

    All bytes go through one ``RequestReader``. Requests are answered in their order: inferences by their handler once
    they are complete, all others by the ASGI application, which also begins with a complete request unless its body is
    longer than 64 KiB or waits for ``100 Continue``.

    An answer sent before the end of its request closes the connection. It lingers: what the client still sends is read
    and discarded, so that no reset overtakes the answer.

    The time for a head counts from the connection, and later from its first byte. ``max_connections``: where the system
    allows fewer than the limits of ``front``.
    """

    _transport: asyncio.Transport
    _flow: FlowControl
    # The address of the client.
    _peer: str | None = None

    def __init__(
        self,
        config: object,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        app: ASGIApp,
        front: FrontEnd,
        inferences: InferenceHandler,
        max_connections: int | None = None,
    ) -> None:
        self._app, self._server_state, self._inferences = app, server_state, inferences
        self._loop = _loop or asyncio.get_running_loop()
        self._app_state, self._front, self._limits = app_state, front, front.limits
        self._max_connections = front.limits.connections if max_connections is None else max_connections
        self._reader = RequestReader(self, inferences.known_heads)
        self._deadline = Deadline(self._loop, self._late)
        # The request being answered, those that wait for it, and the one whose body is arriving, which may be one of
        # these. Bytes that came meanwhile are not parsed yet.
        self._exchange: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        self._held = b""
        self._lingers = False
        # The next answer announces the end of the connection; it ends even if the last answer did not announce it.
        self._leaves = self._stops = False
        # Upper bound of the bytes of the current head.
        self._fed_bytes = 0
        # Start of the wait for the current head, and for the body of ``_incoming``.
        self._head_began_s: float | None = self._loop.time()
        # Instant of the last answer, before which the client had no reason to send the next request.
        self._answered_us = 1e6 * self._head_began_s
        self._body_began_s: float | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # As in asyncio's streams; uvloop's transports have the methods without the base class.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._flow = FlowControl(transport)
        self._lingering = Lingering(transport, self._deadline, self._loop.time)
        addresses = {side: _address(transport, name) for side, name in (("server", "sockname"), ("client", "peername"))}
        self._peer = addresses["client"][0] if addresses["client"] else None
        self._addresses: dict[str, Any] = {
            **addresses,
            "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        }
        connections = self._server_state.connections
        connections.add(self)
        self._leaves = self._front.is_leaving
        if len(connections) > self._max_connections:
            self._reject(rejections.too_many_connections(self._max_connections))
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._deadline.cancel()
        self._reader.close()
        self._drop_incoming()
        self._waiting.clear()
        if self._exchange is not None and self._exchange.cycle is not None:
            self._exchange.cycle.disconnect()
        self._flow.resume_writing()

    def pause_writing(self) -> None:
        self._flow.pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._transport.is_closing():
            return
        if self._held or self._is_busy():
            self._held += data
            self._flow.pause_reading()
        elif not (self._front.is_behind and self._reject_late(data)):
            self._feed(data)

    # Called by uvicorn's server.

    def shutdown(self) -> None:
        """Answer what has come, then close."""
        self._leaves = self._stops = True
        if self._exchange is not None and self._exchange.cycle is not None and not self._waiting:
            self._exchange.cycle.keep_alive = False
        if self._exchange is None and not self._waiting and self._incoming is None and not self._lingers:
            self._transport.close()

    def leave(self) -> None:
        """Close after the next answer, which announces it, so that no client reuses a closed connection."""
        self._leaves = True

    # Called by the reader.

    def head_received(self, request: HttpRequest) -> None:
        self._head_began_s = self._body_began_s = None
        self._incoming = self._new_exchange(request)

    def body_received(self, data: bytes | memoryview) -> None:
        exchange = self._incoming
        if exchange is None:
            return
        exchange.body_bytes += len(data)
        if exchange.reply is not None:
            return
        if exchange.cycle is None:
            exchange.add(data)
            if exchange.body is not None:
                exchange.body.grow(len(data))
            return
        exchange.cycle.add(data)

    def request_complete(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is None:
            return
        exchange.is_complete = True
        exchange.finish_body()
        if exchange.cycle is not None:
            exchange.cycle.finish_body()
        elif not exchange.is_queued:
            self._enqueue(exchange)

    # Reading.

    def _new_exchange(self, request: HttpRequest) -> Exchange | None:
        """Return the exchange of a request; None when the connection is rejected."""
        # A head of this length did not come in one small packet.
        if self._fed_bytes > self._limits.head_bytes and request.head_bytes > self._limits.head_bytes:
            self._reject(self._head_too_large(), request.method)
            return None
        if request.method == "CONNECT":
            self._reject(Rejection(405, "bad-request", "CONNECT is not served here: this is no proxy"))
            return None
        head = request.inference or self._inferences.head_of(request)
        if head is not None:
            return Exchange(request, head=head, arrival_us=self._arrival_us())
        if (fault := head_fault(request)) is not None:
            self._reject(fault, request.method)
            return None
        try:
            scope = scope_of(request, self._addresses, self._app_state)
        except ValueError:
            self._reject(rejections.bad_request("the request's target is no path"), request.method)
            return None
        return Exchange(request, scope=scope)

    def _is_busy(self) -> bool:
        """True if requests must be answered before another byte is parsed."""
        return bool(self._waiting) or (self._exchange is not None and self._exchange is not self._incoming)

    def _arrival_us(self) -> float:
        return max(self._front.arrival_us(), self._answered_us)

    def _reject_late(self, data: bytes) -> bool:
        """Reject a whole request that waits too long, before anything of it is parsed; False for others."""
        if not self._reader.is_between_requests or self._leaves or self._flow.write_paused:
            return False
        arrival_us = self._arrival_us()
        if not (self._front.may_be_late(arrival_us) and self._inferences.is_late(data, arrival_us)):
            return False
        self._head_began_s = None
        self._inferences.outbox.add_rejection(self._transport, OVERLOADED)
        self._answered()
        return True

    def _feed(self, data: bytes) -> None:
        """Parse a packet; keep back what follows requests that must be answered first."""
        if len(data) <= MAX_FED_BYTES:
            self._read(data)
            return
        at = 0
        while at < len(data) and not (self._lingers or self._transport.is_closing()):
            if self._is_busy():
                self._held = data[at:] + self._held
                self._flow.pause_reading()
                return
            incoming = self._incoming
            # The rest of a body is parsed at once.
            expected = (incoming.request.content_length or 0) - incoming.body_bytes if incoming is not None else 0
            end = at + max(MAX_FED_BYTES, expected)
            self._read(data[at:end])
            at = end

    def _read(self, data: bytes) -> None:
        self._fed_bytes = len(data) + (self._fed_bytes if self._reader.in_head else 0)
        is_http = self._reader.feed(data)
        if self._lingers or self._transport.is_closing():
            return
        if not is_http:
            self._reject(rejections.bad_request("this is not an HTTP/1.1 request"))
        elif self._reader.in_head and self._reader.head_bytes > self._limits.head_bytes:
            self._reject(self._head_too_large())
        elif self._incoming is not None:
            self._weigh(self._incoming)
        self._advance()

    def _weigh(self, exchange: Exchange) -> None:
        """Read on, reject, or begin to answer a request whose body is still arriving."""
        request = exchange.request
        if self._reader.framing_bytes > MAX_FRAMING_BYTES + 8 * exchange.body_bytes:
            self._reject(rejections.too_large("the body's chunks are all framing"))
            return
        expected = max(request.content_length or 0, exchange.body_bytes)
        if exchange.reply is None and exchange.head is not None:
            reply = None if exchange.body is not None else self._inferences.early_rejection(exchange.head)
            reply = reply or self._inferences.too_large(exchange.head, expected)
            if reply is not None:
                exchange.reject(reply)
        if exchange.reply is None and exchange.cycle is None and exchange.body is None:
            self._take_in(exchange)
        may_wait = exchange.head is not None and exchange.reply is None
        if not may_wait and (request.expects_continue or expected > MAX_AWAITED_BYTES) and not exchange.is_queued:
            self._enqueue(exchange)

    def _take_in(self, exchange: Exchange) -> None:
        """Count the memory of an unfinished body."""
        try:
            exchange.body = self._front.intake.begin(lambda rejection: self._give_up(exchange, rejection))
        except Rejection as rejection:
            self._give_up(exchange, rejection)
        else:
            exchange.body.grow(exchange.body_bytes)

    def _give_up(self, exchange: Exchange, rejection: Rejection) -> None:
        """Reject a request before its body is complete."""
        if exchange.head is None:
            self._reject(rejection)
        else:
            if exchange.reply is None:
                exchange.reject(self._inferences.rejected(exchange.head, rejection))
            if not exchange.is_queued:
                self._enqueue(exchange)
        self._loop.call_soon(self._advance)

    def _resume(self) -> None:
        if self._exchange is self._incoming or self._exchange is None:
            data, self._held = self._held, b""
            self._flow.resume_reading()
            if data and not self._transport.is_closing():
                self._feed(data)

    # Answering.

    def _enqueue(self, exchange: Exchange) -> None:
        exchange.is_queued = True
        self._waiting.append(exchange)

    def _advance(self) -> None:
        """Begin the next request, unless one is being answered or the client does not read."""
        if self._exchange is None and self._waiting and not self._flow.write_paused and not self._lingers:
            self._begin(self._waiting.popleft())
            if self._held and self._exchange is not None and self._exchange is self._incoming:
                # The rest of its body came while others were answered.
                self._loop.call_soon(self._resume)
        else:
            self._watch()

    def _begin(self, exchange: Exchange) -> None:
        if exchange.head is not None and exchange.reply is None:
            # Clients may have changed while its body arrived.
            exchange.reply = self._inferences.early_rejection(exchange.head)
        self._exchange = exchange
        if exchange.reply is not None:
            self._reply(exchange.reply)
        elif exchange.head is not None:
            body, is_disconnected = exchange.take_body(), self._transport.is_closing
            self._inferences.answer(
                exchange.head, body, exchange.arrival_us, is_disconnected, self._inference_ended, self._peer
            )
        else:
            self._begin_asgi(exchange)

    def _begin_asgi(self, exchange: Exchange) -> None:
        assert exchange.scope is not None
        exchange.cycle = AsgiCycle(
            exchange,
            exchange.scope,
            self._transport,
            self._flow,
            keep_alive=exchange.request.keep_alive and not (self._leaves and not self._waiting),
            close=self._linger,
            on_response=self._answered,
        )
        task = self._loop.create_task(exchange.cycle.run(self._app))
        task.add_done_callback(self._server_state.tasks.discard)
        self._server_state.tasks.add(task)

    def _inference_ended(self, outcome: Reply | Exception) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.head is not None:
            self._reply(self._inferences.reply_to(exchange.head, outcome))

    def _reply(self, reply: Reply) -> None:
        """Answer the current request; the connection ends if more of the request is to come."""
        exchange = self._exchange
        if exchange is not None:
            reply = self._inferences.finish(exchange, reply, self._peer)
        if self._transport.is_closing() or self._lingers or exchange is None:
            return
        request = exchange.request
        last = not (exchange.is_complete and request.keep_alive) or (self._leaves and self._has_no_more())
        if not last and reply.answer is not None and reply.answer.is_shared:
            self._inferences.outbox.add(self._transport, reply.http())
        elif not last and reply.answer is None and reply.status == 503:
            self._inferences.outbox.add_rejection(self._transport, reply.http())
        else:
            self._transport.write(reply.http(request.method, close=last))
        if last:
            self._linger()
        self._answered()

    def _answered(self) -> None:
        self._server_state.total_requests += 1
        if self._lingers or self._transport.is_closing():
            return
        self._exchange = None
        self._answered_us = 1e6 * self._loop.time()
        if self._stops and self._has_no_more():
            self._linger()
        elif self._waiting:
            # One per iteration of the loop: a packet may hold thousands.
            self._loop.call_soon(self._advance)
        elif self._held:
            self._loop.call_soon(self._resume)
        else:
            self._flow.resume_reading()
        self._watch()

    def _has_no_more(self) -> bool:
        return not self._waiting and self._incoming is None

    # Ending.

    def _reject(self, rejection: Rejection, method: str = "") -> None:
        """Reject after all earlier requests are answered; then the connection closes.

        ``method``: of a request whose head is known and whose body is not the one that arrives.
        """
        self._front.accounts.dropped("", rejection.cause)
        self._reader.stop()
        incoming = self._drop_incoming()
        # A request without an end, after whose answer the connection cannot go on.
        last = Exchange(HttpRequest(), reply=Reply.rejecting(rejection))
        last.request.method = incoming.request.method if incoming is not None else method
        if incoming is not None and incoming.cycle is not None:
            incoming.cycle.disconnect()
            if incoming.cycle.response_started:
                self._linger()
                return
            self._exchange = None
        elif incoming is not None and incoming.is_queued:
            self._waiting.remove(incoming)
        self._enqueue(last)

    def _linger(self) -> None:
        if self._lingers:
            return
        self._lingers = True
        self._reader.stop()
        self._drop_incoming()
        self._waiting.clear()
        self._held = b""
        self._flow.resume_reading()
        self._lingering.begin()

    def _drop_incoming(self) -> Exchange | None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.finish_body()
        return incoming

    def _watch(self) -> None:
        if self._lingers:
            return
        now_s, limits, incoming = self._loop.time(), self._limits, self._incoming
        if self._flow.write_paused:
            self._deadline.set(now_s + limits.keep_alive_s)
        elif self._exchange is not None or self._waiting or self._held:
            self._deadline.set(math.inf)
        elif incoming is not None:
            if self._body_began_s is None:
                self._body_began_s = now_s
            self._deadline.set(self._body_began_s + limits.body_s)
        elif self._reader.in_head or self._head_began_s is not None:
            if self._head_began_s is None:
                self._head_began_s = now_s
            self._deadline.set(self._head_began_s + limits.head_s)
        else:
            self._deadline.set(now_s + limits.keep_alive_s)

    def _late(self) -> None:
        incoming, limits = self._incoming, self._limits
        if self._lingers:
            self._lingering.late()
        elif self._flow.write_paused:
            self._transport.abort()
        elif self._exchange is not None or self._waiting or self._held:
            pass  # It is the client that waits.
        elif incoming is not None:
            self._give_up(incoming, rejections.too_slow(f"the body did not arrive within {limits.body_s:g} s"))
        elif self._reader.in_head:
            self._reject(rejections.too_slow(f"the request's head did not arrive within {limits.head_s:g} s"))
            self._advance()
        else:
            self._transport.close()

    def _head_too_large(self) -> Rejection:
        return Rejection(431, "too-large", f"the request's head is longer than {self._limits.head_bytes} bytes")


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    """Return host and port of one side of the connection; None for a socket without an address."""
    address = transport.get_extra_info(name)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
