"""Access control: an optional bearer token, and protection of state changes against pages of other sites."""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from slotool.errors import InputError
from slotool.serving.rejections import Rejection

TOKEN_VARIABLE = "SLOTOOL_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# Probes carry no secrets, and learn nothing here but that the server runs.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})


@dataclass(frozen=True)
class Token:
    """The secret that clients show as ``Authorization: Bearer TOKEN``."""

    secret: bytes

    def check(self, authorization: str | None) -> None:
        """Raises ``Rejection`` (401) unless this is the header that shows the token. Takes equally long for any
        guess."""
        if authorization is None:
            raise Rejection(401, "unauthorized", "this server wants Authorization: Bearer TOKEN")
        scheme, _, shown = authorization.partition(" ")
        right = hmac.compare_digest(shown.strip().encode(errors="replace"), self.secret)
        if scheme.lower() != "bearer" or not right:
            raise Rejection(401, "unauthorized", "the token is not this server's")

    @classmethod
    def of(cls, text: str, source: str) -> Token:
        """Raises ``InputError`` for a text that is no token, or one that can be guessed."""
        text = text.strip()
        if len(text) < MIN_TOKEN_CHARACTERS or not (text.isascii() and text.isprintable() and " " not in text):
            raise InputError(
                f"{source}: a token is at least {MIN_TOKEN_CHARACTERS} visible ASCII characters without spaces"
            )
        return cls(text.encode())


def read_token(path: Path | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """Of the file, else of ``$SLOTOOL_TOKEN``, else none. Raises ``InputError``."""
    if path is not None:
        try:
            return Token.of(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: the token cannot be read ({error})") from error
    text = environment.get(TOKEN_VARIABLE)
    return None if text is None else Token.of(text, f"${TOKEN_VARIABLE}")


def others_can_read(path: Path) -> bool:
    """Whether users other than its owner may read the file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


class BearerGuard:
    """ASGI middleware: everything but ``OPEN_PATHS`` and the empty page for browsers, which itself asks for the token,
    wants the token. ``rejected`` makes the response."""

    def __init__(self, app: ASGIApp, token: Token, rejected: Callable[[Rejection], ASGIApp]):
        self._app = app
        self._token = token
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not _is_open(scope):
            shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
            try:
                self._token.check(shown[0] if len(shown) == 1 else None)
            except Rejection as rejection:
                app = self._rejected(rejection)
        await app(scope, receive, send)


def wants_page(accept: str) -> bool:
    """Whether an ``Accept`` header is a browser's, which wants a page and no document."""
    return "text/html" in accept.lower()


def _is_open(scope: Scope) -> bool:
    if scope["path"] in OPEN_PATHS:
        return True
    accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
    return scope["path"] == "/" and scope["method"] in ("GET", "HEAD") and wants_page(accept)


def is_from_browser(request: Request) -> bool:
    """Whether a page may have sent this: with a POST every browser states ``Origin`` or ``Sec-Fetch-Site``."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers


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
        raise Rejection(403, "forbidden", "only this server's own page, or a client that is no browser, may change it")


def _is_address(host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
