"""OpenTelemetry spans of inferences: the request, its time in the queue, and the call that answered it.

Ids, sampling and export are those of OpenTelemetry's SDK, which sends spans to a collector over OTLP/HTTP from a thread
of its own. Attributes follow the semantic conventions for HTTP and gRPC servers (opentelemetry.io/docs/specs/semconv).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slotool import __version__
from slotool.errors import InputError
from slotool.extras import import_failed
from slotool.serving.events import warn
from slotool.serving.monitoring.access_log import MAX_CHARACTERS
from slotool.serving.rejections import GRPC_CODES

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


SPANS_PATH = "/v1/traces"
# Time limit of sending the last spans.
SEND_S = 1.0
# Interval of warnings about a collector that accepts no spans.
WARNING_INTERVAL_S = 60.0
_LIBRARY = "opentelemetry"
_ROUTES = re.compile(r"(?P<compute>/compute)|/v2/models/[^/]+(?P<version>/versions/[^/]+)?/infer")


class Traces:
    """Spans of requests, sent by ``exporter``.

    A caller that states a trace context decides (its ``sampled`` flag); of other requests a ``share`` is sampled.
    ``$OTEL_SERVICE_NAME`` and ``$OTEL_RESOURCE_ATTRIBUTES`` override the name of the service.
    """

    def __init__(self, exporter: SpanExporter, share: float = 1.0):
        """Set up tracing. Raises ``MissingPackageError`` without the extra ``otel``."""
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise import_failed(error, "opentelemetry", "--traces") from error
        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        service = Resource({"service.name": "slotool", "service.version": __version__})
        self._provider = TracerProvider(
            ParentBasedTraceIdRatio(share), service.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("slotool.serving", __version__)

    def add(
        self,
        headers: Mapping[str, str],
        *,
        protocol: str,
        path: str,
        model: str | None,
        status: int,
        total_us: float | None,
        bytes_in: int,
        bytes_out: int,
        peer: str | None,
        answer: Mapping[str, Any],
        **_: Any,
    ) -> str | None:
        """Make the spans of an answered request, if it is sampled, and return its trace id; else None.

        ``headers``: names in lower case; only ``traceparent`` counts. ``_``: further facts of ``AccessLog.add``.
        """
        trace, ended_ns = self._trace, time.time_ns()
        began_ns = ended_ns - round(1e3 * (total_us or 0.0))
        caller = self._propagator.extract({TRACE_HEADER: headers.get(TRACE_HEADER, "")})
        path, facts = path[:MAX_CHARACTERS], {"model": model[:MAX_CHARACTERS] if model else None, **answer}
        attributes: dict[str, Any]
        if protocol == "grpc":
            name = path.removeprefix("/")
            attributes = {
                "rpc.system.name": "grpc",
                "rpc.method": name,
                "rpc.response.status_code": GRPC_CODES.get(status),
            }
        else:
            name = f"POST {_route(path)}".rstrip()
            attributes = {
                "http.request.method": "POST",
                "http.route": _route(path) or None,
                "url.path": path,
                "http.response.status_code": status,
                "http.request.body.size": bytes_in,
                "http.response.body.size": bytes_out,
            }
        attributes |= {"network.peer.address": peer, "error.type": str(status) if status >= 500 else None}
        described = _present(attributes) | _present({f"slotool.{name}": value for name, value in facts.items()})
        span = self._tracer.start_span(name, caller, trace.SpanKind.SERVER, described, start_time=began_ns)
        if span.is_recording() and "queue_us" in answer and "compute_us" in answer:
            within, at_ns = trace.set_span_in_context(span), began_ns
            for part, took_us in (("queue", answer["queue_us"]), ("call", answer["compute_us"])):
                began, at_ns = at_ns, at_ns + round(1e3 * took_us)
                self._tracer.start_span(part, within, start_time=began).end(at_ns)
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end(ended_ns)
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else None

    def close(self) -> None:
        """Send the last spans, within ``SEND_S``: the collector may be absent or silent."""
        # The exporter tries again for many seconds, and has no option against it.
        sending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        sending.start()
        sending.join(SEND_S)
        if sending.is_alive():
            logging.getLogger(_LIBRARY).warning("the last spans were not sent in time")


def otlp_exporter(url: str) -> SpanExporter:
    """Return an exporter to a collector at ``http://HOST:4318``, by default at OTLP's path.

    ``$OTEL_EXPORTER_OTLP_HEADERS`` and the like hold. Raises ``InputError`` for another kind of address,
    ``MissingPackageError`` without the extra ``otel``.
    """
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        usable = False
    if not usable:
        raise InputError(f"traces: {url!r} is no address of a collector; http://HOST:4318 is expected")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise import_failed(error, "opentelemetry", "--traces") from error
    logger = logging.getLogger(_LIBRARY)
    logger.handlers = [
        _InOneSentence(f"spans do not reach the collector at {url}, and are lost: does one listen there?")
    ]
    logger.propagate = False
    exporter: SpanExporter = OTLPSpanExporter(url if parts.path.strip("/") else f"{url.rstrip('/')}{SPANS_PATH}")
    return exporter


class _InOneSentence(logging.Handler):
    """Handler that prints one sentence at most once a minute in place of OpenTelemetry's log of every attempt."""

    def __init__(self, sentence: str):
        super().__init__(logging.WARNING)
        self._sentence, self._next_s = sentence, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + WARNING_INTERVAL_S
            warn(self._sentence)


def _route(path: str) -> str:
    """Return the route of an inference, without names of models; empty for other paths."""
    parts = _ROUTES.fullmatch(path)
    if parts is None:
        return ""
    return parts["compute"] or f"/v2/models/{{model}}{'/versions/{version}' if parts['version'] else ''}/infer"


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


TRACE_HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


def trace_id(traceparent: str | None) -> str | None:
    """Return the trace id of a ``traceparent`` header; None for none or an invalid one (to be ignored, section 4.3)."""
    parts = None if traceparent is None else _FORM.fullmatch(traceparent)
    if parts is None:
        return None
    version, trace, span, more = parts.groups()
    # Version 00 ends with its flags, later ones may continue; ff is invalid.
    if version == "ff" or (version == "00" and more is not None) or not trace.strip("0") or not span.strip("0"):
        return None
    return trace
