"""The Tolerance Tiers service: ``POST /compute`` with headers instead of parameters (tolerance-tiers, §IV-A)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.serving import bounds, rejections, request_options
from slotool.serving.frontend import FrontEnd, client_disconnected, explanation
from slotool.serving.payloads import parse_example, takes_long
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
        served = self.model(request.headers.get("model"))
        # One example in any form may be all zeros: no number of bytes is too few for it.
        max_bytes = front.example_bytes(served)
        body = await front.example_body(request, max_bytes, max_bytes)
        reply = await self.answer(request.headers, body, arrival_us, partial(client_disconnected, request.receive))
        return reply.response()

    async def answer(
        self, headers: Mapping[str, str], body: bytes, arrival_us: float, is_disconnected: Callable[[], bool]
    ) -> Reply:
        """One example in (``parse_example``), one label out, with the operating point and why it was chosen.

        ``headers``: names in lower case. Raises ``Rejection``.
        """
        served = self.model(headers.get("model"))
        options = request_options.from_headers(headers)
        shape, most = served.model.input_shape, self._front.example_bytes(served)
        if len(body) > most:
            raise bounds.too_large(most)
        if takes_long(body, shape):
            # Decoders release the GIL, so the event loop can serve requests with plain numbers meanwhile.
            x = await asyncio.to_thread(parse_example, body, shape)
        else:
            x = parse_example(body, shape)
        answer = await self._front.infer(served, x, options, arrival_us, is_disconnected)
        latency_us = round(answer.queue_us + answer.compute_us, 1)
        document = {"label": int(answer.labels[0]), "model": served.name, "latency_us": latency_us}
        return Reply.of_json({**document, **explanation(answer)})

    def model(self, name: str | None) -> ServedModel:
        """The model that a ``Model`` header names, or the only one. Raises ``Rejection`` (404, 400)."""
        models = self._front.models
        if name is not None:
            return self._front.model(name)
        if len(models) > 1:
            raise rejections.bad_request(
                f"several models are served: name one of {', '.join(models)} in a Model header"
            )
        return next(iter(models.values()))
