"""What every HTTP front end needs: bodies read within limits, requests counted, refusals told as JSON."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from slotool.serving import refusals
from slotool.serving.admission import REFUSAL, Admission
from slotool.serving.demands import Demands
from slotool.serving.feedback import Feedback
from slotool.serving.guard import Token
from slotool.serving.live import Live
from slotool.serving.refusals import Refusal
from slotool.serving.reply import Reply
from slotool.serving.router import Answer, Router
from slotool.serving.served import ServedModel
from slotool.serving.statistics import Statistics

VERSION = "1"
_WINDOW_BITS = {"gzip": 31, "deflate": 15}


@dataclass(frozen=True)
class Limits:
    """``body_bytes``: longest body read, also once decompressed; ``batch``: most examples in a request;
    ``body_s``: seconds a client may take to send its body; ``head_bytes``, ``head_s``: the same of a request's head,
    its first line and headers; ``connections``: open over HTTP before more are refused."""

    body_bytes: int = 16 * 2**20
    batch: int = 1_024
    body_s: float = 30.0
    head_bytes: int = 16 * 2**10
    head_s: float = 10.0
    connections: int = 4_096


@dataclass
class Dials:
    """What can be turned while the server runs. ``tolerance``: of requests that ask for no accuracy at all."""

    tolerance: float | None = None


@dataclass(frozen=True)
class FrontEnd:
    """The router with its models, what clients may send, and the token they must show, if any."""

    router: Router
    limits: Limits
    token: Token | None = None
    dials: Dials = field(default_factory=Dials)
    statistics: dict[str, Statistics] = field(init=False)
    feedback: dict[str, Feedback] = field(init=False)
    live: Live = field(init=False)
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", {name: Statistics() for name in self.models})
        object.__setattr__(self, "feedback", {name: Feedback() for name in self.models})
        object.__setattr__(self, "live", Live(self.router.waiting))
        object.__setattr__(self, "admission", Admission())
        self.router.events.listen(lambda kind, sentence, fields: self.live.event(sentence))
        for name, feedback in self.feedback.items():
            self.router.metrics.watch_feedback(name, feedback)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The served models by name, as they are now."""
        return self.router.models

    def model(self, name: str, version: str | None = None) -> ServedModel:
        """Raises ``Refusal`` (404) for a model or version that is not served."""
        served = self.router.model(name)
        if served is None:
            raise refusals.not_found(f"no model is called {name[:80]!r}; there are {', '.join(self.models)}")
        if version not in (None, VERSION):
            raise refusals.not_found(f"model {name} has no version {str(version)[:80]!r}; there is {VERSION}")
        return served

    async def infer(
        self, served: ServedModel, x: np.ndarray, demands: Demands, arrival_us: float, is_gone: Callable[[], bool]
    ) -> Answer:
        """Have the router answer, and count it. Raises ``Refusal``."""
        if demands.tolerance is not None and served.rules is None:
            raise refusals.bad_request(f"model {served.name} is served without rules: it has no tolerance tiers")
        if self.dials.tolerance is not None:
            demands = _with_default(demands, self.dials.tolerance, served)
        read_us = self.router.now_us() - arrival_us
        try:
            answer = await self.router.answer(served.name, x, demands, arrival_us, is_gone)
        except Refusal:
            self.admission.finished(demands.timeout_us, answered=False)
            self.statistics[served.name].refused(self.router.now_us() - arrival_us)
            self.feedback[served.name].refused()
            raise
        # Once it is on its way: the client need not wait for our books.
        asyncio.get_running_loop().call_soon(self._count, served, x, demands, answer, read_us)
        return answer

    def _count(self, served: ServedModel, x: np.ndarray, demands: Demands, answer: Answer, read_us: float) -> None:
        self.admission.finished(demands.timeout_us, answered=True)
        latency_us = answer.queue_us + answer.compute_us
        point = answer.decision.point.key
        self.router.metrics.answered(served.name, point, latency_us, late=answer.slack_us < 0)
        self.statistics[served.name].answered(answer, read_us)
        self.feedback[served.name].answered(x, answer)
        named = point if len(self.statistics) == 1 else f"{served.name}: {point}"
        self.live.answered(answer, named, served.expected_accuracy.get(answer.decision.point))

    def dropped(self, model: str, cause: str) -> None:
        """Count a request that ends without an answer, whatever model it names."""
        self.router.metrics.dropped(model if model in self.models else "", cause)
        self.live.dropped(cause)

    def refused(self, refusal: Refusal, model: str | None) -> Reply:
        """Count a refusal and tell it. ``model``: what the request names; None where the only one is meant."""
        only = next(iter(self.models)) if len(self.models) == 1 else ""
        self.dropped(only if model is None else model, refusal.cause)
        return Reply.refusing(refusal)

    def unauthorized(self, refusal: Refusal) -> Reply:
        """The same for a request without the token, of which nothing else has been looked at."""
        self.dropped("", refusal.cause)
        return Reply.refusing(refusal, {"www-authenticate": "Bearer"})

    async def body(self, request: Request) -> bytes:
        """The whole body, decompressed. Raises ``Refusal``: 413 too long, 408 too slow, 415 or 400 undecodable."""
        length = request.headers.get("content-length")
        if length is not None and length.isdigit() and int(length[:18]) > self.limits.body_bytes:
            raise self._too_large()
        body = await self._read(request.receive)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        return body if encoding == "identity" else self._decompressed(body, encoding)

    async def _read(self, receive: Receive) -> bytes:
        message = at_once(receive)
        if message is not None and message["type"] == "http.request" and not message.get("more_body"):
            return self._within(message.get("body", b""), 0)
        try:
            async with asyncio.timeout(self.limits.body_s):
                return await self._read_on(receive, message)
        except TimeoutError:
            raise refusals.too_slow(f"the body did not arrive within {self.limits.body_s:g} s") from None

    async def _read_on(self, receive: Receive, message: Message | None) -> bytes:
        chunks, size = [], 0
        while True:
            if message is None:
                message = await receive()
            if message["type"] == "http.disconnect":
                raise refusals.client_gone()
            chunks.append(self._within(message.get("body", b""), size))
            size += len(chunks[-1])
            if not message.get("more_body"):
                return b"".join(chunks)
            message = None

    def _within(self, chunk: bytes, before: int) -> bytes:
        if before + len(chunk) > self.limits.body_bytes:
            raise self._too_large()
        return chunk

    def _decompressed(self, body: bytes, encoding: str) -> bytes:
        if encoding not in _WINDOW_BITS:
            raise Refusal(415, "bad-request", f"Content-Encoding {encoding[:40]!r} is neither gzip nor deflate")
        inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
        try:
            plain = inflate.decompress(body, self.limits.body_bytes)
        except zlib.error:
            raise refusals.bad_request(f"the body is not {encoding} data") from None
        if inflate.unconsumed_tail:
            raise self._too_large()
        if not inflate.eof:
            raise refusals.bad_request(f"the {encoding} data is cut short")
        return plain

    def _too_large(self) -> Refusal:
        return refusals.too_large(f"the body is longer than {self.limits.body_bytes} bytes")


def _with_default(demands: Demands, tolerance: float, served: ServedModel) -> Demands:
    """With the server's tolerance, where the model has tiers and the request says nothing about accuracy."""
    silent = demands.tolerance is None and demands.min_accuracy is None
    return replace(demands, tolerance=tolerance) if silent and served.rules is not None else demands


def require_admitted(request: Request) -> None:
    """Raises the ``Refusal`` that the protocol has put beside a request when the event loop is too far behind."""
    refusal = request.scope.get("state", {}).get(REFUSAL)
    if refusal is not None:
        raise refusal


def at_once(receive: Receive) -> Message | None:
    """What ``receive`` has to give without waiting, and without a task; None when it would wait."""
    step = receive().__await__()
    try:
        next(step)
    except StopIteration as received:
        message: Message = received.value
        return message
    step.close()  # type: ignore[attr-defined]
    return None


def has_left(receive: Receive) -> bool:
    """Whether the client has closed the connection: once the body is read, nothing else can come."""
    message = at_once(receive)
    return message is not None and message["type"] == "http.disconnect"


def json_response(
    document: Mapping[str, Any] | Sequence[Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """``document`` as strict JSON."""
    return Reply.of_json(document, status, headers or {}).response()


def explanation(answer: Answer) -> dict[str, str | float]:
    """Why and how a request was answered as it was; infinite slack is left out, JSON has no infinity."""
    decision = answer.decision
    told: dict[str, str | float] = {"operating_point": decision.point.key, "reason": decision.reason}
    if decision.rule:
        told["rule"] = decision.rule
    told |= {"queue_us": round(answer.queue_us, 1), "compute_us": round(answer.compute_us, 1)}
    told["request"] = answer.request
    if answer.batch > len(answer.scored.logits):
        told["batch"] = answer.batch
    if answer.slack_us != float("inf"):
        told["slack_us"] = round(answer.slack_us, 1)
    told["confidence"] = float(answer.scored.confidence.min())
    return told
