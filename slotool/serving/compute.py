"""The Tolerance Tiers service: ``POST /compute`` with headers instead of parameters (tolerance-tiers, §IV-A)."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.serving import demands, refusals
from slotool.serving.frontend import FrontEnd, explanation, has_left, json_response, require_admitted
from slotool.serving.payloads import parse_example
from slotool.serving.served import ServedModel


class Compute:
    """Handler over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/compute", self.compute, methods=["POST"])]

    async def compute(self, request: Request) -> Response:
        """One example in (``parse_example``), one label out, with the operating point and why it was chosen."""
        front = self._front
        arrival_us = front.router.now_us()
        require_admitted(request)
        served = self._model(request.headers.get("model"))
        demanded = demands.from_headers(request.headers)
        x = parse_example(await front.body(request), served.model.input_shape)
        answer = await front.infer(served, x, demanded, arrival_us, partial(has_left, request.receive))
        latency_us = round(answer.queue_us + answer.compute_us, 1)
        document = {"label": int(answer.labels[0]), "model": served.name, "latency_us": latency_us}
        return json_response({**document, **explanation(answer)})

    def _model(self, name: str | None) -> ServedModel:
        models = self._front.models
        if name is not None:
            return self._front.model(name)
        if len(models) > 1:
            raise refusals.bad_request(f"several models are served: name one of {', '.join(models)} in a Model header")
        return next(iter(models.values()))
