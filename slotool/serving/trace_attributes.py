"""What the span of a request is called and says, by OpenTelemetry's semantic conventions.

Source: opentelemetry.io/docs/specs/semconv, HTTP server spans (stable) and gRPC server spans (release candidate).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from slotool.serving.grpc_codes import CODES

# Paths and names that clients send are cut to so many characters.
MAX_CHARACTERS = 200
_ROUTES = re.compile(r"(?P<compute>/compute)|/v2/models/[^/]+(?P<version>/versions/[^/]+)?/infer")
# Those of gRPC that are the server's fault.
_SERVER_ERRORS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class RequestSpan(NamedTuple):
    """``is_error``: whether the server is at fault."""

    name: str
    attributes: dict[str, Any]
    is_error: bool


def of_http(path: str, status: int, bytes_in: int, bytes_out: int, peer: str | None, scheme: str) -> RequestSpan:
    """Of an inference over HTTP: all are POSTs. It is named after its route, which tells no two models apart."""
    attributes: dict[str, Any] = {
        "http.request.method": "POST",
        "url.path": path[:MAX_CHARACTERS],
        "url.scheme": scheme,
        "network.protocol.name": "http",
        "http.response.status_code": status,
        "http.request.body.size": bytes_in,
        "http.response.body.size": bytes_out,
        **_client(peer),
    }
    name, found = "POST", _ROUTES.fullmatch(path)
    if found is not None:
        version = "/versions/{version}" if found["version"] else ""
        route = found["compute"] or f"/v2/models/{{model}}{version}/infer"
        attributes["http.route"] = route
        name = f"POST {route}"
    is_error = status >= 500
    if is_error:
        attributes["error.type"] = str(status)
    return RequestSpan(name, attributes, is_error)


def of_grpc(path: str, status: int, peer: str | None) -> RequestSpan:
    """Of an inference over gRPC. ``status``: as over HTTP."""
    code, method = CODES.get(status, "UNKNOWN"), path.removeprefix("/")[:MAX_CHARACTERS]
    attributes: dict[str, Any] = {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": code,
        **_client(peer),
    }
    is_error = code in _SERVER_ERRORS
    if is_error:
        attributes["error.type"] = code
    return RequestSpan(method, attributes, is_error)


def _client(peer: str | None) -> dict[str, str]:
    return {} if not peer else {"network.peer.address": peer}
