"""Application: front ends over one router, its pages, injected faults, and rejections as responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool import __version__
from slotool.errors import InputError
from slotool.serving import rejections
from slotool.serving.access import SETTINGS, AddressRates, Clients
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.front.compute import Compute
from slotool.serving.front.frontend import FrontEnd, RuntimeSettings, json_response
from slotool.serving.front.labels import FeedbackEndpoint
from slotool.serving.front.live_page import LivePage
from slotool.serving.front.middleware import RequestMiddleware, counts, is_from_browser
from slotool.serving.front.oip import OpenInference, SharedMemoryRoutes, reason_of_page
from slotool.serving.http import InferenceHandler
from slotool.serving.monitoring.access_log import AccessLog
from slotool.serving.monitoring.metrics import CONTENT_TYPE
from slotool.serving.monitoring.traces import Traces
from slotool.serving.protocol import bounds
from slotool.serving.protocol.bounds import RequestLimits
from slotool.serving.protocol.reply import Reply
from slotool.serving.protocol.shared_memory import SharedMemory
from slotool.serving.rejections import Rejection, bad_request
from slotool.serving.routing.router import Router
from slotool.workloads.client.faults import MAX_FACTOR, PATH


def create_app(
    router: Router,
    *,
    limits: RequestLimits | None = None,
    clients: Clients | None = None,
    addresses: AddressRates | None = None,
    runtime_settings: RuntimeSettings | None = None,
    access_log: AccessLog | None = None,
    faults: LocalInferenceEngine | None = None,
    shared_memory: bool = False,
    traces: Traces | None = None,
) -> Starlette:
    """Create the ASGI application in front of ``router``, whose models are warm by then.

    ``app.state.front`` is the ``FrontEnd`` that other protocols share, ``app.state.inferences`` the handler of requests
    that need none of this application's routes. The router is closed when the application's lifespan ends.

    Args:
        router: Router of the requests.
        limits: Limits of requests.
        clients: Clients that are admitted; None for all. Health probes always are.
        addresses: Rate of each client address.
        runtime_settings: Changes of policy, workers and models while the server runs.
        access_log: Log that gets a line for every answered request.
        faults: Engine whose workers clients may kill, stop and slow.
        shared_memory: Let clients send and get tensors in memory that they share with the server.
        traces: Exporter of the spans of inferences.
    """
    front = FrontEnd(router, limits or RequestLimits(), clients)
    front.addresses = addresses
    front.access_log = access_log
    front.traces = traces
    front.runtime_settings = runtime_settings
    front.shared_memory = SharedMemory() if shared_memory else None
    pages, inference, compute = _Pages(front), OpenInference(front), Compute(front)
    live = LivePage(front, pages.index)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        router.listen()
        ticking = asyncio.create_task(live.run())
        yield
        ticking.cancel()
        router.close()

    app = Starlette(
        routes=[
            *inference.routes,
            *compute.routes,
            *FeedbackEndpoint(front).routes,
            *live.routes,
            *pages.routes,
            *(Faults(front, faults).routes if faults else []),
            *SharedMemoryRoutes(front).routes,
        ],
        exception_handlers={Rejection: pages.rejected, HTTPException: pages.not_served, Exception: pages.broken},
        middleware=[Middleware(RequestMiddleware, front=front)],
        lifespan=lifespan,
    )
    # A redirect would send a POST again, as a GET.
    app.router.redirect_slashes = False
    app.state.front = front
    app.state.inferences = InferenceHandler(front, inference, compute)
    return app


class _Pages:
    """Index, metrics, and errors as ``{"error": sentence}`` of the Open Inference Protocol."""

    def __init__(self, front: FrontEnd):
        self._front = front
        self.routes = [Route("/metrics", self.metrics), Route("/openapi.json", self.openapi)]

    async def index(self, request: Request) -> Response:
        models = {
            name: {
                "points": [point.key for point in served.model.points],
                "inputs": [f"{tensor.name} {tensor}" for tensor in self._front.interfaces[name].inputs],
                "outputs": [f"{tensor.name} {tensor}" for tensor in self._front.interfaces[name].outputs],
                "tolerance_tiers": sorted({rule.tolerance for rule in served.rules.rules}) if served.rules else [],
            }
            for name, served in self._front.models.items()
        }
        paths = ["/v2", "/v2/models/{model}/infer", "/compute", "/live", "/metrics", "/openapi.json"]
        return json_response({"server": "slotool", "version": __version__, "models": models, "paths": paths})

    async def metrics(self, request: Request) -> Response:
        return Response(self._front.router.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        front = self._front
        has = {"has_token": front.clients is not None, "shared_memory": front.shared_memory is not None}
        return json_response(openapi_document(front.models, **has))

    async def rejected(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Rejection)
        named = request.path_params.get("model") or request.headers.get("model")
        reply = self._front.rejected(error, named) if counts(request.scope) else Reply.rejecting(error)
        return reply.response()

    async def not_served(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = {404: reason_of_page(request.url.path), 405: f"{request.method} is not served here"}
        document = {"error": sentence.get(error.status_code, error.detail)}
        return json_response(document, error.status_code, error.headers)

    async def broken(self, request: Request, error: Exception) -> Response:
        return Reply.broken(error).response()


def openapi_document(models: Iterable[str], *, has_token: bool, shared_memory: bool = False) -> dict[str, Any]:
    """Return the document as plain JSON values.

    Args:
        models: names of the served models.
        has_token: clients need a token.
        shared_memory: clients may register shared memory; without, Triton's clients still unregister.
    """
    document: dict[str, Any] = json.loads(files("slotool.serving.operations").joinpath("openapi.json").read_text())
    document["info"]["version"] = __version__
    document["components"]["schemas"]["ModelName"]["enum"] = list(models)
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    if not shared_memory:
        optional = [path for path in document["paths"] if "sharedmemory" in path and not path.endswith("unregister")]
        for path in optional:
            del document["paths"][path]
    return document


MAX_SECONDS = 3_600.0


class FaultRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fault for a worker; see ``slotool.workloads.client.faults.Fault``."""

    action: Literal["kill", "stop", "slow"]
    worker: Annotated[int, msgspec.Meta(ge=0)]
    factor: Annotated[float, msgspec.Meta(ge=1, le=MAX_FACTOR)] = 1.0
    lasts_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] | None = None


class Faults:
    """List of the workers of ``front``'s server (GET), and injection of a fault into one (POST).

    Only a server started with fault injection has these routes, and no page links to them.
    """

    def __init__(self, front: FrontEnd, engine: LocalInferenceEngine):
        self._front, self._engine = front, engine
        self.routes = [Route(PATH, self.workers, methods=["GET"]), Route(PATH, self.inject, methods=["POST"])]

    async def workers(self, request: Request) -> Response:
        engine = self._engine
        return json_response({"workers": [{"process": engine.pid(worker)} for worker in range(engine.workers)]})

    async def inject(self, request: Request) -> Response:
        if is_from_browser(request.headers):
            raise rejections.forbidden("no page may inject faults")
        self._front.require_role(request.headers.get("authorization"), SETTINGS)
        body = await self._front.body(request, bounds.OVERHEAD_BYTES)
        try:
            fault = msgspec.json.decode(body, type=FaultRequest)
            process = self._engine.inject(fault.worker, fault.action, fault.factor, fault.lasts_s)
        except (msgspec.MsgspecError, InputError) as error:
            raise bad_request(f"fault: {error}") from None
        factor = f" by {fault.factor:g}" if fault.action == "slow" else ""
        sentence = f"{fault.action} worker {fault.worker}{factor} (process {process}), as a client asked"
        self._front.router.events.emit("fault", sentence, **msgspec.structs.asdict(fault))
        return json_response({"process": process})
