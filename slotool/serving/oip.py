"""The Open Inference Protocol V2 over HTTP, as an unmodified ``tritonclient[http]`` speaks it."""

from __future__ import annotations

from functools import partial

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool import __version__
from slotool.serving import demands, tensors
from slotool.serving.frontend import VERSION, FrontEnd, explanation, has_left, json_response

EXTENSIONS = ["binary_tensor_data"]


class OpenInference:
    """Handlers over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        model = "/v2/models/{model}"
        versioned = f"{model}/versions/{{version}}"
        self.routes = [
            *(Route(f"{path}/infer", self.infer, methods=["POST"]) for path in (model, versioned)),
            *(Route(f"{path}/ready", self.model_ready) for path in (model, versioned)),
            *(Route(path, self.model_metadata) for path in (model, versioned)),
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.healthy),
            Route("/v2/health/ready", self.healthy),
        ]

    async def server_metadata(self, request: Request) -> Response:
        return json_response({"name": "slotool", "version": __version__, "extensions": EXTENSIONS})

    async def healthy(self, request: Request) -> Response:
        """Live and ready are one: the socket opens only when every model has run at every point."""
        return Response()

    async def model_ready(self, request: Request) -> Response:
        self._front.model(**_addressed(request))
        return Response()

    async def model_metadata(self, request: Request) -> Response:
        served = self._front.model(**_addressed(request))
        return json_response(
            tensors.model_metadata(served.name, VERSION, served.model.input_shape, served.model.classes)
        )

    async def infer(self, request: Request) -> Response:
        front = self._front
        arrival_us = front.router.now_us()
        served = front.model(**_addressed(request))
        body = await front.body(request)
        header_length = request.headers.get(tensors.HEADER_LENGTH)
        asked = tensors.parse_request(body, header_length, served.model.input_shape, max_batch=front.limits.batch)
        demanded = demands.from_parameters(asked.parameters)
        answer = await front.infer(served, asked.x, demanded, arrival_us, partial(has_left, request.receive))
        outputs = {
            "logits": answer.scored.logits,
            "label": answer.labels,
            "confidence": answer.scored.confidence.astype(np.float32),
        }
        content, json_length = tensors.format_response(served.name, VERSION, asked, outputs, explanation(answer))
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(json_length)}
        return Response(content, headers=headers, media_type="application/octet-stream")


def _addressed(request: Request) -> dict[str, str]:
    path = request.path_params
    return {"name": path["model"], "version": path.get("version", VERSION)}
