"""Middleware: who is admitted, which pages may change the server, and which requests are recorded."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotool.serving import rejections
from slotool.serving.access import FORWARDED_FOR
from slotool.serving.front.frontend import FrontEnd
from slotool.serving.monitoring.access_log import facts_of
from slotool.serving.monitoring.traces import TRACE_HEADER, trace_id
from slotool.serving.rejections import Rejection

# Probes carry no secrets, and reveal only that the server runs.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
# Names of models may be escaped.
_INFERENCE = re.compile(r"^/compute$|/infer$")
_COUNTED = re.compile(r"^/compute$|/infer$|/feedback$")
_MODEL = re.compile(r"/v2/models/([^/]+)/")


class RequestMiddleware:
    """Middleware that rejects unknown clients and excess rates, returns trace contexts, and records requests.

    Where there are clients, all but ``OPEN_PATHS`` and the empty page for browsers, which asks for a token, needs one.
    Inferences and labels count against the rates of clients and addresses. Handlers leave an ``InferenceResult`` in the
    request's state as ``answer``.
    """

    def __init__(self, app: ASGIApp, front: FrontEnd):
        self._app, self._front = app, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        app = self._app
        try:
            self._let_in(scope, headers)
        except Rejection as rejection:
            app = self._rejected(rejection, scope)
        traceparent = headers.get(TRACE_HEADER)
        if trace_id(traceparent) is None:
            traceparent = None
        if traceparent is None and not self._front.has_records:
            await app(scope, receive, send)
            return
        began_s = time.monotonic()
        # An exception before the answer begins is the application's 500.
        status, bytes_in, bytes_out = 500, 0, 0

        async def counted_receive() -> Message:
            nonlocal bytes_in
            message = await receive()
            bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, bytes_out
            if message["type"] == "http.response.start":
                status = message["status"]
                if traceparent is not None:
                    named = (TRACE_HEADER.encode(), traceparent.encode())
                    message = {**message, "headers": [*message["headers"], named]}
            bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, counted_receive, counted_send)
        finally:
            if self._front.has_records:
                self._record(scope, headers, status, began_s, bytes_in, bytes_out)

    def _let_in(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise ``Rejection`` for a request without a client's token (401), or beyond a rate (429)."""
        front, is_limited = self._front, counts(scope)
        if front.clients is not None and not _is_open(scope, headers):
            front.let_in(headers.get("authorization"), is_limited)
        if front.addresses is not None and is_limited:
            name = FORWARDED_FOR.encode()
            forwarded = [value.decode("latin-1") for header, value in scope["headers"] if header == name]
            front.let_address_in(_peer(scope), ",".join(forwarded))

    def _rejected(self, rejection: Rejection, scope: Scope) -> ASGIApp:
        if rejection.status == 401:
            return self._front.turned_away(rejection).response()
        named = _MODEL.match(scope["path"])
        in_header = (value.decode("latin-1") for name, value in scope["headers"] if name == b"model")
        return self._front.rejected(rejection, named[1] if named else next(in_header, None)).response()

    def _record(
        self,
        scope: Scope,
        headers: dict[str, str],
        status: int,
        began_s: float,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        front, answer = self._front, scope.get("state", {}).get("answer")
        model = scope.get("path_params", {}).get("model")
        if model is None and scope["path"] == "/compute":
            model = front.named(headers.get("model"))
        front.record(
            headers,
            is_inference=scope["method"] == "POST" and _INFERENCE.search(scope["path"]) is not None,
            protocol="http",
            client=front.client_name(headers.get("authorization")),
            peer=_peer(scope),
            path=scope["path"],
            model=model,
            status=status,
            total_us=1e6 * (time.monotonic() - began_s),
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            answer={} if answer is None else facts_of(answer),
        )


def counts(scope: Scope) -> bool:
    """True for an inference or a label: it counts against rates, and its rejection in the metrics of requests."""
    return scope["method"] == "POST" and _COUNTED.search(scope["path"]) is not None


def _is_open(scope: Scope, headers: dict[str, str]) -> bool:
    if scope["path"] in OPEN_PATHS:
        return True
    return scope["path"] == "/" and scope["method"] in ("GET", "HEAD") and wants_page(headers.get("accept", ""))


def _peer(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers that occur once, names in lower case."""
    values: dict[str, str] = {}
    twice = set()
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in values:
            twice.add(name)
        values[name] = value.decode("latin-1")
    return {name: value for name, value in values.items() if name not in twice}


def wants_page(accept: str) -> bool:
    """True if the ``Accept`` header is a browser's."""
    return "text/html" in accept.lower()


def is_from_browser(headers: Mapping[str, str]) -> bool:
    """True if a browser may have sent this: each POST then has ``Origin`` or ``Sec-Fetch-Site``.

    ``headers`` have lower-case names, or are looked up without regard to case.
    """
    return "origin" in headers or "sec-fetch-site" in headers


def require_same_origin(request: Request, *, has_token: bool) -> None:
    """Raise ``Rejection`` (403) if another site's page may have sent this.

    Browsers state a page's origin in ``Origin`` and ``Sec-Fetch-Site``. A page whose own name was made to point here
    (DNS rebinding) agrees in both; so without a token only addresses and localhost count as this server's name.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    foreign = site not in ("same-origin", "none") or (origin is not None and origin.partition("://")[2] != host)
    if foreign or not (has_token or _is_address(host)):
        raise rejections.forbidden("only this server's own page, or a client that is no browser, may change it")


def _is_address(host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
