"""The answering half of a connection over HTTP/1.1: one request after the other, in the order in which they came."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol

from starlette.types import ASGIApp

from slotool.serving.http.asgi import AsgiCycle
from slotool.serving.http.exchange import Exchange
from slotool.serving.http.fast_path import FastPath
from slotool.serving.http.transport import FlowControl
from slotool.serving.reply import Reply


class ServerState(Protocol):
    """What a server knows of its connections: it ends once these and the tasks have ended."""

    total_requests: int
    connections: set[Any]
    tasks: set[asyncio.Task[None]]


class AnsweringProtocol(asyncio.Protocol, ABC):
    """Requests for an inference are answered by the fast path, all others by the ASGI application.

    What reads the connection queues requests (``_enqueue``, ``_advance``), and says what comes between two of them.
    """

    _transport: asyncio.Transport
    _flow: FlowControl
    # The address of the client.
    _peer: str | None = None

    def __init__(
        self, app: ASGIApp, server_state: ServerState, loop: asyncio.AbstractEventLoop, fast_path: FastPath
    ) -> None:
        self._app, self._server_state, self._loop, self._fast_path = app, server_state, loop, fast_path
        # The request that is being answered, those that wait for it, and the one whose body is arriving: it may be one
        # of these. Bytes that came meanwhile are not fed yet.
        self._exchange: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        self._held = b""
        self._lingers = False
        # The next answer says that the connection closes; and it closes even where the last one did not say so.
        self._leaves = self._stops = False

    @abstractmethod
    def _resume(self) -> None:
        """Feed what has come while a request was being answered."""

    @abstractmethod
    def _watch(self) -> None:
        """Set the deadline for what the client is to do next."""

    @abstractmethod
    def _linger(self) -> None:
        """Say no more, and read until the client has closed its side too, but not for long."""

    def _enqueue(self, exchange: Exchange) -> None:
        exchange.is_queued = True
        self._waiting.append(exchange)

    def _advance(self) -> None:
        """Begin with the next request, unless one is being answered or the client does not read what it was sent."""
        if self._exchange is None and self._waiting and not self._flow.write_paused and not self._lingers:
            self._begin(self._waiting.popleft())
            if self._exchange is None:
                return
            if self._exchange is self._incoming and self._held:
                # The rest of its body came while others were being answered.
                self._loop.call_soon(self._resume)
        self._watch()

    def _begin(self, exchange: Exchange) -> None:
        if exchange.head is not None and exchange.reply is None:
            # Others may have come while its body did.
            exchange.reply = self._fast_path.early_rejection(exchange.head)
        self._begin_admitted(exchange)

    def _begin_admitted(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if exchange.reply is not None:
            self._reply(exchange.reply)
        elif exchange.head is not None:
            self._fast_path.answer(
                exchange.head, exchange.take_body(), self._transport.is_closing, self._reply, self._peer
            )
        else:
            self._begin_asgi(exchange)

    def _begin_asgi(self, exchange: Exchange) -> None:
        assert exchange.scope is not None
        exchange.cycle = AsgiCycle(
            exchange.request,
            exchange.scope,
            self._transport,
            self._flow,
            body=bytes(exchange.take_body()),
            keep_alive=exchange.request.keep_alive and not (self._leaves and not self._waiting),
            close=self._linger,
            on_response=self._answered,
        )
        task = self._loop.create_task(exchange.cycle.run(self._app))
        task.add_done_callback(self._server_state.tasks.discard)
        self._server_state.tasks.add(task)

    def _reply(self, reply: Reply) -> None:
        """Answer the current request, as its last word if more of it is to come."""
        exchange = self._exchange
        if exchange is not None:
            reply = self._fast_path.finish(exchange.head, reply, self._peer, exchange.request.body_bytes)
        if self._transport.is_closing() or self._lingers or exchange is None:
            return
        request = exchange.request
        last = not (request.complete and request.keep_alive) or (self._leaves and self._has_no_more())
        if last or reply.answer is None or not reply.answer.is_shared:
            self._transport.write(reply.http(request.method, close=last))
        else:
            self._fast_path.outbox.add(self._transport, reply.http())
        if last:
            self._linger()
        self._answered()

    def _answered(self) -> None:
        self._server_state.total_requests += 1
        if self._lingers or self._transport.is_closing():
            return
        self._exchange = None
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
