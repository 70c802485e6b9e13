"""The Tolerance Tiers service: ``POST /compute`` with headers instead of parameters (tolerance-tiers, §IV-A)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from slotool.data.columns import Columns
from slotool.serving import rejections
from slotool.serving.front.frontend import FrontEnd, explanation
from slotool.serving.protocol import bounds
from slotool.serving.protocol.bodies import client_disconnected
from slotool.serving.protocol.payloads import parse_tensor, takes_long
from slotool.serving.protocol.reply import Reply, ReplyListener, awaited, listener
from slotool.serving.request import InferenceResult, Request
from slotool.serving.request_options import DEFAULT_OPTIONS, MODEL, RequestOptions, from_headers, merged, require_single
from slotool.serving.served import LABEL, ServedModel


class Compute:
    """Handler over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/compute", self.compute, methods=["POST"])]

    async def compute(self, request: HttpRequest) -> Response:
        front = self._front
        arrival_us = front.router.now_us()
        require_single(request.headers.raw)
        served = self.model(request.headers.get(MODEL))
        # One example in any form may be all zeros: no number of bytes is too few for it.
        max_bytes = front.example_bytes(served)
        body = await front.body(request, max_bytes, max_bytes)
        is_disconnected = partial(client_disconnected, request.receive)
        stated = from_headers(request.headers)
        reply = await awaited(partial(self.submit, request.headers, stated, body, arrival_us, is_disconnected))
        request.state.answer = reply.answer
        return reply.response()

    def submit(
        self,
        headers: Mapping[str, str],
        in_headers: RequestOptions,
        body: bytes,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
        done: ReplyListener,
    ) -> None:
        """Answer one example (``parse_tensor``) with one label or other answer, the operating point
        and why it was chosen; ``done`` is called once, perhaps before this returns.

        ``headers``: names in lower case; ``in_headers``: options that they state. Raises ``Rejection`` for a request
        that cannot be read.
        """
        served = self.model(headers.get(MODEL))
        options, own_id = merged(DEFAULT_OPTIONS, in_headers), headers.get("x-request-id", "")
        own_id = own_id if len(own_id) <= bounds.MAX_ID_CHARACTERS else ""
        options = self._front.asked_by(options, headers.get("authorization"), own_id)
        shape, most = served.model.signature.inputs[0].shape[1:], self._front.example_bytes(served)
        if len(body) > most:
            raise bounds.too_large(most)

        def answer(x: Columns) -> None:
            reply = listener(done, partial(_reply, served))
            self._front.submit(Request(served, x, options, arrival_us, is_disconnected, reply))

        if not takes_long(body, shape):
            answer(_example(served, body, most))
            return
        # Decoders release the GIL, so the event loop can serve requests with plain numbers meanwhile.
        decoding = asyncio.get_running_loop().run_in_executor(None, _example, served, body, most)
        decoding.add_done_callback(partial(_decoded, answer, done))

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


def _example(served: ServedModel, body: bytes, max_bytes: int) -> Columns:
    """What the model takes, of one example. Raises ``Rejection`` (400)."""
    model = served.model
    first, *others = model.signature.inputs
    if others:
        names = ", ".join(spec.name for spec in model.signature.inputs)
        path = f"/v2/models/{served.name}/infer"
        raise rejections.bad_request(f"model {served.name} has several inputs ({names}): send them to {path}")
    return Columns({first.name: parse_tensor(body, first, model.input_shape or first.shape[1:], max_bytes)})


def _decoded(answer: Callable[[Columns], None], done: ReplyListener, decoding: asyncio.Future[Columns]) -> None:
    try:
        answer(decoding.result())
    except Exception as error:
        done(error)


def _reply(served: ServedModel, answer: InferenceResult) -> Reply:
    latency_us = round(answer.queue_us + answer.compute_us, 1)
    document = {**_answer(answer), "model": served.name, "latency_us": latency_us}
    return Reply.of_json({**document, **explanation(answer)})._replace(answer=answer)


def _answer(answer: InferenceResult) -> dict[str, Any]:
    """The class as ``label``, or what another task answers as ``answer``."""
    label = answer.output(LABEL)
    if label is not None and label.dtype.kind in "iu":
        return {"label": int(label.ravel()[0])}
    found = np.asarray(answer.labels[0])
    if found.dtype.kind == "f":  # JSON has neither NaN nor infinity
        known = np.isfinite(found)
        found = found.astype(np.object_)
        found[~known] = None
    plain = found.tolist()
    return {"answer": plain.decode(errors="replace") if isinstance(plain, bytes) else plain}
