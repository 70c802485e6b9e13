"""Bodies of requests to the ASGI application: received in pieces, and decompressed, within limits."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Message, Receive

from slotool.serving import rejections
from slotool.serving.protocol import bounds
from slotool.serving.rejections import Rejection


class Intake:
    """Bound of unfinished bodies: ``max_bytes`` of all together, ``max_s`` seconds for each.

    A half-sent body costs memory only, so it is no request in progress. If all together are too large, the largest is
    rejected.
    """

    def __init__(self, max_bytes: int, max_s: float):
        self._max_bytes, self._max_s = max_bytes, max_s
        self._bodies: set[Body] = set()
        self._closed: Rejection | None = None
        self.held_bytes = 0

    def begin(self, on_end: Callable[[Rejection], None]) -> Body:
        """Register a body whose first bytes have come. Raises ``Rejection`` (503) if the server ends.

        ``on_end`` is called at most once, when the body is rejected: it must read no further bytes.
        """
        if self._closed is not None:
            raise self._closed
        body = Body(self, on_end)
        self._bodies.add(body)
        return body

    @asynccontextmanager
    async def body(self) -> AsyncIterator[Body]:
        """Bound a body while it is read: call ``grow`` of the returned ``Body``.

        Raises ``Rejection``: 408 when it takes too long, 503 when it is the largest of too many bytes or the server
        ends.
        """
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
        """Stop reading from all clients; ``rejection`` gives the reason."""
        self._closed = rejection
        for body in list(self._bodies):
            body.end(rejection)

    def grown(self, count: int) -> None:
        self.held_bytes += count
        if self.held_bytes > self._max_bytes:
            in_use = sum(body.size for body in self._bodies if body.rejection is None)
            if in_use > self._max_bytes:
                largest = max((body for body in self._bodies if body.rejection is None), key=lambda body: body.size)
                largest.end(rejections.too_many_bytes(self._max_bytes))

    def finished(self, body: Body) -> None:
        if body in self._bodies:
            self._bodies.discard(body)
            self.held_bytes -= body.size


class Body:
    """Body on its way in; ``size``: its received bytes; ``rejection``: why reading stopped."""

    def __init__(self, intake: Intake, on_end: Callable[[Rejection], None]):
        self.size = 0
        self.rejection: Rejection | None = None
        self._intake, self._on_end = intake, on_end

    def grow(self, count: int) -> None:
        """Count ``count`` more bytes."""
        self.size += count
        self._intake.grown(count)

    def end(self, rejection: Rejection) -> None:
        """Stop reading: the reader receives this rejection instead."""
        if self.rejection is None:
            self.rejection = rejection
            self._on_end(rejection)

    def finish(self) -> None:
        """Leave the intake: it is complete, or no longer read."""
        self._intake.finished(self)


def _expire(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


_WINDOW_BITS = {"gzip": 31, "deflate": 15}


async def read_body(receive: Receive, max_bytes: int, intake: Intake) -> bytes:
    """Read the whole body, counted by ``intake`` meanwhile. Raises ``Rejection``: 413 too long, 408 too slow."""
    message = receive_nowait(receive)
    if message is not None and message["type"] == "http.request" and not message.get("more_body"):
        return _within(message.get("body", b""), 0, max_bytes)
    # One buffer, the only copy: clients may send two bytes at a time, each an object of 18 times the memory.
    received = bytearray()
    async with intake.body() as body:
        while True:
            if message is None:
                message = await receive()
            if message["type"] == "http.disconnect":
                raise rejections.client_gone()
            received += _within(message.get("body", b""), body.size, max_bytes)
            body.grow(len(received) - body.size)
            if not message.get("more_body"):
                return bytes(received)
            message = None


def _within(chunk: bytes, before: int, max_bytes: int) -> bytes:
    if before + len(chunk) > max_bytes:
        raise bounds.too_large(max_bytes)
    return chunk


def decompressed(
    body: bytes, encoding: str, max_bytes: int, inflated_anyway_bytes: int = bounds.INFLATED_BYTES
) -> bytes:
    """Inflate ``body``, up to a bound that follows from ``max_bytes`` and its length.

    Raises ``Rejection``: 413 beyond the bound, 415 for another encoding than gzip and deflate, 400 for damaged data.
    """
    if encoding not in _WINDOW_BITS:
        raise Rejection(415, "bad-request", f"Content-Encoding {encoding[:40]!r} is neither gzip nor deflate")
    bound = bounds.inflated_bytes(len(body), max_bytes, inflated_anyway_bytes)
    inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        # One byte more than allowed, so that data of exactly the bound comes to its end.
        plain = inflate.decompress(body, bound + 1)
    except zlib.error:
        raise rejections.bad_request(f"the body is not {encoding} data") from None
    if len(plain) > bound:
        sentence = f"the decompressed body is longer than {bound} bytes, the most that one of {len(body)} may become"
        raise rejections.too_large(f"{sentence}; send it uncompressed, or in smaller batches")
    if not inflate.eof or inflate.unused_data:
        raise rejections.bad_request(f"the {encoding} data is cut short, or something follows it")
    return plain


def receive_nowait(receive: Receive) -> Message | None:
    """Return a message without waiting, and without a task; None when ``receive`` would wait."""
    step = receive().__await__()
    try:
        next(step)
    except StopIteration as received:
        message: Message = received.value
        return message
    step.close()
    return None


def client_disconnected(receive: Receive) -> bool:
    """True if the client has closed the connection: once the body is read, nothing else can come."""
    message = receive_nowait(receive)
    return message is not None and message["type"] == "http.disconnect"
