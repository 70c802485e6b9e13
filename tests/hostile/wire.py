"""A connection without sockets: bytes into a server's protocol, packet by packet, and the answers that come out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

MAX_TURNS = 400


class Wire(asyncio.Transport):
    """The server's side of a connection. Packets that come while reading is paused are delivered later."""

    def __init__(self, factory: Callable[..., Any], config: Config):
        super().__init__()
        self.state = ServerState()
        self.protocol = factory(config=config, server_state=self.state, app_state={})
        self.said = b""
        self.has_ended = self._is_closing = self._is_paused = False
        self._packets: list[bytes] = []
        self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None:
        assert not self.has_ended, "nothing may be said after the end"
        self.said += bytes(data)

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self.has_ended = self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def send(self, packet: bytes) -> None:
        """What the client sends."""
        self._packets.append(packet)
        self._deliver()

    def _deliver(self) -> None:
        while self._packets and not self._is_paused and not self._is_closing:
            self.protocol.data_received(self._packets.pop(0))

    async def settle(self) -> None:
        """Until the server has done all it can with what has come."""
        idle = 0
        for _ in range(MAX_TURNS):
            before = (len(self.said), len(self._packets), len(self.state.tasks))
            await asyncio.sleep(0)
            self._deliver()
            now = (len(self.said), len(self._packets), len(self.state.tasks))
            idle = 0 if now != before else idle + 1
            # A request whose body is awaited is a task, too, and waits for ever.
            if idle >= 12:
                return
        raise AssertionError("the server does not come to rest")

    async def leave(self) -> None:
        """The client closes."""
        self.close()
        await self.settle()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_last(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


def answers(said: bytes, methods: Sequence[str]) -> list[Answer]:
    """What a client that had sent requests of these ``methods`` makes of what it was told.

    Raises ``AssertionError`` if that is more than answers to these, or less than whole ones.
    """
    found: list[Answer] = []
    left = list(methods)
    while said:
        head, mark, said = said.partition(b"\r\n\r\n")
        assert mark, head
        assert head.startswith(b"HTTP/1.1 "), head[:80]
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(line.split()[1])
        body = b""
        if status >= 200:
            assert left, f"an answer to nothing: {line}"
            if left.pop(0) != "HEAD":
                body, said = _body(headers, said)
        found.append(Answer(status, headers, body))
    return found


def _body(headers: dict[str, str], said: bytes) -> tuple[bytes, bytes]:
    if headers.get("transfer-encoding") != "chunked":
        length = int(headers.get("content-length", len(said)))
        assert len(said) >= length, "an answer is cut short"
        return said[:length], said[length:]
    body = b""
    while True:
        size, _, said = said.partition(b"\r\n")
        count = int(size, 16)
        body, said = body + said[:count], said[count + 2 :]
        if not count:
            return body, said
