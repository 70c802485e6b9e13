"""Requests whose bodies are requests, too, and servers to send them to: slotool's protocol and uvicorn's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from uvicorn import Config

from slotool.serving import RequestLimits, Router, create_app
from slotool.serving.access import Clients
from slotool.serving.operations.server import Server
from tests.hostile.wire import Answer, Wire, answers
from tests.serving.live_server import ThreeLinear, served

TOKEN = "correct-horse-battery"
RIGHT = f"Authorization: Bearer {TOKEN}"
# Bodies that are requests, too. The second is six finite floats, so that /compute takes it.
SMUGGLED = f"POST /v2/models/smuggl/infer HTTP/1.1\r\nContent-Length: 0\r\n{RIGHT}\r\n\r\n".encode()
SIX_FLOATS = b"GET /smuggl HTTP/1.1\r\n\r\n"
LONG = SMUGGLED * 6
MARKER = f"GET /marker HTTP/1.1\r\nHost: x\r\n{RIGHT}\r\n\r\n".encode()
INFER = "/v2/models/three/infer"
PLAIN, GUARDED = "plain", "guarded"


@dataclass(frozen=True)
class Case:
    """A request with a body, and of which kind the server is that is asked."""

    method: str
    path: str
    status: int
    server: str = PLAIN
    headers: tuple[str, ...] = ()
    body: bytes = SMUGGLED
    chunked: bool = False
    trailers: tuple[str, ...] = ()
    version: str = "1.1"
    sent: bytes = field(init=False)

    def __post_init__(self) -> None:
        framing = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(self.body)}"
        lines = (f"{self.method} {self.path} HTTP/{self.version}", "Host: x", framing, *self.headers, "", "")
        body = self.body
        if self.chunked:
            size = 9 if body is SIX_FLOATS else len(SMUGGLED)
            chunks = (body[at : at + size] for at in range(0, len(body), size))
            ends = "".join(f"{line}\r\n" for line in self.trailers).encode()
            body = b"%b0\r\n%b\r\n" % (b"".join(b"%x;a=b\r\n%b\r\n" % (len(c), c) for c in chunks), ends)
        object.__setattr__(self, "sent", "\r\n".join(lines).encode() + body)


WRONG = ("Authorization: Bearer nobody-knows-this",)
EXPECT = ("Expect: 100-continue",)
CASES = {
    "200": Case("POST", "/compute", 200, body=SIX_FLOATS),
    "200 chunked": Case("POST", "/compute", 200, chunked=True, body=SIX_FLOATS),
    "200 with trailers": Case(
        "POST", "/compute", 200, chunked=True, trailers=("X: GET /smuggl HTTP/1.1",), body=SIX_FLOATS
    ),
    "200 with the token": Case("POST", "/compute", 200, GUARDED, (RIGHT,), body=SIX_FLOATS),
    "200 of a GET": Case("GET", "/v2", 200),
    "200 of a HEAD": Case("HEAD", "/v2", 200),
    "200 of a chunked GET": Case("GET", "/v2", 200, chunked=True),
    "200 of HTTP/1.0": Case("POST", "/compute", 200, version="1.0", body=SIX_FLOATS),
    "200 and close": Case("POST", "/compute", 200, headers=("Connection: close",), body=SIX_FLOATS),
    "100 and 200": Case("POST", "/compute", 200, headers=EXPECT, body=SIX_FLOATS),
    "400": Case("POST", INFER, 400),
    "401": Case("POST", "/compute", 401, GUARDED),
    "401 of a wrong token": Case("POST", INFER, 401, GUARDED, WRONG),
    "401 chunked": Case("POST", INFER, 401, GUARDED, chunked=True),
    "401 of a page": Case("POST", "/metrics", 401, GUARDED),
    "401 instead of 100": Case("POST", "/compute", 401, GUARDED, EXPECT),
    "404 of a model": Case("POST", "/v2/models/none/infer", 404),
    "404 of a model, chunked": Case("POST", "/v2/models/none/infer", 404, chunked=True),
    "404 of a page": Case("POST", "/nowhere", 404),
    "404 instead of 100": Case("POST", "/nowhere", 404, headers=EXPECT),
    "405": Case("POST", "/metrics", 405),
    "405 chunked": Case("PUT", INFER, 405, chunked=True),
    "405 of a DELETE": Case("DELETE", "/v2", 405),
    "413": Case("POST", "/compute", 413, body=LONG),
    "413 chunked": Case("POST", INFER, 413, body=LONG, chunked=True),
    "413 of HTTP/1.0": Case("POST", "/compute", 413, body=LONG, version="1.0"),
    "415": Case("POST", "/compute", 415, headers=("Content-Encoding: br",)),
    "415 chunked": Case("POST", INFER, 415, headers=("Content-Encoding: br",), chunked=True),
    "504": Case("POST", "/compute", 504, headers=("Deadline-Ms: 0.000001",), body=SIX_FLOATS),
}


class Servers:
    """The same applications behind slotool's protocol and behind uvicorn's own."""

    def __init__(self) -> None:
        self._apps = {kind: self._app(kind) for kind in (PLAIN, GUARDED)}

    @staticmethod
    def _app(kind: str) -> tuple[Config, Config]:
        model = ThreeLinear()
        token = Clients.of_token(TOKEN, "here") if kind == GUARDED else None
        app = create_app(
            Router({"three": served(model)}), limits=RequestLimits(body_bytes=len(LONG) - 1), clients=token
        )
        own = Server(app, lambda: None, drain_s=1).config
        own.load()
        plain = Config(
            app,
            log_config=None,
            log_level="critical",
            lifespan="off",
            ws="none",
            date_header=False,
            server_header=False,
        )
        plain.load()
        return own, plain

    def own(self, kind: str) -> Wire:
        config = self._apps[kind][0]
        return Wire(config.http_protocol_class, config)

    def plain(self, kind: str, protocol: Any) -> Wire:
        return Wire(protocol, self._apps[kind][1])


UPGRADES = {
    "h2c as curl asks": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"),
    "h2c as Java asks": ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEAAEAA", "Upgrade: h2c"),
    "websocket": ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZQ=="),
    "several": ("Connection: upgrade", "Upgrade: TLS/1.0", "Upgrade: h2c"),
}  # fmt: skip


async def tell(wire: Wire, packets: Sequence[bytes], *, wait: bool) -> bytes:
    """Send the packets, each after the server has done what it can with the one before, or all at once."""
    for packet in packets:
        wire.send(packet)
        if wait:
            await wire.settle()
    await wire.settle()
    said = wire.said
    await wire.leave()
    return said


async def talk(wire: Wire, packets: Sequence[bytes], methods: Sequence[str], *, wait: bool) -> list[Answer]:
    """The same, taken apart: answers to requests of these methods."""
    return answers(await tell(wire, packets, wait=wait), methods)


def split_at(data: bytes, *places: int) -> list[bytes]:
    return [data[a:b] for a, b in pairwise((0, *sorted(places), len(data))) if a < b]
