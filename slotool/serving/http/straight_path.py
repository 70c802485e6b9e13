"""The shortest path to an answer: of a request that is the only one, and like the one before it but for its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slotool.serving import request_options, trace_context
from slotool.serving.accounts import Asked
from slotool.serving.frontend import FrontEnd
from slotool.serving.model_queue import InferenceResult
from slotool.serving.oip import OpenInference
from slotool.serving.rejections import Rejection
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel
from slotool.serving.tensors import HEADER_LENGTH, Repeatable, RequestReader

# Known requests are kept for all connections: so many.
MAX_KNOWN = 256


class KnownRequest(NamedTuple):
    """What requests have in common that begin with the same bytes, ``prefix``: a head, which says how long they are,
    and the JSON of binary tensors. ``reader``: whose interface was read."""

    prefix: bytes
    served: ServedModel
    reader: RequestReader
    json: Repeatable
    options: RequestOptions


class StraightPath:
    """Answers known requests while nothing waits, in one call and without a callback: whatever is unusual is left to
    the fast path, as if it had not been looked at.

    Tensors are read, the policy asked, the call made and the answer written as for every other request; what is left
    out is what a request needs that may wait, and counting comes after the answer has been sent.
    """

    def __init__(self, front: FrontEnd, inference: OpenInference):
        self._front, self._inference = front, inference
        self._known: dict[bytes, KnownRequest] = {}
        self._uncounted: tuple[Asked, InferenceResult] | None = None

    def known(
        self, sent: bytes, model: str, headers: Mapping[str, str], body: bytes | bytearray
    ) -> KnownRequest | None:
        """A request whose head was ``sent`` and names ``model`` and no version, as known from now on; None for one that
        this path does not answer."""
        served = self._front.router.model(model)
        if served is None or HEADER_LENGTH not in headers or trace_context.HEADER in headers:
            return None
        usual = served.policy.decides_alone and not (served.model.checks_inputs or served.model.remote_points)
        if not usual or len(body) > self._front.tensor_bytes(served):
            return None
        reader = self._inference.reader(model)
        try:
            json = reader.repeatable(body, headers[HEADER_LENGTH])
            options = None if json is None else request_options.from_parameters(json.request.parameters, headers)
        except Rejection:
            return None
        if json is None or options is None or options.tolerance is not None or options.min_accuracy is not None:
            return None
        options = self._front.asked_by(options, headers.get("authorization"), json.request.id)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        known = KnownRequest(sent + json.head, served, reader, json, options)
        before = self._known.get(known.prefix)
        if before is not None and self.is_current(before):
            return before  # connections whose clients send the same share one
        self._known[known.prefix] = known
        return known

    def answer(self, known: KnownRequest, data: bytes) -> bytes | None:
        """The answer to ``data``, a whole request that is ``known`` and current, while ``FrontEnd.may_answer_alone``;
        ``settle`` must follow, once it is written. None: nothing has happened."""
        served, options, router = known.served, known.options, self._front.router
        arrival_us, direct = self._front.arrival_us(), router.direct_calls
        try:
            x = known.json.x(bytearray(memoryview(data)[len(known.prefix) :]))
            answer = None if direct is None else direct.answer(served, x, options, arrival_us)
            if answer is None:
                return None
            reply = self._inference.reply(served, known.json.request, answer)
        except Exception:
            return None  # the fast path says what is wrong
        self._uncounted = Asked(served, x, options, arrival_us, answer.queue_us), answer
        return reply.http()

    def settle(self) -> None:
        """Count the last answer."""
        assert self._uncounted is not None
        (asked, answer), self._uncounted = self._uncounted, None
        self._front.settle_alike([asked], [answer])

    def is_current(self, known: KnownRequest) -> bool:
        """Whether the model is still the one, with the same tensors."""
        served, front = known.served, self._front
        return front.router.model(served.name) is served and front.interfaces.get(served.name) is known.reader.interface
