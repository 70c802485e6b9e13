"""Open Inference Protocol V2 over HTTP with Triton's extensions, for any ``tritonclient[http]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from slotool import __version__
from slotool.errors import InputError, RunError
from slotool.printable import printable
from slotool.serving import rejections
from slotool.serving.access import MODELS
from slotool.serving.front.frontend import (
    FrontEnd,
    explanation,
    json_response,
)
from slotool.serving.front.middleware import is_from_browser
from slotool.serving.protocol import bounds, tensors
from slotool.serving.protocol.bodies import client_disconnected
from slotool.serving.protocol.reply import ACCEPTED, BINARY, Reply, ReplyListener, awaited, listener
from slotool.serving.protocol.shared_memory import CUDA_NOT_SHARED, EXTENSION, NOT_SHARED, Regions
from slotool.serving.protocol.tensors import json_object
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Request
from slotool.serving.request_options import RequestOptions, from_headers, merged, require_single
from slotool.serving.served import ServedModel

EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "statistics", "model_repository"]
MODELS_ARE_FIXED = "these models are fixed: only those of a folder, or of [[models]] in a file, are loaded and unloaded"
# Triton's parameters; unloading dependents has no effect here.
_OF_LOADING = ("config", "unload_dependents")


class OpenInference:
    """Handlers over one ``FrontEnd``; ``routes`` is what the application mounts."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self._readers = {name: tensors.InferenceReader(interface) for name, interface in front.interfaces.items()}
        model = "/v2/models/{model}"
        versioned = f"{model}/versions/{{version}}"
        self.routes = [
            *(Route(f"{path}/infer", self.infer, methods=["POST"]) for path in (model, versioned)),
            *(Route(f"{path}/ready", self.model_ready) for path in (model, versioned)),
            *(Route(f"{path}/config", self.model_config) for path in (model, versioned)),
            *(Route(f"{path}/stats", self.model_statistics) for path in (model, versioned)),
            # Precedes the routes of models: no model has this name.
            Route("/v2/models/stats", self.all_statistics),
            *(Route(path, self.model_metadata) for path in (model, versioned)),
            Route("/v2/repository/index", self.repository_index, methods=["POST"]),
            Route("/v2/repository/models/{model}/load", partial(self.change_models, load=True), methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", partial(self.change_models, load=False), methods=["POST"]),
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
        ]

    async def server_metadata(self, request: HttpRequest) -> Response:
        extensions = EXTENSIONS if self._front.shared_memory is None else [*EXTENSIONS, EXTENSION]
        return json_response({"name": "slotool", "version": __version__, "extensions": extensions})

    async def live(self, request: HttpRequest) -> Response:
        return json_response({"live": True})

    async def ready(self, request: HttpRequest) -> Response:
        """Answer 503 while no worker could take a request, and while the server ends."""
        return _readiness({}, self._front.router.unready())

    async def model_ready(self, request: HttpRequest) -> Response:
        """Report a model as ready when the server is: every worker has every model."""
        served = self._front.model(**_addressed(request))
        return _readiness({"name": served.name}, self._front.router.unready())

    async def model_metadata(self, request: HttpRequest) -> Response:
        served = self._front.model(**_addressed(request))
        interface = self._front.interfaces[served.name]
        return json_response(interface.metadata(served.model_name, self._front.versions(served)))

    async def model_config(self, request: HttpRequest) -> Response:
        """Return Triton's model configuration."""
        served = self._front.model(**_addressed(request))
        return json_response(self._front.interfaces[served.name].config(served.model_name))

    async def model_statistics(self, request: HttpRequest) -> Response:
        """Return Triton's statistics of one model."""
        return self._statistics([self._front.model(**_addressed(request)).name])

    async def all_statistics(self, request: HttpRequest) -> Response:
        return self._statistics(self._front.models)

    def _statistics(self, models: Iterable[str]) -> Response:
        return json_response({"model_stats": self._front.statistics_of(models)})

    async def repository_index(self, request: HttpRequest) -> Response:
        """Return Triton's model repository index, for any body."""
        await self._front.body(request, bounds.OVERHEAD_BYTES)
        return json_response(self._front.index())

    async def change_models(self, request: HttpRequest, load: bool) -> Response:
        """Load or unload a model, by Triton's model repository extension."""
        if is_from_browser(request.headers):
            raise rejections.forbidden("no page in a browser may load and unload models")
        authorization, name = request.headers.get("authorization"), request.path_params["model"]
        self._front.require_role(authorization, MODELS)
        body = await self._front.body(request, bounds.OVERHEAD_BYTES)
        parameters = (json_object(body) if body else {}).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise rejections.bad_request("parameters: a JSON object is expected")
        await change_models(self._front, authorization, name, parameters, load=load)
        return json_response({})

    async def infer(self, request: HttpRequest) -> Response:
        front = self._front
        arrival_us = front.router.now_us()
        require_single(request.headers.raw, (tensors.HEADER_LENGTH,))
        served = front.model(**_addressed(request))
        anyway_bytes = bounds.inflated_anyway_bytes(front.interfaces[served.name])
        body = await front.body(request, front.tensor_bytes(served), anyway_bytes)
        is_disconnected, stated = partial(client_disconnected, request.receive), from_headers(request.headers)
        reply = await awaited(partial(self.submit, served, request.headers, stated, body, arrival_us, is_disconnected))
        request.state.answer = reply.answer
        return reply.encoded(request.headers.get(ACCEPTED, "")).response()

    def submit(
        self,
        served: ServedModel,
        headers: Mapping[str, str],
        in_headers: RequestOptions,
        body: bytes | bytearray | memoryview,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
        done: ReplyListener,
    ) -> None:
        """Answer an inference request; ``done`` is called once, perhaps before this returns.

        ``headers`` have lower-case names; ``in_headers`` are their options. A ``body`` that is a ``bytearray`` then
        belongs to the request. Raises ``Rejection`` for a request that cannot be read.
        """
        front = self._front
        if len(body) > (most := front.tensor_bytes(served)):
            raise bounds.too_large(most)
        regions = None if front.shared_memory is None else front.regions_of(headers.get("authorization"))
        self.require_timely(served, headers, in_headers, body, arrival_us)
        message = self.reader(served.name).parse(body, headers.get(tensors.HEADER_LENGTH), regions)
        if message.destinations and is_from_browser(headers):
            raise rejections.forbidden("a page in a browser may not have outputs written to shared memory")
        options = front.asked_by(merged(message.options, in_headers), headers.get("authorization"), message.id)
        reply = listener(done, partial(self.reply, served, message))
        front.submit(Request(served, message.x, options, arrival_us, is_disconnected, reply))

    def require_timely(
        self,
        served: ServedModel,
        headers: Mapping[str, str],
        in_headers: RequestOptions,
        body: bytes | bytearray | memoryview,
        arrival_us: float,
    ) -> None:
        """Raise ``Rejection`` (503) for a request that waits too long, before its tensors are read."""
        if self._front.may_be_late(arrival_us):
            stated = self.reader(served.name).options(body, headers.get(tensors.HEADER_LENGTH))
            self._front.require_timely(served, arrival_us, min(stated.timeout_us, in_headers.timeout_us))

    def reader(self, model: str) -> tensors.InferenceReader:
        """Return the reader of the model's current tensors: models may come and change at run time."""
        interface, reader = self._front.interfaces[model], self._readers.get(model)
        if reader is None or reader.interface is not interface:
            reader = self._readers[model] = tensors.InferenceReader(interface)
        return reader

    def reply(self, served: ServedModel, message: tensors.InferRequest, answer: InferenceResult) -> Reply:
        """Format the response. Raises ``Rejection`` for an output that the answer lacks."""
        outputs = {name: answer.output(name) for name in message.outputs}
        content, json_length = tensors.format_response(
            served.model_name,
            served.version,
            self._front.interfaces[served.name],
            message,
            outputs,
            explanation(answer),
        )
        if json_length is None:
            return Reply(content, answer=answer)
        return Reply(content, BINARY, headers={tensors.HEADER_LENGTH: str(json_length)}, answer=answer)


async def change_models(
    front: FrontEnd, authorization: str | None, name: str, parameters: Mapping[str, Any], *, load: bool
) -> None:
    """Load a model's current files, or unload it.

    ``parameters``: ``config`` replaces the model's configuration, in JSON. Raises ``Rejection``: 403 for a client
    without the role, 404 where models are fixed, 400 for a model that is missing or cannot be served, and for files in
    the request.
    """
    front.require_role(authorization, MODELS)
    if front.runtime_settings is None:
        raise rejections.not_found(MODELS_ARE_FIXED)
    for parameter, value in parameters.items():
        if parameter not in _OF_LOADING or not isinstance(value, str | bool):
            raise rejections.bad_request(
                f"parameter {rejections.shown(parameter)}: Invalid file path, as models are read from their own files"
            )
    config = parameters.get("config")
    try:
        if load:
            await front.runtime_settings.load(name, None if config is None else str(config))
        else:
            await front.runtime_settings.unload(name)
    except (InputError, RunError) as error:
        raise rejections.bad_request(f"failed to {'load' if load else 'unload'}: {error}") from None


def _readiness(named: dict[str, str], unready: Rejection | None) -> Response:
    if unready is None:
        return json_response({**named, "ready": True})
    headers = {"retry-after": str(unready.retry_after_s or 1)}
    return json_response({**named, "ready": False, "error": str(unready)}, unready.status, headers)


def _addressed(request: HttpRequest) -> dict[str, Any]:
    path = request.path_params
    return {"name": path["model"], "version": path.get("version")}


SHARED_MEMORY = "/v2/systemsharedmemory"


class SharedMemoryRoutes:
    """Handlers over one ``FrontEnd``; ``routes`` is what the application mounts.

    Where no region can be registered (CUDA: never), unregistering does nothing: Triton's clients begin with it.
    """

    def __init__(self, front: FrontEnd):
        self._front = front
        # A name may hold a slash, which clients escape and servers unescape before they look at the path.
        region = f"{SHARED_MEMORY}/region/{{region:path}}"
        cuda = [path.replace("system", "cuda") for path in (SHARED_MEMORY, region)]
        if front.shared_memory is None:
            self.routes = [
                Route(f"{at}/unregister", self.none, methods=["POST"]) for at in (SHARED_MEMORY, region, *cuda)
            ]
            return
        self.routes = [
            Route(f"{region}/register", self.register, methods=["POST"]),
            *(Route(f"{path}/unregister", self.unregister, methods=["POST"]) for path in (SHARED_MEMORY, region)),
            *(Route(f"{path}/unregister", self.none, methods=["POST"]) for path in cuda),
            *(Route(f"{path}/status", self.status) for path in (SHARED_MEMORY, region)),
        ]

    async def register(self, request: HttpRequest) -> Response:
        """Register ``{"key": name of the object, "byte_size": bytes, "offset": where the region begins}``."""
        regions = self._changing(request)
        document = json_object(await self._front.body(request, bounds.OVERHEAD_BYTES))
        regions.register(request.path_params["region"], document)
        return json_response({})

    async def unregister(self, request: HttpRequest) -> Response:
        """Unregister one region, or all of this client's."""
        regions = self._changing(request)
        await self._front.body(request, bounds.OVERHEAD_BYTES)
        regions.unregister(request.path_params.get("region", ""))
        return json_response({})

    async def none(self, request: HttpRequest) -> Response:
        """Answer that nothing is registered."""
        await self._front.body(request, bounds.OVERHEAD_BYTES)
        return json_response({})

    async def status(self, request: HttpRequest) -> Response:
        return json_response(self._regions(request).status(request.path_params.get("region", "")))

    def _changing(self, request: HttpRequest) -> Regions:
        """Raise ``Rejection`` (403) for a browser's page, which could name objects of others."""
        if is_from_browser(request.headers):
            raise rejections.forbidden("no page in a browser may share memory")
        return self._regions(request)

    def _regions(self, request: HttpRequest) -> Regions:
        regions = self._front.regions_of(request.headers.get("authorization"))
        assert regions is not None
        return regions


SERVICE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
_LOGS = "what is logged is set when the server starts: --log for events, access-log in a service file for requests"
_TRACES = "what is traced is set when the server starts: --traces, and --traces-share for the share of requests"
_PAGES = {
    f"{SHARED_MEMORY}/": NOT_SHARED,
    "/v2/cudasharedmemory/": CUDA_NOT_SHARED,
    "/v2/logging": _LOGS,
    "/v2/trace/setting": _TRACES,
}
_METHODS = {
    "ModelStreamInfer": "no state is kept between requests; send each of them by ModelInfer",
    "TraceSetting": _TRACES,
    "LogSettings": _LOGS,
    **dict.fromkeys((f"CudaSharedMemory{what}" for what in ("Status", "Register")), CUDA_NOT_SHARED),
}
_SHOWN = 80


def reason_of_page(path: str) -> str:
    """Return the sentence for an HTTP path that is not served."""
    if path.startswith("/v2/models/") and path.endswith("/trace/setting"):
        return _TRACES
    served = (reason for pages, reason in _PAGES.items() if path.startswith(pages))
    return next(served, f"there is no page {path[:_SHOWN]}")


def reason_of_method(path: str) -> str:
    """Return the sentence for a gRPC method, ``/SERVICE/METHOD``, that is not served."""
    service, _, method = path.removeprefix("/").partition("/")
    if service not in (SERVICE, HEALTH):
        return f"there is no service {printable(service[:_SHOWN])}: this server has {SERVICE} and {HEALTH}"
    if service == SERVICE and method in _METHODS:
        return f"{method} is not served: {_METHODS[method]}"
    return f"{service} has no method {printable(method[:_SHOWN])} here"
