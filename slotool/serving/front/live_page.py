"""Live page for browsers, its figures of each second, and changes of runtime settings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool import __version__
from slotool.errors import InputError, SlotoolError
from slotool.printable import did_you_mean
from slotool.serving.access import SETTINGS
from slotool.serving.front.frontend import FrontEnd, json_response
from slotool.serving.front.middleware import require_same_origin, wants_page
from slotool.serving.protocol import bounds, tensors
from slotool.serving.rejections import bad_request, shown
from slotool.serving.request_options import require_meant

TICK_S = 1.0
# The page fetches nothing from elsewhere, and no other site may show it in a frame.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SETTINGS = {"policy", "tolerance", "replicas", "threads"}
Page = Callable[[Request], Awaitable[Response]]


class LivePage:
    """Handlers over one ``FrontEnd``; ``index`` answers clients other than browsers."""

    def __init__(self, front: FrontEnd, index: Page):
        self._front = front
        self._index = index
        self._runtime_settings = front.runtime_settings
        self._reconfigures = False
        self._html = (resources.files("slotool.serving.front") / "live.html").read_text(encoding="utf-8")
        self.routes = [
            Route("/", self.page),
            Route("/live", self.figures, methods=["GET"]),
            Route("/live", self.update, methods=["POST"]),
        ]

    async def run(self) -> None:
        """Close a second of the figures every second."""
        while True:
            await asyncio.sleep(TICK_S)
            for live in (self._front.accounts.live, *self._front.accounts.live_of.values()):
                live.tick()

    async def page(self, request: Request) -> Response:
        if not wants_page(request.headers.get("accept", "")):
            return await self._index(request)
        headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept", "Cache-Control": "no-store"}
        return Response(self._html, headers=headers, media_type="text/html")

    async def figures(self, request: Request) -> Response:
        """Return the seconds after number ``since`` of all models or ``model``, and the settings in force."""
        text = request.query_params.get("since", "-1")
        number = -1
        with suppress(ValueError):
            number = int(text) if len(text) < 20 else -1
        model = request.query_params.get("model")
        if model is not None and model not in self._front.accounts.live_of:
            model = self._front.model(model).name
        return json_response(self._document(number, model))

    async def update(self, request: Request) -> Response:
        """Set any of ``policy``, ``tolerance``, ``replicas`` and ``threads``; return the settings in force."""
        front = self._front
        require_same_origin(request, has_token=front.clients is not None)
        front.require_role(request.headers.get("authorization"), SETTINGS)
        document = tensors.json_object(await front.body(request, bounds.OVERHEAD_BYTES))
        unknown = set(document) - _SETTINGS
        if unknown:
            raise bad_request(
                f"{min(unknown)[:40]!r} is no runtime setting; there are {', '.join(sorted(_SETTINGS))}"
                + did_you_mean(min(unknown), _SETTINGS)
            )
        if "tolerance" in document:
            tolerance = _tolerance(document["tolerance"])
            if tolerance is not None and not self._tiers():
                raise bad_request("tolerance: no model is served with rules to follow it (serve --rules)")
            for served in front.models.values():
                if tolerance is not None and served.rules is not None:
                    require_meant(served.rules, tolerance)
        workers = self._workers_asked(document)
        if "policy" in document:
            await self._use(str(document["policy"]))
        if workers is not None:
            await self._use_workers(*workers)
        if "tolerance" in document and tolerance != front.default_tolerance:
            front.default_tolerance = tolerance
            sentence = "no default tolerance" if tolerance is None else f"default tolerance {tolerance:g}"
            front.router.events.emit("setting", sentence)
        return json_response(self._document(1 << 62))

    async def _use(self, policy: str) -> None:
        runtime_settings = self._runtime_settings
        if runtime_settings is None:
            raise bad_request("policy: that of this server cannot be changed")
        if policy == runtime_settings.policy:
            return
        try:
            await runtime_settings.use(policy)
        except InputError as error:
            raise bad_request(f"policy {shown(policy)}: {error}") from None
        self._front.router.events.emit("setting", f"policy {policy}")

    def _workers_asked(self, document: dict[str, Any]) -> tuple[int, int] | None:
        """Return replicas and threads, of which a request may name one; None where it names neither."""
        if not document.keys() & {"replicas", "threads"}:
            return None
        if self._runtime_settings is None:
            raise bad_request("replicas, threads: the workers of this server cannot be changed")
        in_force = self._runtime_settings.workers
        replicas, threads = (
            _whole(document, key, now) for key, now in zip(("replicas", "threads"), in_force, strict=True)
        )
        # A client must not fill the machine; a server may have been started on more.
        most = max(self._front.router.engine.cores(), in_force[0] * in_force[1])
        if replicas * threads > most:
            raise bad_request(
                f"replicas, threads: {replicas} x {threads} is more than the {most} cores for workers here"
            )
        return replicas, threads

    async def _use_workers(self, replicas: int, threads: int) -> None:
        assert self._runtime_settings is not None
        if self._reconfigures:
            raise bad_request("replicas, threads: other workers are on their way; try again when they serve")
        self._reconfigures = True
        try:
            await self._runtime_settings.use_workers(replicas, threads, "asked for at /live")
        except SlotoolError as error:
            raise bad_request(f"replicas, threads: {error}") from None
        finally:
            self._reconfigures = False

    def _tiers(self) -> set[float]:
        models = self._front.models.values()
        return {rule.tolerance for served in models if served.rules for rule in served.rules.rules}

    def _document(self, number: int, model: str | None = None) -> dict[str, Any]:
        front, runtime_settings = self._front, self._runtime_settings
        accounts = front.accounts
        live = accounts.live if model is None else accounts.live_of.get(model, accounts.live)
        unready, states = front.router.unready(), front.router.worker_states()
        return {
            "version": __version__,
            "up_s": round(accounts.live.up_s(), 3),
            "models": list(accounts.live_of or front.models),
            "guarantees": {name: feedback.guarantees.documents() for name, feedback in accounts.feedback.items()},
            "workers": front.router.alive(),
            "all_workers": front.router.workers(),
            "busy": front.router.busy(),
            "worker_states": states,
            "threads": runtime_settings.workers[1] if runtime_settings else None,
            "can_reconfigure": runtime_settings is not None and front.router.engine.can_reconfigure,
            "unready": None if unready is None else str(unready),
            "policy": runtime_settings.policy if runtime_settings else None,
            "policies": list(runtime_settings.policies) if runtime_settings else [],
            "tolerance": front.default_tolerance,
            "tiers": sorted(self._tiers()),
            "seconds": live.since(number),
        }


def _whole(request: dict[str, Any], key: str, default: int) -> int:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise bad_request(f"{key}: a whole number from 1 on is expected")
    return value


def _tolerance(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise bad_request("tolerance: a number from 0 on is expected, or null for none")
    return float(value)
