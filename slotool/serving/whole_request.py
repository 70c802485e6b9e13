"""Requests for an inference that lie whole in one chunk of a connection, read in one look.

Strict where HTTP/1.1 (RFC 9112) leaves room: whatever is unusual is not read here, but by the parser that reads all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

_NAME = rb"[\w.~-]+"
_LINE = re.compile(
    rb"POST /(?:v2/models/(?P<model>%b)(?:/versions/(?P<version>%b))?/infer|compute) HTTP/1\.1\r\n" % (_NAME, _NAME)
)
_VISIBLE = rb"\x21-\x7e\x80-\xff"
# Blanks are given back to nobody (*+): else thousands of them before a bad byte would be tried in every division.
_HEADER = re.compile(
    rb"([!#$%%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([%b](?:[ \t%b]*[%b])?)?[ \t]*+\r\n" % (_VISIBLE, _VISIBLE, _VISIBLE)
)
_LENGTH = re.compile(r"[0-9]{1,12}")
# With these a request may end elsewhere than its length says, or wants a word before its body or after its answer.
_UNUSUAL = ("transfer-encoding", "expect", "upgrade", "te", "trailer")
# Heads no longer than this are remembered: a client sends the same one again and again.
_REMEMBERED_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and its headers. ``model``: empty on ``/compute``; ``version``: None where the path has none;
    ``headers``: names in lower case; ``body_bytes``: their ``Content-Length``."""

    model: str
    version: str | None
    headers: Mapping[str, str]
    body_bytes: int

    @property
    def is_compute(self) -> bool:
        return not self.model


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """A head and the body that follows it, to its last byte."""

    head: Head
    body: bytes

    @classmethod
    def of(cls, data: bytes, *, head_bytes: int) -> WholeRequest | None:
        """The request that ``data`` is. None when it is none for an inference, has a head longer than ``head_bytes``,
        is not whole, has something after it, or is unusual in any way."""
        if not data.startswith(b"POST /"):
            return None
        end = data.find(b"\r\n\r\n") + 2
        if not 2 <= end <= head_bytes:
            return None
        head = _remembered(data[:end]) if end <= _REMEMBERED_BYTES else _head(data[:end])
        if head is None or len(data) != end + 2 + head.body_bytes:
            return None
        return cls(head, data[end + 2 :])


def _head(lines: bytes) -> Head | None:
    asked = _LINE.match(lines)
    if asked is None:
        return None
    headers: dict[str, str] = {}
    at = asked.end()
    while at < len(lines):
        header = _HEADER.match(lines, at)
        if header is None:
            return None
        name = header[1].decode("ascii").lower()
        # Of two headers of a name the parser that reads all knows what to do.
        if name in headers or name in _UNUSUAL:
            return None
        headers[name] = (header[2] or b"").decode("latin-1")
        at = header.end()
    length = headers.get("content-length", "")
    if not _LENGTH.fullmatch(length) or headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    model, version = (None if part is None else part.decode() for part in asked.group("model", "version"))
    return Head(model or "", version, headers, int(length))


_remembered = lru_cache(maxsize=1_024)(_head)
