"""OpenTelemetry spans of requests: the request, the time that it waited, and the call that answered it.

Spans are made by a thread from what is known of a request once it is answered, and sent to a collector over OTLP/HTTP;
requests never wait for it. Source: W3C Trace Context; OpenTelemetry's semantic conventions for HTTP and gRPC servers.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slotool import __version__
from slotool.errors import InputError
from slotool.extras import import_failed
from slotool.serving import trace_context
from slotool.serving.events import warn
from slotool.serving.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

# What waits to be made into spans; requests beyond it have none.
MAX_WAITING = 10_000
# Spans of so many seconds are made together.
INTERVAL_S = 0.2
SPANS_PATH = "/v1/traces"
# At the end: for making the last spans, and for sending them.
MAKE_S, SEND_S = 0.5, 1.0
# Between two sentences about a collector that takes no spans.
WARNING_INTERVAL_S = 60.0
_LIBRARY = "opentelemetry"


class Traces:
    """Spans of the requests that are chosen, sent by ``exporter``.

    A caller that states a trace context decides (its ``sampled`` flag); of other requests a ``share`` is chosen.
    ``encrypted``: whether requests come over TLS.
    """

    def __init__(self, exporter: SpanExporter, share: float = 1.0, *, encrypted: bool = False):
        """Raises ``MissingPackageError`` without the extra ``otel``."""
        try:
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            from slotool.serving.trace_spans import SpanMaker
        except ImportError as error:
            raise import_failed(error, "opentelemetry", "--traces") from error
        self._share = share
        self._random = random.Random(os.urandom(16))
        self._processor = BatchSpanProcessor(exporter)
        self._maker = SpanMaker(__version__, "https" if encrypted else "http")
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._has_lost = False
        self._thread = threading.Thread(target=self._make_all, name="traces", daemon=True)
        self._thread.start()

    def context_of(self, traceparent: str | None) -> TraceContext | None:
        """Of a request with this header; None where it is to have no spans."""
        parts = trace_context.parse(traceparent)
        if parts is None:
            if self._random.random() >= self._share:
                return None
            return TraceContext(f"{self._random.getrandbits(128) | 1:032x}", self._new_span(), "")
        return TraceContext(parts.trace, self._new_span(), parts.span) if parts.is_sampled else None

    def add(self, context: TraceContext, **line: Any) -> None:
        """A request that has just been answered. ``line``: what ``AccessLog.add`` gets, but for the headers."""
        if self._waiting.qsize() >= MAX_WAITING:
            if not self._has_lost:
                self._has_lost = True
                warn(f"{MAX_WAITING} requests wait to be traced: further ones have no spans until these are sent")
            return
        self._waiting.put({"context": context, "ended_ns": time.time_ns(), **line})

    def close(self) -> None:
        """Send what waits, for ``MAKE_S`` and ``SEND_S`` at most: a collector may not be there, or not answer."""
        self._waiting.put(None)
        self._thread.join(MAKE_S)
        # It tries again and again for many seconds, and cannot be told not to.
        sending = threading.Thread(target=self._processor.shutdown, name="traces-end", daemon=True)
        sending.start()
        sending.join(SEND_S)
        if sending.is_alive():
            logging.getLogger(_LIBRARY).warning("the last spans were not sent in time")

    def _new_span(self) -> str:
        return f"{self._random.getrandbits(64) | 1:016x}"

    def _make_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            for span in self._maker.spans_of(self._new_span, **line):
                self._processor.on_end(span)
            if self._waiting.empty():
                time.sleep(INTERVAL_S)


def otlp_exporter(url: str) -> SpanExporter:
    """Sends spans to a collector: ``http://HOST:4318``, whose path is that of OTLP where there is none.

    ``$OTEL_EXPORTER_OTLP_HEADERS`` and the like hold. Raises ``InputError`` for what is no such address,
    ``MissingPackageError`` without the extra ``otel``.
    """
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable:
        raise InputError(f"traces: {url!r} is no address of a collector; http://HOST:4318 is expected")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise import_failed(error, "opentelemetry", "--traces") from error
    _say_once(f"spans do not reach the collector at {url}, and are lost: does one listen there?")
    exporter: SpanExporter = OTLPSpanExporter(url if parts.path.strip("/") else f"{url.rstrip('/')}{SPANS_PATH}")
    return exporter


class _InOneSentence(logging.Handler):
    """In place of whatever a library says, one sentence, and no more of it for a while."""

    def __init__(self, sentence: str):
        super().__init__(logging.WARNING)
        self._sentence, self._next_s = sentence, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + WARNING_INTERVAL_S
            warn(self._sentence)


def _say_once(sentence: str) -> None:
    """Have OpenTelemetry's logs of every attempt to send spans, with names of its classes, stand for this."""
    logger = logging.getLogger(_LIBRARY)
    logger.handlers = [_InOneSentence(sentence)]
    logger.propagate = False


def headers_with(headers: Mapping[str, str], context: TraceContext | None) -> Mapping[str, str]:
    """Headers of a request as the access log is to see them: in its trace, where spans were made of it."""
    return headers if context is None else {**headers, trace_context.HEADER: context.header}
