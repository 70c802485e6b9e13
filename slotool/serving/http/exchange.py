"""A request and the way in which it is answered."""

from __future__ import annotations

import numpy as np
from starlette.types import Scope

from slotool.serving.http.asgi import AsgiCycle
from slotool.serving.http.heads import Head
from slotool.serving.http.requests import HttpRequest
from slotool.serving.protocol.intake import Body
from slotool.serving.protocol.reply import Reply
from slotool.serving.protocol.tensors import HEADER_LENGTH

# Memory is reserved for so many times what is there of a body, and tensors begin at a multiple of so many bytes.
RESERVED, ALIGNED = 4, 16


class Exchange:
    """A request on its way to an answer, of which exactly one is set once its head is read:

    ``reply``: known without its body, which is discarded; ``head``: the handler of inferences answers it when it is
    complete; ``scope``: the ASGI application does, by ``cycle`` once that has begun.

    ``arrival_us``: since when a request with a ``head`` may have been here, by the router's clock.
    ``received``: of its body and not taken yet; ``body``: its place in the intake while it is unfinished;
    ``is_queued``: its turn to be answered has been fixed.
    """

    __slots__ = ("_room", "arrival_us", "body", "cycle", "head", "is_queued", "received", "reply", "request", "scope")

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
        self.is_queued = False

    def add(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the body.

        One that comes whole, as most do, is not copied. Pieces are copied once, to where their tensors can stay:
        clients may send two bytes at a time, which as objects of their own would take 27 times the memory that is
        counted.
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
        """Return memory for a body of which ``size`` bytes are there: for all of it, or for ``RESERVED`` times as much.

        What follows the JSON begins at a multiple of ``ALIGNED`` bytes.
        """
        size = max(2 * size, min(self.request.content_length or 0, RESERVED * size))
        json_length = "" if self.head is None else self.head.headers.get(HEADER_LENGTH, "")
        first = -int(json_length) % ALIGNED if json_length.isdecimal() and len(json_length) < 10 else 0
        return np.empty(first + size, np.uint8)[first:]

    def finish_body(self) -> None:
        """It is complete, or counted elsewhere."""
        if self.body is not None:
            self.body.finish()
            self.body = None

    def reject(self, reply: Reply) -> None:
        """Answer so, and discard the body."""
        self.reply = reply
        self.received, self._room = b"", None
        self.finish_body()

    def take_body(self) -> bytes | memoryview:
        """What has arrived of the body and is not taken yet; it is the caller's own."""
        if self.body is not None:
            self.finish_body()
        received, self.received, self._room = self.received, b"", None
        return received
