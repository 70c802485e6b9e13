"""Access control: who is let in over HTTP, and protection of state changes against pages of other sites."""

from __future__ import annotations

import ipaddress
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from slotool.serving import rejections
from slotool.serving.access.addresses import FORWARDED_FOR
from slotool.serving.rejections import Rejection

# Probes carry no secrets, and learn nothing here but that the server runs.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


def others_can_read(path: Path) -> bool:
    """Whether users other than its owner may read the file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


# Also of models whose names are escaped.
_INFERENCE = re.compile(r"^/compute$|/infer$")
_LIMITED = re.compile(r"^/compute$|/infer$|/feedback$")
_MODEL = re.compile(r"/v2/models/([^/]+)/")


class BearerGuard:
    """ASGI middleware: everything but ``OPEN_PATHS`` and the empty page for browsers, which itself asks for a token,
    goes by ``let_in``: it raises ``Rejection`` for an ``Authorization`` header, and gets whether the request counts
    against rates. ``rejected`` makes the response to a request of this scope."""

    def __init__(
        self, app: ASGIApp, let_in: Callable[[str | None, bool], None], rejected: Callable[[Rejection, Scope], ASGIApp]
    ):
        self._app = app
        self._let_in = let_in
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not _is_open(scope):
            shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
            try:
                self._let_in(shown[0] if len(shown) == 1 else None, is_limited(scope))
            except Rejection as rejection:
                app = self._rejected(rejection, scope)
        await app(scope, receive, send)


class AddressGuard:
    """ASGI middleware: requests that count against rates go by ``let_in``, which raises ``Rejection``. It is given the
    address of the connection and what ``X-Forwarded-For`` says, all such headers in one. ``rejected`` makes the
    response to a request of this scope."""

    def __init__(
        self,
        app: ASGIApp,
        let_in: Callable[[str | None, str | None], None],
        rejected: Callable[[Rejection, Scope], ASGIApp],
    ):
        self._app, self._let_in, self._rejected = app, let_in, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and is_limited(scope):
            peer, name = scope.get("client"), FORWARDED_FOR.encode()
            forwarded = [value.decode("latin-1") for header, value in scope["headers"] if header == name]
            try:
                self._let_in(peer[0] if peer else None, ",".join(forwarded))
            except Rejection as rejection:
                app = self._rejected(rejection, scope)
        await app(scope, receive, send)


def is_inference(scope: Scope) -> bool:
    """Whether an HTTP request asks for one."""
    return scope["method"] == "POST" and _INFERENCE.search(scope["path"]) is not None


def is_limited(scope: Scope) -> bool:
    """True if an HTTP request counts against the rates of clients and addresses: an inference, or labels."""
    return scope["method"] == "POST" and _LIMITED.search(scope["path"]) is not None


def model_of(scope: Scope) -> str | None:
    """The model that a request for an inference names, if it does: in its path or, on ``/compute``, in a header."""
    named = _MODEL.match(scope["path"])
    if named is not None:
        return named[1]
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"model"), None)


def host_fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> Rejection | None:
    """What is wrong with a request's Host headers (RFC 9112, section 3.2). ``version``: of HTTP; ``headers``: names in
    lower case."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return rejections.bad_request(f"the request has {hosts} Host headers, where HTTP/1.1 wants one")
    return None


def wants_page(accept: str) -> bool:
    """Whether an ``Accept`` header is a browser's, which wants a page and no document."""
    return "text/html" in accept.lower()


def _is_open(scope: Scope) -> bool:
    if scope["path"] in OPEN_PATHS:
        return True
    accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
    return scope["path"] == "/" and scope["method"] in ("GET", "HEAD") and wants_page(accept)


def is_from_browser(headers: Mapping[str, str]) -> bool:
    """Whether a page may have sent this: with a POST every browser states ``Origin`` or ``Sec-Fetch-Site``.
    ``headers``: names in lower case, or of any case where they are looked up so."""
    return "origin" in headers or "sec-fetch-site" in headers


def require_same_origin(request: Request, *, has_token: bool) -> None:
    """Raises ``Rejection`` (403) when a page of another site may have sent this.

    A browser says where a page came from in ``Origin`` and ``Sec-Fetch-Site``. A page whose own name was made to point
    here (DNS rebinding) agrees in both; without a token only addresses and localhost are taken as this server's name.
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
