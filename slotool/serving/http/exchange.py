"""A request and the way in which it is answered."""

from __future__ import annotations

from starlette.types import Scope

from slotool.serving.http.asgi import AsgiCycle
from slotool.serving.http.heads import Head
from slotool.serving.http.requests import HttpRequest
from slotool.serving.intake import Body
from slotool.serving.reply import Reply


class Exchange:
    """A request on its way to an answer, of which exactly one is set once its head is read:

    ``reply``: known without its body, which is discarded; ``head``: the fast path answers it when it is complete;
    ``scope``: the ASGI application does, by ``cycle`` once that has begun.

    ``arrival_us``: since when a request with a ``head`` may have been here, by the router's clock.
    ``received``: of its body and not taken yet; ``body``: its place in the intake while it is unfinished;
    ``is_queued``: its turn to be answered has been fixed.
    """

    __slots__ = ("arrival_us", "body", "cycle", "head", "is_queued", "received", "reply", "request", "scope")

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
        self.received: bytes | bytearray | memoryview = b""
        self.body: Body | None = None
        self.is_queued = False

    def add(self, data: bytes | memoryview) -> None:
        """The next bytes of its body. Chunks may hold two bytes each: as objects of their own they would take 27 times
        the memory that the intake counts. A body that comes whole, as most do, is not copied."""
        if not self.received:
            self.received = data
            return
        if not isinstance(self.received, bytearray):
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

    def take_body(self) -> bytes | bytearray | memoryview:
        """What has arrived of the body and is not taken yet; it is the caller's own."""
        if self.body is not None:
            self.finish_body()
        received, self.received = self.received, b""
        return received
