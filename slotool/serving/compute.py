"""The Tolerance Tiers service: ``POST /compute`` with headers instead of parameters (tolerance-tiers, §IV-A)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.serving import demands, refusals
from slotool.serving.frontend import FrontEnd, explanation, has_left, require_admitted
from slotool.serving.payloads import parse_example
from slotool.serving.reply import Reply
from slotool.serving.served import ServedModel


class Compute:
    """Handler over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/compute", self.compute, methods=["POST"])]

    async def compute(self, request: Request) -> Response:
        front = self._front
        arrival_us = front.router.now_us()
        require_admitted(request)
        self._model(request.headers.get("model"))
        body = await front.body(request)
        reply = await self.answer(request.headers, body, arrival_us, partial(has_left, request.receive))
        return reply.response()

    async def answer(
        self, headers: Mapping[str, str], body: bytes, arrival_us: float, is_gone: Callable[[], bool]
    ) -> Reply:
        """One example in (``parse_example``), one label out, with the operating point and why it was chosen.

        ``headers``: names in lower case. Raises ``Refusal``.
        """
        served = self._model(headers.get("model"))
        demanded = demands.from_headers(headers)
        x = parse_example(body, served.model.input_shape)
        answer = await self._front.infer(served, x, demanded, arrival_us, is_gone)
        latency_us = round(answer.queue_us + answer.compute_us, 1)
        document = {"label": int(answer.labels[0]), "model": served.name, "latency_us": latency_us}
        return Reply.of_json({**document, **explanation(answer)})

    def _model(self, name: str | None) -> ServedModel:
        models = self._front.models
        if name is not None:
            return self._front.model(name)
        if len(models) > 1:
            raise refusals.bad_request(f"several models are served: name one of {', '.join(models)} in a Model header")
        return next(iter(models.values()))
