"""A request and the way in which it is answered."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from slotool.serving.http.fast_path import LOG, Head
from slotool.serving.http.requests import Request
from slotool.serving.http.transport import CoalescingTransport
from slotool.serving.intake import Body
from slotool.serving.reply import Reply


class Exchange:
    """A request on its way to an answer, of which exactly one is set once its head is read:

    ``reply``: known without its body, which is discarded; ``head``: the fast path answers it when it is complete;
    ``scope``: the ASGI application does, by ``cycle`` once that has begun.

    ``received``: of its body and not taken yet; ``body``: its place in the intake while it is unfinished;
    ``is_queued``: its turn to be answered has been fixed.
    """

    __slots__ = ("body", "cycle", "head", "is_queued", "received", "reply", "request", "scope")

    def __init__(
        self,
        request: Request,
        *,
        reply: Reply | None = None,
        head: Head | None = None,
        scope: dict[str, Any] | None = None,
    ):
        self.request, self.reply, self.head, self.scope = request, reply, head, scope
        self.cycle: Cycle | None = None
        self.received: bytes | bytearray = b""
        self.body: Body | None = None
        self.is_queued = False

    def add(self, data: bytes) -> None:
        """The next bytes of its body. Chunks may hold two bytes each: as objects of their own they would take 27 times
        the memory that the intake counts. A body that comes whole, as most do, is not copied."""
        if not self.received:
            self.received = data
            return
        if isinstance(self.received, bytes):
            self.received = bytearray(self.received)
        self.received += data

    def finish_body(self) -> None:
        """It is complete, or counted elsewhere."""
        if self.body is not None:
            self.body.finish()
            self.body = None

    def reject(self, reply: Reply) -> None:
        """Answer so, and discard the body."""
        self.reply = reply
        self.received = b""
        self.finish_body()

    def begin_cycle(
        self,
        transport: CoalescingTransport,
        flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> Cycle:
        """The ASGI side of this request, which has what has arrived of the body, and is to be run."""
        self.cycle = Cycle(
            scope=self.scope,  # type: ignore[arg-type]
            transport=transport,  # type: ignore[arg-type]
            flow=flow,
            logger=LOG,
            access_logger=LOG,
            access_log=False,
            default_headers=default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.request.expects_continue,
            keep_alive=keep_alive,
            on_response=on_response,
        )
        self.cycle.body += self.take_body()
        self.cycle.more_body = not self.request.complete
        self.cycle.message_event.set()
        return self.cycle

    def take_body(self) -> bytes:
        """What has arrived of the body and is not taken yet."""
        self.finish_body()
        received, self.received = self.received, b""
        return bytes(received)


class Cycle(RequestResponseCycle):
    """uvicorn's ASGI side of a request. A response that begins before the body has been read is the connection's last:
    so no byte of that body can be taken for the next request, whatever a proxy in between thinks of it."""

    async def send(self, message: Any) -> None:
        if self.more_body and message["type"] == "http.response.start":
            self.keep_alive = False
        await super().send(message)

    def disconnect(self) -> None:
        """Tell the application that the client has left; what it still sends goes nowhere."""
        self.disconnected = True
        self.message_event.set()


def scope_of(request: Request, connection: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The ASGI scope of a request. ``connection``: its ``server``, ``client`` and ``scheme``.

    Raises ``ValueError`` for a target that is no path.
    """
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
