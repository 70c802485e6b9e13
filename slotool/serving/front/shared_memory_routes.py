"""Triton's system shared-memory extension over HTTP: clients register regions, unregister them and ask for them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.serving import rejections
from slotool.serving.access.guard import is_from_browser
from slotool.serving.front.frontend import FrontEnd, json_response
from slotool.serving.protocol import bounds
from slotool.serving.protocol.shared_memory import Regions
from slotool.serving.protocol.tensors import json_object

PATH = "/v2/systemsharedmemory"


class SharedMemoryRoutes:
    """Handlers over one ``FrontEnd``; ``routes`` is what the application mounts.

    Where none can be registered, of CUDA always, unregistering does nothing: Triton's clients begin with it."""

    def __init__(self, front: FrontEnd):
        self._front = front
        # A name may hold a slash, which clients escape and servers unescape before they look at the path.
        region = f"{PATH}/region/{{region:path}}"
        cuda = [path.replace("system", "cuda") for path in (PATH, region)]
        if front.shared_memory is None:
            self.routes = [Route(f"{at}/unregister", self.none, methods=["POST"]) for at in (PATH, region, *cuda)]
            return
        self.routes = [
            Route(f"{region}/register", self.register, methods=["POST"]),
            *(Route(f"{path}/unregister", self.unregister, methods=["POST"]) for path in (PATH, region)),
            *(Route(f"{path}/unregister", self.none, methods=["POST"]) for path in cuda),
            *(Route(f"{path}/status", self.status) for path in (PATH, region)),
        ]

    async def register(self, request: Request) -> Response:
        """``{"key": name of the object, "byte_size": bytes, "offset": where the region begins}``."""
        regions = self._changing(request)
        document = json_object(await self._front.body(request, bounds.OVERHEAD_BYTES))
        regions.register(request.path_params["region"], document)
        return json_response({})

    async def unregister(self, request: Request) -> Response:
        """One region, or all of this client's."""
        regions = self._changing(request)
        await self._front.body(request, bounds.OVERHEAD_BYTES)
        regions.unregister(request.path_params.get("region", ""))
        return json_response({})

    async def none(self, request: Request) -> Response:
        """No region is registered that could be unregistered."""
        await self._front.body(request, bounds.OVERHEAD_BYTES)
        return json_response({})

    async def status(self, request: Request) -> Response:
        return json_response(self._regions(request).status(request.path_params.get("region", "")))

    def _changing(self, request: Request) -> Regions:
        """Raises ``Rejection`` (403) for what a page in a browser may have sent: it could name objects of others."""
        if is_from_browser(request.headers):
            raise rejections.forbidden("no page in a browser may share memory")
        return self._regions(request)

    def _regions(self, request: Request) -> Regions:
        regions = self._front.regions_of(request.headers.get("authorization"))
        assert regions is not None
        return regions
