"""An HTTP/1.1 client for load tests: as many connections as there are outstanding requests.

Connections use the parser of the server: on a machine that both share, a client that takes more time than the server
would be what is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from slotool.workloads.client.target import CERTIFICATE_VARIABLE, authorization, tls_context


class HttpClient:
    """Requests to one server, ``scheme://host[:port][/prefix]``; more of them open more connections.

    ``$SLOTOOL_TOKEN``, where it is set, goes with every request.
    """

    def __init__(self, address: str, answer_within_s: float):
        self._within_s = answer_within_s
        self.address = address
        parts = urlsplit(address)
        self._server = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path
        self._tls = tls_context(parts.scheme)
        self._common = _lines({"host": parts.netloc.rpartition("@")[2], "accept": "*/*", **authorization()})
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    def head(self, method: str, path: str) -> str:
        """Return the first lines of a request, to be made once for many."""
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._common}"

    async def request(self, head: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Return the response. Raises ``OSError`` or ``TimeoutError``."""
        request = f"{head}{_lines(headers)}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body
        until_s = time.perf_counter() + self._within_s
        connection = await self._connection()
        response = await connection.ask(request, until_s - time.perf_counter())
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    async def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        while self._tls and self._open:  # The event loop must not end before them, and TLS takes some turns of it.
            await asyncio.sleep(0)

    async def _connection(self) -> _Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_reusable:
                return connection
        host, port = self._server
        connecting = asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._open), host, port, ssl=self._tls
        )
        return (await asyncio.wait_for(connecting, self._within_s))[1]


@dataclass(frozen=True, slots=True)
class Response:
    """``headers``: names in lower case. ``at_s``: reading of ``time.perf_counter`` when the last byte was there."""

    status: int
    headers: dict[str, str]
    body: bytes
    at_s: float


class _Connection(asyncio.Protocol):
    """Connection for one request at a time; it is in ``open_ones`` while open."""

    _transport: asyncio.Transport

    def __init__(self, open_ones: set[_Connection]):
        self._open = open_ones
        self._answer: asyncio.Future[Response] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._stays = True
        self._headers_end = self._has_answered = False

    @property
    def is_reusable(self) -> bool:
        """True if another request can be sent."""
        return self._stays and not self._transport.is_closing()

    def ask(self, request: bytes, within_s: float) -> asyncio.Future[Response]:
        """Return the response to these bytes; ``ConnectionError`` or ``TimeoutError`` closes the connection."""
        loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._answer = loop.create_future()
        self._alarm = loop.call_later(max(0.0, within_s), self._late)
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport.can_write_eof():
            self._transport.close()
        else:  # TLS would wait for the server's last word.
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"this is no HTTP response ({error})"))

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)
        # A response without a length ends with its connection.
        if error is None and self._headers_end and "content-length" not in self._headers:
            self.on_message_complete()
        is_reset = error is None or isinstance(error, ConnectionResetError)
        self._fail(error if isinstance(error, OSError) and not is_reset else ConnectionResetError(self._closed()))

    def _closed(self) -> str:
        """Return the message about a server that has closed the connection: over TLS it gives no reason."""
        asks = self._transport.get_extra_info("sslcontext") is not None and not os.environ.get(CERTIFICATE_VARIABLE)
        may_want = f"; it may want a client's certificate: set {CERTIFICATE_VARIABLE}"
        return f"the server closed the connection{may_want if asks and not self._has_answered else ''}"

    def on_message_begin(self) -> None:
        self._headers, self._body, self._headers_end = {}, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headers_end = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None:
            return  # More follows, or no request waits.
        self._stays, self._has_answered = self._parser.should_keep_alive(), True
        answer = self._done()
        if answer is not None:
            answer.set_result(Response(status, self._headers, b"".join(self._body), time.perf_counter()))

    def _late(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self._stays = False
        self._transport.abort()
        if (answer := self._done()) is not None:
            answer.set_exception(error)

    def _done(self) -> asyncio.Future[Response] | None:
        """Return the future that waits for a response, if any; it is taken."""
        answer, self._answer, self._headers_end = self._answer, None, False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        return None if answer is None or answer.done() else answer


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
