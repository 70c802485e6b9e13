"""``/faults``: kills, stops and slows workers on request, for load tests that show what faults do."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.errors import InputError
from slotool.serving import rejections
from slotool.serving.access import SETTINGS
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.front.frontend import FrontEnd, json_response
from slotool.serving.front.middleware import is_from_browser
from slotool.serving.protocol import bounds
from slotool.serving.rejections import bad_request
from slotool.workloads.client.faults import MAX_FACTOR, PATH

MAX_SECONDS = 3_600.0


class FaultRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to happen to which worker; see ``slotool.workloads.client.faults.Fault``."""

    action: Literal["kill", "stop", "slow"]
    worker: Annotated[int, msgspec.Meta(ge=0)]
    factor: Annotated[float, msgspec.Meta(ge=1, le=MAX_FACTOR)] = 1.0
    lasts_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] | None = None


class Faults:
    """Lists the workers of ``front``'s server (GET), and injects a fault into one (POST).

    Only a server that was started to allow it has these routes; they are part of no page.
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
            asked = msgspec.json.decode(body, type=FaultRequest)
            process = self._engine.inject(asked.worker, asked.action, asked.factor, asked.lasts_s)
        except (msgspec.MsgspecError, InputError) as error:
            raise bad_request(f"fault: {error}") from None
        factor = f" by {asked.factor:g}" if asked.action == "slow" else ""
        self._front.router.events.emit(
            "fault",
            f"{asked.action} worker {asked.worker}{factor} (process {process}), as a client asked",
            worker=asked.worker,
            action=asked.action,
            factor=asked.factor,
            lasts_s=asked.lasts_s,
        )
        return json_response({"process": process})
