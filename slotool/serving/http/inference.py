"""Handler of complete inference requests, without ASGI's messages and task."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slotool.serving import rejections
from slotool.serving.access import FORWARDED_FOR
from slotool.serving.front.compute import Compute
from slotool.serving.front.frontend import FrontEnd
from slotool.serving.front.oip import OpenInference
from slotool.serving.http.connection import Exchange, Outbox
from slotool.serving.http.requests import Head, HttpRequest, KnownHeads, read_head
from slotool.serving.monitoring.access_log import facts_of
from slotool.serving.monitoring.traces import TRACE_HEADER, trace_id
from slotool.serving.protocol import bounds
from slotool.serving.protocol.reply import ACCEPTED, Reply, ReplyListener
from slotool.serving.rejections import Rejection
from slotool.serving.served import ServedModel

LOG = logging.getLogger("uvicorn.error")


class InferenceHandler:
    """Handler that answers complete inference requests as the application's routes do."""

    def __init__(self, front: FrontEnd, inference: OpenInference, compute: Compute):
        self._front, self._inference, self._compute = front, inference, compute
        # Answers of one call leave together.
        self.outbox = Outbox()
        front.router.listen_to_batches(self._call_answered)
        self.known_heads = KnownHeads()

    def head_of(self, request: HttpRequest) -> Head | None:
        """Return the head of an inference request for this handler, and store it in ``request``.

        None for other pages, and for requests that only the routes can read: an escaped path, a repeated header, a
        compressed body, or one that waits for 100 Continue.
        """
        if request.method != "POST" or request.version != "1.1":
            return None
        head = request.inference = read_head(request.target, request.headers)
        return head

    def early_rejection(self, head: Head) -> Reply | None:
        """Return and count the rejection of a request whose body need not be read; else None."""
        front = self._front
        if front.clients is not None:
            try:
                front.let_in(head.headers.get("authorization"), False)
            except Rejection as turned_away:
                return front.turned_away(turned_away)
        return None

    def too_large(self, head: Head, body_bytes: int) -> Reply | None:
        """Return and count the rejection of a body of at least ``body_bytes``; None if that is allowed."""
        front = self._front
        if body_bytes <= min(bounds.OVERHEAD_BYTES, front.limits.body_bytes):
            return None
        try:
            served = self._model(head)
        except Rejection as rejection:
            return self.rejected(head, rejection)
        max_bytes = front.tensor_bytes(served) if head.model else front.example_bytes(served)
        return self.rejected(head, bounds.too_large(max_bytes)) if body_bytes > max_bytes else None

    def rejected(self, head: Head, rejection: Rejection) -> Reply:
        """Count a rejection and return its reply."""
        return self._front.rejected(rejection, head.model or head.headers.get("model"))

    def is_late(self, data: bytes, arrival_us: float) -> bool:
        """True if ``data`` is one inference with a known head that waits too long; it is then counted as rejected.

        Under overload there is no time to read more of it.
        """
        front, parsed = self._front, self.known_heads.find(data)
        head = parsed[0].inference if parsed is not None else None
        if parsed is None or head is None or not head.model or isinstance(head.options, Rejection):
            return False
        # These look at more of a request.
        if front.clients or front.addresses or front.has_records or TRACE_HEADER in head.headers:
            return False
        try:
            served = front.model(head.model, head.version)
            self._inference.require_timely(served, head.headers, head.options, parsed[1], arrival_us)
        except Rejection as rejection:
            if rejection.cause == rejections.TOO_MANY:
                front.accounts.dropped(head.model, rejection.cause)
                return True
        return False

    def answer(
        self,
        head: Head,
        body: bytes | bytearray | memoryview,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
        done: ReplyListener,
        peer: str | None = None,
    ) -> None:
        """Answer a complete request; ``done`` is called once, perhaps before this returns.

        ``done`` may pass its argument to ``reply_to``. ``arrival_us``: earliest arrival, by the router's clock;
        ``peer``: the client's address. A ``body`` that is a ``bytearray`` then belongs to the request: its tensors may
        lie in it.
        """
        front, options = self._front, head.options
        try:
            if front.clients is not None:
                front.let_in(head.headers.get("authorization"), True)
            if front.addresses is not None:
                front.let_address_in(peer, head.headers.get(FORWARDED_FOR))
            if isinstance(options, Rejection):
                raise options
            if head.model:
                served = front.model(head.model, head.version)
                self._inference.submit(served, head.headers, options, body, arrival_us, is_disconnected, done)
            else:
                self._compute.submit(head.headers, options, bytes(body), arrival_us, is_disconnected, done)
        except Exception as error:
            done(error)

    def reply_to(self, head: Head, outcome: Reply | Exception) -> Reply:
        """Return the reply to a request; a rejection is counted."""
        if isinstance(outcome, Reply):
            return outcome
        if isinstance(outcome, Rejection):
            return self.rejected(head, outcome)
        LOG.error("Exception in the handler of inferences", exc_info=outcome)
        return Reply.broken(outcome)

    def _call_answered(self) -> None:
        self.outbox.flush()
        self._front.accounts.count_if_many()

    def finish(self, exchange: Exchange, reply: Reply, peer: str | None) -> Reply:
        """Record the reply, and return it with the request's trace context."""
        front, head = self._front, exchange.head
        if head is not None and TRACE_HEADER in head.headers:
            reply = returning_trace(reply, head.headers[TRACE_HEADER])
        if head is not None and ACCEPTED in head.headers:
            reply = reply.encoded(head.headers[ACCEPTED])
        if not front.has_records:
            return reply
        front.record(
            head.headers if head is not None else {},
            is_inference=head is not None,
            protocol="http",
            client=front.client_name(head.headers.get("authorization")) if head is not None else None,
            peer=peer,
            path=head.path if head is not None else "",
            model=(head.model or front.named(head.headers.get("model"))) if head is not None else None,
            status=reply.status,
            total_us=front.router.now_us() - exchange.arrival_us if head is not None else None,
            bytes_in=exchange.body_bytes,
            bytes_out=len(reply.body),
            answer={} if reply.answer is None else facts_of(reply.answer),
        )
        return reply

    def _model(self, head: Head) -> ServedModel:
        """Return the request's model. Raises ``Rejection`` (404, or 400 where none of several is named)."""
        if head.model:
            return self._front.model(head.model, head.version)
        return self._compute.model(head.headers.get("model"))


def returning_trace(reply: Reply, traceparent: str) -> Reply:
    """Add the request's trace context, if it is valid."""
    if trace_id(traceparent) is None:
        return reply
    return reply._replace(headers={**reply.headers, TRACE_HEADER: traceparent})
