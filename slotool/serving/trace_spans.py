"""Spans as OpenTelemetry's SDK has them, made of what a server knows of an answered request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from slotool.serving import trace_attributes
from slotool.serving.trace_attributes import MAX_CHARACTERS
from slotool.serving.trace_context import TraceContext

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanMaker:
    """``$OTEL_SERVICE_NAME`` and ``$OTEL_RESOURCE_ATTRIBUTES`` go before the names that it gives the service.
    ``scheme``: by which requests over HTTP come."""

    def __init__(self, version: str, scheme: str):
        self._scheme = scheme
        own = Resource({SERVICE_NAME: "slotool", SERVICE_VERSION: version})
        named = Resource.create()
        if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            own, named = named, own
        self._resource = own.merge(named)
        self._scope = InstrumentationScope("slotool.serving", version)

    def spans_of(
        self,
        new_span: Callable[[], str],
        *,
        context: TraceContext,
        ended_ns: int,
        protocol: str,
        path: str,
        model: str | None,
        status: int,
        total_us: float | None,
        bytes_in: int,
        bytes_out: int,
        peer: str | None,
        answer: Mapping[str, Any],
        **others: Any,
    ) -> Iterator[ReadableSpan]:
        """The span of the request and, where it was answered, those of waiting in the queue and of the call."""
        began_ns = ended_ns - round(1e3 * (total_us or 0.0))
        model = model[:MAX_CHARACTERS] if model else None
        if protocol == "grpc":
            request = trace_attributes.of_grpc(path, status, peer)
        else:
            request = trace_attributes.of_http(path, status, bytes_in, bytes_out, peer, self._scheme)
        attributes = request.attributes | _named(model=model, **answer)
        own = _context(context.trace, context.span)
        parent = _context(context.trace, context.parent, is_remote=True) if context.parent else None
        failed = Status(StatusCode.ERROR) if request.is_error else Status()
        yield self._span(request.name, own, parent, began_ns, ended_ns, attributes, SpanKind.SERVER, failed)
        if "queue_us" not in answer or "compute_us" not in answer:
            return
        dispatched_ns = began_ns + round(1e3 * answer["queue_us"])
        computed_ns = dispatched_ns + round(1e3 * answer["compute_us"])
        at_point = _named(model=model, operating_point=answer.get("operating_point"))
        for name, begin_ns, end_ns, said in (
            ("queue", began_ns, dispatched_ns, {}),
            ("call", dispatched_ns, computed_ns, at_point),
        ):
            yield self._span(name, _context(context.trace, new_span()), own, begin_ns, end_ns, said)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        begin_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            status=status or Status(),
            start_time=begin_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace: str, span: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=is_remote, trace_flags=_SAMPLED)


def _named(**facts: Any) -> dict[str, Any]:
    """Attributes of slotool's own."""
    return {f"slotool.{name}": value for name, value in facts.items() if value is not None}
