"""Rejection of complete inference requests that cannot be in time while the event loop is overloaded: framed by llhttp
and searched for their deadlines, otherwise unread."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import httptools

from slotool.serving.frontend import FrontEnd
from slotool.serving.rejections import Rejection
from slotool.serving.reply import Reply

# The path of an inference; escaped names are left to the application's routes.
INFERENCE = re.compile(
    rb"/(?:v2/models/(?P<model>[\w.~-]+)(?:/versions/(?P<version>[\w.~-]+))?/infer|compute)", re.ASCII
)
# The deadline of a request, µs in JSON parameters or ms in a header. Longer packets are not searched for it.
_DEADLINE = re.compile(
    rb'"timeout" ?: ?"?(\d{1,12})(?=[",} \r\n])|\r\n(?i:deadline-ms): ?(\d{1,9}(?:\.\d*)?)\r\n', re.ASCII
)
MAX_SEARCHED_BYTES = 16_384


class BulkRejector:
    """Answers packets that hold inference requests and nothing else, for all connections.

    At several times its capacity a server spends its time on those that it rejects. Most of what the fast path does for
    a request (headers, an exchange, an answer of its own) is of no use to one that is rejected anyway; this does a
    fifth of it. What it does not take is left to the connection's own reader, as if it had not been looked at.
    """

    def __init__(self, front: FrontEnd):
        self._front = front
        self._framing = _Framing()
        self._rejection: Rejection | None = None
        self._answer = b""
        self._uncounted: Counter[tuple[str, str]] = Counter()

    def of(self, data: bytes) -> bytes | None:
        """Return the answer to ``data``, which begins where a request may. None unless it consists of whole inference
        requests that keep the connection, and none of them can be in time."""
        if len(data) > MAX_SEARCHED_BYTES or not data.startswith(b"POST /"):
            return None
        timeouts_us = [int(us) if us else 1e3 * float(ms) for us, ms in _DEADLINE.findall(data)]
        # A timeout of 0 is none.
        rejection = self._front.admission.rejection(max(timeouts_us)) if timeouts_us and min(timeouts_us) > 0 else None
        models = self._framing.models_of(data) if rejection is not None else []
        if rejection is None or len(models) != len(timeouts_us):
            return None
        if rejection is not self._rejection:
            self._rejection, self._answer = rejection, Reply.rejecting(rejection).http()
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count)
        for model in models:
            self._uncounted[model, rejection.cause] += 1
        return self._answer * len(models)

    def _count(self) -> None:
        """Once per iteration of the loop, for all requests rejected in it."""
        for (model, cause), count in self._uncounted.items():
            self._front.dropped(model, cause, count)
        self._uncounted.clear()


class _Framing:
    """Has llhttp find the ends of requests, without their headers."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._begun = self._complete = 0
        self._models: list[str] = []

    def models_of(self, data: bytes) -> list[str]:
        """The model that each request names, empty on ``/compute``. None at all unless ``data`` is as ``BulkRejector``
        wants it."""
        self._begun = self._complete = 0
        self._models = []
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._begun = -1
        if self._begun == self._complete == len(self._models):
            return self._models
        # What it has seen of ``data`` must not meet what comes next.
        self._parser = httptools.HttpRequestParser(self)
        return []

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._begun += 1

    def on_url(self, url: bytes) -> None:
        asked = INFERENCE.fullmatch(url)
        if asked is not None:
            self._models.append((asked[1] or b"").decode())

    def on_headers_complete(self) -> None:
        parser: Any = self._parser
        plain = parser.get_method() == b"POST" and parser.get_http_version() == "1.1"
        if not plain or not parser.should_keep_alive() or parser.should_upgrade():
            self._begun = -1

    def on_message_complete(self) -> None:
        self._complete += 1
