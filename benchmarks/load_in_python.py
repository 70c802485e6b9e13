"""What ``load.c`` does, for machines without a C compiler: same arguments, same output; slower."""

from __future__ import annotations

import math
import random
import re
import selectors
import socket
import sys
import time
from array import array
from pathlib import Path

PATIENCE_S = 1.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)


class Client:
    """One run against the server at ``address``."""

    def __init__(self, address: tuple[str, int], request: bytes, connections: int):
        self._address, self._request = address, request
        self._selector = selectors.DefaultSelector()
        self._idle = [self._connect() for _ in range(connections)]
        # By connection, its row and what has come of the answer.
        self._waiting: dict[socket.socket, int] = {}
        self._parts: dict[socket.socket, bytes] = {}
        # due, sent, answered, status of each request.
        self.rows = array("d")
        self._began_s = time.monotonic()

    def run(self, seconds: float, rate_per_s: float, seed: int) -> None:
        """Send for so long, at this rate or (0) in a closed loop, then wait for answers."""
        gap = random.Random(seed).expovariate
        closed = rate_per_s <= 0
        due_s = 0.0 if closed else gap(rate_per_s)
        until_s = seconds + PATIENCE_S
        while (now_s := self._now_s()) < (seconds if closed else until_s) and due_s < seconds:
            while self._idle and (closed or due_s <= now_s) and (closed or due_s < seconds):
                self._send(now_s if closed else due_s)
                due_s += 0.0 if closed else gap(rate_per_s)
            next_s = due_s if not closed and self._idle else min(seconds, now_s + 0.05) if closed else now_s + 0.05
            self._receive(max(0.0, next_s - self._now_s()))
        while self._waiting and self._now_s() < until_s:
            self._receive(0.05)
        while not closed and due_s < seconds:
            self.rows.extend((due_s, math.nan, math.nan, 0.0))
            due_s += gap(rate_per_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        return connection

    def _send(self, due_s: float) -> None:
        connection = self._idle.pop()
        self._waiting[connection] = len(self.rows) // 4
        self.rows.extend((due_s, self._now_s(), math.nan, 0.0))
        try:
            connection.sendall(self._request)
        except OSError:
            self._replace(connection)

    def _receive(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(1 << 20)
            except OSError:
                data = b""
            if data:
                self._take(connection, self._parts.pop(connection, b"") + data)
            else:
                self._replace(connection)

    def _take(self, connection: socket.socket, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, max(end, 0))
        if end >= 4 and length is None and _CHUNKED.search(data, 0, end):
            size = len(data) if data.endswith(b"0\r\n\r\n") else len(data) + 1
        elif end >= 4 and length is None:
            raise SystemExit(f"load: an answer without Content-Length: {data[:200]!r}")
        else:
            size = len(data) + 1 if length is None else end + int(length[1])
        if len(data) < size:
            self._parts[connection] = data
            return
        row = self._waiting.pop(connection, None)
        if row is not None:
            self.rows[4 * row + 2], self.rows[4 * row + 3] = self._now_s(), float(data[9:12])
            self._idle.append(connection)

    def _replace(self, connection: socket.socket) -> None:
        """The server has closed it."""
        self._selector.unregister(connection)
        connection.close()
        self._waiting.pop(connection, None)
        self._parts.pop(connection, None)
        self._idle = [other for other in self._idle if other is not connection]
        self._idle.append(self._connect())


def main() -> None:
    host, port, request, connections, seconds, rate_per_s, seed = sys.argv[1:]
    client = Client((host, int(port)), Path(request).read_bytes(), int(connections))
    client.run(float(seconds), float(rate_per_s), int(seed))
    sys.stdout.buffer.write(array("d", [float(seconds)]).tobytes() + client.rows.tobytes())


if __name__ == "__main__":
    main()
