"""Replies to inference requests over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

from starlette.responses import Response

from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Outcome, settle

JSON = "application/json"
BINARY = "application/octet-stream"
ACCEPTED = "accept-encoding"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Shorter bodies are sent uncompressed: one packet holds them anyway.
MIN_COMPRESSED_BYTES = 1_024
# Fastest level: other requests wait meanwhile.
LEVEL = 1
_COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, LEVEL, mtime=0),
    "deflate": lambda body: zlib.compress(body, LEVEL),
}
_NONE: Mapping[str, str] = MappingProxyType({})
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)


class Reply(NamedTuple):
    """Complete response. ``headers``: beyond type and length, in lower case; ``answer``: its result, if any."""

    body: bytes
    media_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = _NONE
    answer: InferenceResult | None = None

    @classmethod
    def of_json(
        cls, document: Mapping[str, Any] | Sequence[Any], status: int = 200, headers: Mapping[str, str] = _NONE
    ) -> Reply:
        """Encode ``document`` as strict JSON."""
        return cls(_ENCODER.encode(document).encode(), JSON, status, headers)

    @classmethod
    def rejecting(cls, rejection: Rejection, headers: Mapping[str, str] = _NONE) -> Reply:
        """Return the protocol's ``{"error": sentence}``, and when to try again, where that is known."""
        if rejection.retry_after_s is not None:
            headers = {"retry-after": str(rejection.retry_after_s), **headers}
        return cls(_error(str(rejection)), JSON, rejection.status, headers)

    @classmethod
    def broken(cls, error: BaseException) -> Reply:
        """Return a 500 that tells the client only the kind of error."""
        return cls.of_json({"error": f"a fault of slotool: {type(error).__name__}"}, 500)

    def encoded(self, accepted: str) -> Reply:
        """Return the reply in the encoding that ``Accept-Encoding`` names, if it names only one.

        Libraries list several by default, and compression takes longer than most networks save.
        """
        compress = _COMPRESSIONS.get(accepted.strip().lower())
        if compress is None or self.status != 200 or len(self.body) < MIN_COMPRESSED_BYTES:
            return self
        return self._replace(
            body=compress(self.body), headers={**self.headers, "content-encoding": accepted.strip().lower()}
        )

    def response(self) -> Response:
        """Convert the reply to Starlette's response."""
        return Response(self.body, self.status, dict(self.headers), self.media_type)

    def http(self, method: str = "POST", *, close: bool = False) -> bytes:
        """Return the bytes of an HTTP/1.1 response to ``method``. ``close``: the connection ends after it."""
        more = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()]) if self.headers else ""
        if close:
            more += "connection: close\r\n"
        head = _head(self.status, self.media_type, len(self.body), more)
        return head if method == "HEAD" else head + self.body


@lru_cache(maxsize=256)
def _head(status: int, media_type: str, length: int, more: str) -> bytes:
    phrase = _PHRASES.get(status, "")
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n{more}\r\n"
    return head.encode("latin-1")


@lru_cache(maxsize=256)
def _error(sentence: str) -> bytes:
    return _ENCODER.encode({"error": sentence}).encode()


# Takes a reply or an error: a rejection is still to be counted, anything else is a fault.
ReplyListener = Callable[[Reply | Exception], None]


async def awaited(submit: Callable[[ReplyListener], None]) -> Reply:
    """Return the reply that ``submit`` passes to its listener, or raise its error."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    submit(partial(settle, future))
    return await future


def listener(done: ReplyListener, reply: Callable[[InferenceResult], Reply]) -> Callable[[Outcome], None]:
    """Return a function that calls ``done`` with the reply to a result, or with an error."""

    def ended(outcome: Outcome) -> None:
        if isinstance(outcome, Rejection):
            done(outcome)
            return
        try:
            result = reply(outcome)
        except Exception as error:
            done(error)
        else:
            done(result)

    return ended
