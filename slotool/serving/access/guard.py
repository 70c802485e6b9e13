"""Protection against pages of other sites, ambiguous hosts, and token files that others can read."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.requests import Request

from slotool.serving import rejections
from slotool.serving.rejections import Rejection


def others_can_read(path: Path) -> bool:
    """Whether users other than its owner may read the file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


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
