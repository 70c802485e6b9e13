"""Bodies of requests that the ASGI application answers: received in pieces, and decompressed, within limits."""

from __future__ import annotations

import zlib

from starlette.types import Message, Receive

from slotool.serving import rejections
from slotool.serving.protocol import bounds
from slotool.serving.protocol.intake import Intake
from slotool.serving.rejections import Rejection

_WINDOW_BITS = {"gzip": 31, "deflate": 15}


async def read_body(receive: Receive, max_bytes: int, intake: Intake) -> bytes:
    """The whole body, counted by ``intake`` while it is not whole. Raises ``Rejection``: 413 too long, 408 too slow."""
    message = receive_nowait(receive)
    if message is not None and message["type"] == "http.request" and not message.get("more_body"):
        return _within(message.get("body", b""), 0, max_bytes)
    # In one piece, of which this is the only copy: clients may send two bytes at a time, and an object for each
    # would take 18 times the memory that is counted.
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
    """``body`` inflated, no further than a bound that ``max_bytes`` and its own length give.

    Raises ``Rejection``: 413 beyond the bound, 415 for another encoding than gzip and deflate, 400 for damaged data.
    """
    if encoding not in _WINDOW_BITS:
        raise Rejection(415, "bad-request", f"Content-Encoding {encoding[:40]!r} is neither gzip nor deflate")
    bound = bounds.inflated_bytes(len(body), max_bytes, inflated_anyway_bytes)
    inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        # One byte more than is allowed, so that data of exactly the bound comes to its end.
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
    """What ``receive`` has to give without waiting, and without a task; None when it would wait."""
    step = receive().__await__()
    try:
        next(step)
    except StopIteration as received:
        message: Message = received.value
        return message
    step.close()
    return None


def client_disconnected(receive: Receive) -> bool:
    """Whether the client has closed the connection: once the body is read, nothing else can come."""
    message = receive_nowait(receive)
    return message is not None and message["type"] == "http.disconnect"
