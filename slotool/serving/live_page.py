"""The live page for browsers, the figures it reads each second, and the runtime settings it updates."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool import __version__
from slotool.errors import InputError
from slotool.serving import bounds, tensors
from slotool.serving.frontend import FrontEnd, json_response
from slotool.serving.guard import require_same_origin, wants_page
from slotool.serving.rejections import bad_request

TICK_S = 1.0
# Nothing is fetched from elsewhere, whatever the page holds, and no other site may show it in a frame.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Page = Callable[[Request], Awaitable[Response]]


class RuntimeSettings(Protocol):
    """Changes the policy of the served models while they are served."""

    @property
    def policies(self) -> Sequence[str]:
        """What may be chosen from."""

    @property
    def policy(self) -> str:
        """What is in force."""

    async def use(self, policy: str) -> None:
        """Put another in force. Raises ``InputError``; then nothing has changed."""


class LivePage:
    """Handlers over one ``FrontEnd``; ``index`` answers clients that are no browsers."""

    def __init__(self, front: FrontEnd, index: Page, runtime_settings: RuntimeSettings | None = None):
        self._front = front
        self._index = index
        self._runtime_settings = runtime_settings
        self._html = (resources.files("slotool.serving") / "live.html").read_text(encoding="utf-8")
        self.routes = [
            Route("/", self.page),
            Route("/live", self.figures, methods=["GET"]),
            Route("/live", self.update, methods=["POST"]),
        ]

    async def run(self) -> None:
        """Close a second of the figures every second, for as long as the server runs."""
        while True:
            await asyncio.sleep(TICK_S)
            for live in (self._front.live, *self._front.live_of.values()):
                live.tick()
            self._front.shadows.report(time.monotonic())

    async def page(self, request: Request) -> Response:
        if not wants_page(request.headers.get("accept", "")):
            return await self._index(request)
        headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept", "Cache-Control": "no-store"}
        return Response(self._html, headers=headers, media_type="text/html")

    async def figures(self, request: Request) -> Response:
        """Seconds after ``since`` and what is in force; ``since`` is a second's number, all without one. ``model``: of
        that model only."""
        text = request.query_params.get("since", "-1")
        number = -1
        with suppress(ValueError):
            number = int(text) if len(text) < 20 else -1
        model = request.query_params.get("model")
        if model is not None and model not in self._front.live_of:
            model = self._front.model(model).name
        return json_response(self._document(number, model))

    async def update(self, request: Request) -> Response:
        """Set ``policy`` or ``tolerance``, whichever is named, and return the settings in force."""
        front = self._front
        require_same_origin(request, has_token=front.clients is not None)
        asked = tensors.json_object(await front.body(request, bounds.OVERHEAD_BYTES))
        strangers = set(asked) - {"policy", "tolerance"}
        if strangers:
            raise bad_request(f"{min(strangers)[:40]!r} is no runtime setting; there are policy and tolerance")
        if "tolerance" in asked:
            tolerance = _tolerance(asked["tolerance"])
            if tolerance is not None and not self._tiers():
                raise bad_request("tolerance: no model is served with rules to follow it (serve --rules)")
        if "policy" in asked:
            await self._use(asked["policy"])
        if "tolerance" in asked and tolerance != front.default_tolerance:
            front.default_tolerance = tolerance
            sentence = "no default tolerance" if tolerance is None else f"default tolerance {tolerance:g}"
            front.router.events.emit("setting", sentence)
        return json_response(self._document(1 << 62))

    async def _use(self, policy: Any) -> None:
        runtime_settings = self._runtime_settings
        if runtime_settings is None or policy not in list(runtime_settings.policies):
            offered = ", ".join(runtime_settings.policies) if runtime_settings else "none"
            raise bad_request(f"policy: {str(policy)[:40]!r} is not among those of this server: {offered}")
        if policy == runtime_settings.policy:
            return
        try:
            await runtime_settings.use(policy)
        except InputError as error:
            raise bad_request(f"policy {policy}: {error}") from None
        self._front.router.events.emit("setting", f"policy {policy}")

    def _tiers(self) -> set[float]:
        models = self._front.models.values()
        return {rule.tolerance for served in models if served.rules for rule in served.rules.rules}

    def _document(self, number: int, model: str | None = None) -> dict[str, Any]:
        front, runtime_settings = self._front, self._runtime_settings
        live = front.live_of.get(model, front.live) if model is not None else front.live
        unready = front.router.unready()
        return {
            "version": __version__,
            "up_s": round(front.live.up_s(), 3),
            "models": list(front.live_of or front.models),
            "shadows": front.shadows.documents(),
            "workers": front.router.alive(),
            "all_workers": front.router.workers(),
            "busy": front.router.busy(),
            "unready": None if unready is None else str(unready),
            "policy": runtime_settings.policy if runtime_settings else None,
            "policies": list(runtime_settings.policies) if runtime_settings else [],
            "tolerance": front.default_tolerance,
            "tiers": sorted(self._tiers()),
            "seconds": live.since(number),
        }


def _tolerance(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise bad_request("tolerance: a number from 0 on is expected, or null for none")
    return float(value)
