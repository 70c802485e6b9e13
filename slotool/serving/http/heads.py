"""Heads of requests: those that RFC 9112 has a server reject, and those of inferences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slotool.serving.access.guard import host_fault
from slotool.serving.http.requests import HttpRequest
from slotool.serving.rejections import Rejection
from slotool.serving.request_options import RequestOptions, from_headers

# The path of an inference; escaped names are left to the application's routes.
INFERENCE = re.compile(
    rb"/(?:v2/models/(?P<model>[\w.~-]+)(?:/versions/(?P<version>[\w.~-]+))?/infer|compute)", re.ASCII
)


class Head(NamedTuple):
    """Head of an inference request.

    Attributes:
        model: empty on ``/compute``.
        version: None where the path has none.
        headers: names in lower case.
        options: options that the headers state, or what is wrong with these.

    Requests with the same head share it: never change it.
    """

    model: str
    version: str | None
    headers: Mapping[str, str]
    options: RequestOptions | Rejection

    @property
    def path(self) -> str:
        if not self.model:
            return "/compute"
        version = "" if self.version is None else f"/versions/{self.version}"
        return f"/v2/models/{self.model}{version}/infer"


def head_fault(request: HttpRequest) -> Rejection | None:
    """What RFC 9112 has a server reject and llhttp lets pass: sections 2.3, 3.2 and 6.1."""
    if request.version not in ("1.0", "1.1"):
        return Rejection(505, "bad-request", f"HTTP/{request.version} is not spoken here: HTTP/1.1 and HTTP/1.0 are")
    if (rejection := host_fault(request.version, request.headers)) is not None:
        return rejection
    if request.encodings not in (b"", b"chunked"):
        return Rejection(501, "bad-request", "of transfer encodings only chunked is known here")
    return None


def read_head(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Head | None:
    """Return the head of an inference request; None for one that is left to the routes."""
    asked = INFERENCE.fullmatch(target)
    if asked is None:
        return None
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(named) != len(headers) or "content-encoding" in named or "expect" in named:
        return None
    # The routes report what is wrong with such a head.
    if "host" not in named or named.get("transfer-encoding", "chunked") != "chunked":
        return None
    model, version = asked.group("model", "version")
    options: RequestOptions | Rejection
    try:
        options = from_headers(named)
    except Rejection as rejection:
        options = rejection
    return Head(model.decode() if model else "", version.decode() if version else None, named, options)
