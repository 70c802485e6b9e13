"""Bodies that are still being read: how many bytes they hold together, and for how long each may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slotool.serving import rejections
from slotool.serving.rejections import Rejection


class Intake:
    """Bounds the bodies that were begun and are not whole: ``max_bytes`` of all together, ``max_s`` seconds for each.

    A half-sent body costs memory and nothing else, so it is no request in progress (``Admission``). Where all together
    are too large, the largest is rejected.
    """

    def __init__(self, max_bytes: int, max_s: float):
        self._max_bytes, self._max_s = max_bytes, max_s
        self._bodies: set[Body] = set()
        self._closed: Rejection | None = None
        self.held_bytes = 0

    def begin(self, on_end: Callable[[Rejection], None]) -> Body:
        """A body whose first bytes are here. ``on_end`` is called at most once, when the body is rejected or the
        server ends: it may not read further bytes. Raises that ``Rejection`` (503) if the server ends already."""
        if self._closed is not None:
            raise self._closed
        body = Body(self, on_end)
        self._bodies.add(body)
        return body

    @asynccontextmanager
    async def body(self) -> AsyncIterator[Body]:
        """While a body is read: call ``grow`` of the returned ``Body``. Raises ``Rejection``: 408 when it takes too
        long, 503 when it is the largest of too many bytes or the server ends."""
        body = None
        try:
            async with asyncio.timeout(self._max_s) as limit:
                body = self.begin(lambda rejection: _expire(limit))
                yield body
        except TimeoutError:
            rejection = body.rejection if body is not None else None
            raise rejection or rejections.too_slow(f"the body did not arrive within {self._max_s:g} s") from None
        finally:
            if body is not None:
                body.finish()

    def close(self, rejection: Rejection) -> None:
        """Read no further, from anybody; ``rejection`` says why."""
        self._closed = rejection
        for body in list(self._bodies):
            body.end(rejection)

    def grown(self, count: int) -> None:
        self.held_bytes += count
        if self.held_bytes > self._max_bytes:
            held = sum(body.size for body in self._bodies if body.rejection is None)
            if held > self._max_bytes:
                largest = max((body for body in self._bodies if body.rejection is None), key=lambda body: body.size)
                largest.end(rejections.too_many_bytes(self._max_bytes))

    def finished(self, body: Body) -> None:
        if body in self._bodies:
            self._bodies.discard(body)
            self.held_bytes -= body.size


class Body:
    """One body on its way in; ``size``: bytes of it that are here; ``rejection``: why it is read no further."""

    def __init__(self, intake: Intake, on_end: Callable[[Rejection], None]):
        self.size = 0
        self.rejection: Rejection | None = None
        self._intake, self._on_end = intake, on_end

    def grow(self, count: int) -> None:
        """So many bytes more are here."""
        self.size += count
        self._intake.grown(count)

    def end(self, rejection: Rejection) -> None:
        """Read no further: its reader receives this rejection instead."""
        if self.rejection is None:
            self.rejection = rejection
            self._on_end(rejection)

    def finish(self) -> None:
        """It is complete, or no longer read."""
        self._intake.finished(self)


def _expire(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())
