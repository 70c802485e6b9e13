"""Which server, and which of its models: asked before the first request is counted."""

from __future__ import annotations

import ipaddress
import os
import ssl
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from slotool import strict_json
from slotool.errors import InputError, RunError

ANSWER_WITHIN_S = 10.0
_SCHEMES = {
    "http": (("http", "https"), "http://127.0.0.1:8000"),
    "grpc": (("grpc", "http"), "127.0.0.1:8001"),
}


def server_address(url: str, *, scheme: str = "http", allow_remote: bool = False) -> str:
    """``url`` as ``scheme://host[:port][/prefix]`` without a slash at its end; ``scheme`` when it names none.

    ``scheme``: http (https is taken too) or grpc.

    Raises ``InputError`` when it is no HTTP address, or not this machine's loopback and ``allow_remote`` is not set:
    a load test against another owner's server is an attack.
    """
    try:
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a server's address ({error})") from error
    known, example = _SCHEMES[scheme]
    if parts.scheme not in known or not host or parts.query or parts.fragment:
        raise InputError(f"{url!r} is not a server's address; expected one like {example}")
    if not (allow_remote or is_loopback(host)):
        raise InputError(f"{host} is not this machine; --allow-remote says that its owner expects this load")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def authorization() -> dict[str, str]:
    """The header that shows ``$SLOTOOL_TOKEN``; none where that is not set."""
    token = os.environ.get("SLOTOOL_TOKEN", "").strip()
    return {"authorization": f"Bearer {token}"} if token else {}


def is_loopback(host: str) -> bool:
    """Whether ``host`` is localhost or an address of the loopback interface. Names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def first_model(session: aiohttp.ClientSession, address: str) -> str:
    """The first model a server lists, by the repository extension or, as slotool does, in its front page.

    Raises ``InputError`` when it lists none, ``RunError`` when it cannot be reached.
    """
    names = _names(await _document(session, "POST", address, "/v2/repository/index"))
    if not names:
        front_page = await _document(session, "GET", address, "/")
        names = _names(front_page.get("models") if isinstance(front_page, dict) else None)
    if not names:
        raise InputError(f"{address} lists no model; name one with --model")
    return names[0]


def _names(entries: Any) -> list[str]:
    """Model names: of a list of them, of objects that have one, or the keys of one object."""
    listed = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries or []]
    return [name for name in listed if isinstance(name, str) and name]


async def _document(session: aiohttp.ClientSession, method: str, address: str, path: str) -> Any:
    """The JSON document of a 2xx answer, None for anything else."""
    body = {"ready": True} if method == "POST" else None
    try:
        async with session.request(method, address + path, json=body, allow_redirects=False) as response:
            raw = await response.read()
            return strict_json.decode(raw) if response.ok else None
    except ValueError:
        return None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise RunError(f"no server answers at {address} ({reason(error)})") from error


def reason(error: BaseException) -> str:
    """One short line for a failed request."""
    if isinstance(error, TimeoutError):
        return "no answer within the time allowed"
    # TLS has numbers of its own.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return " ".join(str(error).split())[:200] or type(error).__name__
