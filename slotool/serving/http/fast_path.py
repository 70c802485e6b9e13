"""The fast path from a complete request to the bytes of its answer: past ASGI, its messages and its task."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from slotool.serving import bounds, trace_context
from slotool.serving.access_log import facts_of
from slotool.serving.addresses import FORWARDED_FOR
from slotool.serving.compute import Compute
from slotool.serving.frontend import FrontEnd
from slotool.serving.http.requests import HttpRequest
from slotool.serving.http.transport import Outbox
from slotool.serving.oip import OpenInference
from slotool.serving.rejections import Rejection
from slotool.serving.reply import Reply
from slotool.serving.request_options import RequestOptions, from_headers
from slotool.serving.served import ServedModel

LOG = logging.getLogger("uvicorn.error")
# Of a longer head nothing is remembered: it would take the memory of many.
MAX_REMEMBERED_HEADERS = 16
MAX_HEADS = 256
# The path of an inference; escaped names are left to the application's routes.
INFERENCE = re.compile(
    rb"/(?:v2/models/(?P<model>[\w.~-]+)(?:/versions/(?P<version>[\w.~-]+))?/infer|compute)", re.ASCII
)


class Head(NamedTuple):
    """Head of an inference request.

    Attributes:
        model: empty on ``/compute``.
        version: None where the path has none.
        headers: names in lower case.
        options: options that the headers state, or what is wrong with these.
        arrival_us: since when it may have been here, by the router's clock.
    """

    model: str
    version: str | None
    headers: Mapping[str, str]
    options: RequestOptions | Rejection
    arrival_us: float

    @property
    def path(self) -> str:
        if not self.model:
            return "/compute"
        version = "" if self.version is None else f"/versions/{self.version}"
        return f"/v2/models/{self.model}{version}/infer"


class FastPath:
    """Answers complete inference requests as the application's routes do."""

    def __init__(self, front: FrontEnd, inference: OpenInference, compute: Compute):
        self._front, self._inference, self._compute = front, inference, compute
        # Answers of one call leave together.
        self.outbox = Outbox()
        front.router.listen_to_batches(self._call_answered)
        # A client that stays sends the same head again and again.
        self._remembered = lru_cache(maxsize=MAX_HEADS)(_read)

    def head_of(self, request: HttpRequest) -> Head | None:
        """What is asked for, if the request can be answered here.

        None for every other page, and for what only the routes know how to read: an escaped path, a header given twice,
        a compressed body, or one that waits for 100 Continue.
        """
        if request.method != "POST" or request.version != "1.1":
            return None
        headers = tuple(request.headers)
        read = self._remembered if len(headers) <= MAX_REMEMBERED_HEADERS else _read
        asked = read(request.target, headers)
        return None if asked is None else Head(*asked, self._front.arrival_us())

    def early_rejection(self, head: Head) -> Reply | None:
        """What a request is answered with before its body is looked at; None when it is to be read. It is counted."""
        front = self._front
        if front.clients is not None:
            try:
                front.let_in(head.headers.get("authorization"), False)
            except Rejection as turned_away:
                return front.turned_away(turned_away)
        return None

    def too_large(self, head: Head, body_bytes: int) -> Reply | None:
        """What a request is answered with whose body has so many bytes or more; None when it may. It is counted."""
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
        """Count a rejection of such a request and return its reply."""
        return self._front.rejected(rejection, head.model or head.headers.get("model"))

    def answer(
        self,
        head: Head,
        body: bytes | bytearray | memoryview,
        is_disconnected: Callable[[], bool],
        done: Callable[[Reply], None],
        peer: str | None = None,
    ) -> None:
        """``done`` is called once, perhaps before this returns. Rejections are answers too; they are counted. A
        ``bytearray`` then belongs to the request: its tensors may lie in it. ``peer``: the address it came from."""
        ended = partial(self._ended, head, done)
        try:
            if self._front.clients is not None:
                self._front.let_in(head.headers.get("authorization"), True)
            if self._front.addresses is not None:
                self._front.let_address_in(peer, head.headers.get(FORWARDED_FOR))
            options = head.options
            if isinstance(options, Rejection):
                raise options
            if head.model:
                served = self._front.model(head.model, head.version)
                self._inference.submit(served, head.headers, options, body, head.arrival_us, is_disconnected, ended)
            else:
                self._compute.submit(head.headers, options, bytes(body), head.arrival_us, is_disconnected, ended)
        except Exception as error:
            ended(error)

    def _ended(self, head: Head, done: Callable[[Reply], None], outcome: Reply | Exception) -> None:
        if isinstance(outcome, Reply):
            done(outcome)
        elif isinstance(outcome, Rejection):
            done(self.rejected(head, outcome))
        else:
            LOG.error("Exception on the fast path", exc_info=outcome)
            done(Reply.broken(outcome))

    def _call_answered(self) -> None:
        self.outbox.flush()
        self._front.accounts.count_if_many()

    def finish(self, head: Head | None, reply: Reply, peer: str | None, body_bytes: int) -> Reply:
        """The reply as it is sent: it returns the request's trace context, which is recorded with it. ``head``: None
        where a connection is rejected."""
        front = self._front
        if head is not None and trace_context.HEADER in head.headers:
            reply = returning_trace(reply, head.headers[trace_context.HEADER])
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
            total_us=front.router.now_us() - head.arrival_us if head is not None else None,
            bytes_in=body_bytes,
            bytes_out=len(reply.body),
            answer={} if reply.answer is None else facts_of(reply.answer),
        )
        return reply

    def _model(self, head: Head) -> ServedModel:
        """Raises ``Rejection`` (404, or 400 where none of several is named)."""
        if head.model:
            return self._front.model(head.model, head.version)
        return self._compute.model(head.headers.get("model"))


def _read(
    target: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> tuple[str, str | None, Mapping[str, str], RequestOptions | Rejection] | None:
    """Return model, version, headers and their options; None for a head that is left to the routes. Requests with the
    same head share them: never change them."""
    asked = INFERENCE.fullmatch(target)
    if asked is None:
        return None
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(named) != len(headers) or "content-encoding" in named or "expect" in named:
        return None
    # The routes report what is wrong with such a head.
    if "host" not in named or named.get("transfer-encoding", "chunked") != "chunked":
        return None
    model, version = asked.group("model", "version")
    options: RequestOptions | Rejection
    try:
        options = from_headers(named)
    except Rejection as rejection:
        options = rejection
    return model.decode() if model else "", version.decode() if version else None, named, options


def returning_trace(reply: Reply, traceparent: str) -> Reply:
    """The reply with the trace context that the request came with, if that is one."""
    if trace_context.trace_id(traceparent) is None:
        return reply
    return reply._replace(headers={**reply.headers, trace_context.HEADER: traceparent})
