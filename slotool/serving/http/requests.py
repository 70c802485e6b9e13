"""Requests as llhttp frames them: one parser sees every byte, and nothing else decides where a request ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import httptools

from slotool.serving.rejections import Rejection, bad_request
from slotool.serving.request_options import RequestOptions, from_headers

# Largest cached head, and number of cached heads.
MAX_KNOWN_BYTES, MAX_KNOWN = 1_024, 256


class HttpRequest:
    """Request as its head states it; requests with the same head share it.

    ``target``: as sent; ``headers``: in order, names in lower case, without trailers; ``keep_alive``: the connection
    may serve another request; ``inference``: its head as an inference request, None for other pages or before it was
    parsed.
    """

    __slots__ = ("headers", "inference", "keep_alive", "method", "target", "version")

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.inference: Any = None

    @property
    def content_length(self) -> int | None:
        """Length of the body, bytes; None where it is chunked or absent."""
        value = next((value for name, value in self.headers if name == b"content-length"), b"")
        return int(value) if value.isdigit() else None

    @property
    def expects_continue(self) -> bool:
        """True if the client waits for ``100 Continue`` before it sends the body."""
        # An HTTP/1.0 client would take the 100 for the answer (RFC 9110, section 10.1.1).
        return self.version != "1.0" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )

    @property
    def encodings(self) -> bytes:
        """Transfer encodings, in lower case and without spaces; empty where there are none."""
        values = (value for name, value in self.headers if name == b"transfer-encoding")
        return b",".join(values).lower().replace(b" ", b"").replace(b"\t", b"")

    @property
    def head_bytes(self) -> int:
        """Approximate length of the head, bytes."""
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers)


class Receiver(Protocol):
    """Receiver of a connection's requests. None of its methods may raise."""

    def head_received(self, request: HttpRequest) -> None:
        """Accept a complete head."""

    def body_received(self, data: bytes | memoryview) -> None:
        """Accept bytes of the body, without the framing of chunks."""

    def request_complete(self) -> None:
        """Accept the end of the request."""


class KnownHeads:
    """Cache of parsed request heads of all connections, by their bytes: clients repeat them.

    It holds heads of requests with a Content-Length that came whole in one packet on a connection that goes on.
    """

    def __init__(self) -> None:
        # Requests and lengths of their bodies, by the bytes of the head.
        self._requests: dict[bytes, tuple[HttpRequest, int]] = {}

    def find(self, data: bytes) -> tuple[HttpRequest, memoryview] | None:
        """Return the request and its body if ``data`` is exactly one request with a cached head; else None."""
        end = data.find(b"\r\n\r\n", 0, MAX_KNOWN_BYTES) + 4
        cached = self._requests.get(data[:end])
        if cached is None or cached[1] != len(data) - end:
            return None
        return cached[0], memoryview(data)[end:]

    def remember(self, data: bytes, request: HttpRequest) -> None:
        """Remember the head of ``request``, which was all of ``data``."""
        end = data.find(b"\r\n\r\n", 0, MAX_KNOWN_BYTES) + 4
        if end > 4 and request.keep_alive and request.content_length == len(data) - end:
            if len(self._requests) >= MAX_KNOWN:
                self._requests.clear()
            self._requests[data[:end]] = request, len(data) - end


class RequestReader:
    """Feeder of a connection's bytes to llhttp (by httptools), which reports requests to a receiver.

    A whole request whose head is cached in ``known`` is reported without llhttp.

    ``in_head``: the last byte lies within a head. ``head_bytes``: bytes of that head, without packets that began with
    something else. ``framing_bytes``: bytes within a body that are not part of it, such as lengths of chunks and
    trailers, without the packet in which the body began.
    """

    def __init__(self, receiver: Receiver, heads: KnownHeads | None = None):
        self._receiver, self._known = receiver, heads or KnownHeads()
        self._completed: HttpRequest | None = None
        self._request: HttpRequest | None = None
        self._add_header: Callable[[tuple[bytes, bytes]], None] = _ignore
        self._stopped = False
        self._begun = self._body_bytes = 0
        self.in_head = False
        self.head_bytes = 0
        self.framing_bytes = 0
        self._parser: Any = self._new_parser()

    def feed(self, data: bytes) -> bool:
        """Parse bytes of the connection. False if they are not HTTP/1.1: then nothing after them can be read."""
        if self._stopped:
            return True
        is_between = self.is_between_requests
        if is_between and (cached := self._known.find(data)) is not None:
            self._report(*cached)
            return True
        self._completed = None
        was_in_head, was_in_body = self.in_head, not self.in_head and self._request is not None
        self._begun = self._body_bytes = 0
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._stopped:
                self.stop()
                return False
        if self.in_head:
            alone = was_in_head if self._begun == 0 else self._begun == 1 and not was_in_head and not was_in_body
            self.head_bytes = (self.head_bytes if was_in_head else 0) + len(data) if alone else 0
        elif self._request is not None:
            same = was_in_body and self._begun == 0
            self.framing_bytes = self.framing_bytes + len(data) - self._body_bytes if same else 0
        elif is_between and self._begun == 1 and self._completed is not None:
            self._known.remember(data, self._completed)
        return True

    def _report(self, request: HttpRequest, body: memoryview) -> None:
        self._receiver.head_received(request)
        if not self._stopped and body:
            self._receiver.body_received(body)
        if not self._stopped:
            self._receiver.request_complete()

    @property
    def is_between_requests(self) -> bool:
        """True if the next byte begins a request."""
        return self._request is None and not self.in_head and not self._stopped

    def stop(self) -> None:
        """Report nothing of later bytes: no request that follows may be answered."""
        self._stopped = True
        self.in_head = False

    def close(self) -> None:
        """Release the parser of a closed connection."""
        self.stop()
        self._request = self._parser = None

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Bytes after a request that closes the connection are ignored; otherwise they would be an error, reported
        # before that request is answered.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No upgrades are supported, so such a header is ignored (RFC 9110, section 7.8). httptools does not read
            # the body of such a request: a new parser gets the same head without that header. A packet may hold
            # thousands of these, and is not copied as often.
            rest = memoryview(data)[upgrade.args[0] :]
        else:
            return
        while not self._stopped:
            self._ignore_upgrade()
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]

    def _ignore_upgrade(self) -> None:
        request = self._request
        if request is None or self._stopped:
            return
        self._parser = self._new_parser()
        line = b"%b %b HTTP/%b\r\n" % (request.method.encode("ascii"), request.target, request.version.encode("ascii"))
        headers = (b"%b: %b\r\n" % header for header in request.headers if header[0] != b"upgrade")
        self._begun -= 1
        self._parser.feed_data(b"".join((line, *headers, b"\r\n")))

    # Called by httptools.

    def on_message_begin(self) -> None:
        self._request = request = HttpRequest()
        self._add_header = request.headers.append
        self.in_head = not self._stopped
        self._begun += 1

    def on_url(self, url: bytes) -> None:
        if self._request is not None:
            self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_header((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        # Headers after the body are trailers.
        self._add_header = _ignore
        if not self.in_head or request is None:
            return
        parser = self._parser
        request.method = parser.get_method().decode("ascii")
        request.version = parser.get_http_version()
        if parser.should_upgrade() and request.method != "CONNECT":
            return
        request.keep_alive = request.version != "1.0" and parser.should_keep_alive() and request.method != "CONNECT"
        self.in_head = False
        self._receiver.head_received(request)

    def on_body(self, body: bytes) -> None:
        if not self._stopped and self._request is not None:
            self._body_bytes += len(body)
            self._receiver.body_received(body)

    def on_message_complete(self) -> None:
        request = self._request
        if self._stopped or request is None or self.in_head:
            return  # With in_head set, a request for an upgrade: it is parsed again.
        self._request, self._completed = None, request
        if not request.keep_alive:
            self.stop()
        self._receiver.request_complete()


def _ignore(header: tuple[bytes, bytes]) -> None:
    pass


# The path of an inference; escaped names are left to the application's routes.
INFERENCE = re.compile(
    rb"/(?:v2/models/(?P<model>[\w.~-]+)(?:/versions/(?P<version>[\w.~-]+))?/infer|compute)", re.ASCII
)


class Head(NamedTuple):
    """Head of an inference request; shared by requests with the same head, so never change it.

    Attributes:
        model: empty on ``/compute``.
        version: None where the path has none.
        headers: names in lower case.
        options: options of the headers, or the rejection of these.
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
    """Return the rejection of a head that llhttp accepts and RFC 9112 forbids (sections 2.3, 3.2 and 6.1)."""
    if request.version not in ("1.0", "1.1"):
        return Rejection(505, "bad-request", f"HTTP/{request.version} is not spoken here: HTTP/1.1 and HTTP/1.0 are")
    hosts = sum(name == b"host" for name, _ in request.headers)
    if hosts > 1 or (hosts == 0 and request.version == "1.1"):
        return bad_request(f"the request has {hosts} Host headers, where HTTP/1.1 wants one")
    if request.encodings not in (b"", b"chunked"):
        return Rejection(501, "bad-request", "of transfer encodings only chunked is known here")
    return None


def read_head(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Head | None:
    """Return the head of an inference request; None for one left to the routes."""
    match = INFERENCE.fullmatch(target)
    if match is None:
        return None
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(named) != len(headers) or "content-encoding" in named or "expect" in named:
        return None
    # The routes report the error.
    if "host" not in named or named.get("transfer-encoding", "chunked") != "chunked":
        return None
    model, version = match.group("model", "version")
    options: RequestOptions | Rejection
    try:
        options = from_headers(named)
    except Rejection as rejection:
        options = rejection
    return Head(model.decode() if model else "", version.decode() if version else None, named, options)
