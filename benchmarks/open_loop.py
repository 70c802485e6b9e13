"""An open-loop client that costs a core less than the server it loads: one thread, epoll, requests made beforehand.

``slotool loadtest`` tells what became of every request, which costs it as much as an answer costs the server; at
several times the server's capacity it would be what is measured.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

# Requests outstanding at a time; those that come meanwhile wait at the client, and that is part of their latency.
MAX_CONNECTIONS = 512
# After the last request was sent, for the last answers.
PATIENCE_S = 3.0
_LENGTH = b"content-length: "
_NUMBER = re.compile(r"[\d.,]*\d")


@dataclass
class Sent:
    """What became of requests: ``answered`` by whether in time, ``rejected`` by sentence without its numbers."""

    seconds: float = 0.0
    sent: int = 0
    in_time: int = 0
    late: int = 0
    unanswered: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    send_delays_s: list[float] = field(default_factory=list)

    @property
    def rate_per_s(self) -> float:
        return self.sent / self.seconds

    @property
    def goodput_per_s(self) -> float:
        return self.in_time / self.seconds


class OpenLoop:
    """Sends ``requests`` (whole, as bytes) in turn to ``url``, by Poisson arrivals; each is due within ``deadline_s``
    of the instant it should have been sent at."""

    def __init__(self, url: str, requests: Sequence[bytes], deadline_s: float):
        parts = urlsplit(url)
        self._server = parts.hostname or "", parts.port or 80
        self._requests, self._deadline_s = requests, deadline_s
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._idle: list[socket.socket] = []
        # Per connection when its request should have been sent, and what has come of the answer.
        self._due_s: dict[int, float] = {}
        self._parts: dict[int, bytes] = {}

    def run(self, rate_per_s: float, seconds: float, seed: int = 0) -> Sent:
        gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, int(rate_per_s * seconds))
        sent = Sent()
        began_s = time.perf_counter()
        arrivals = deque((began_s + np.cumsum(gaps)).tolist())
        count = len(arrivals)
        while arrivals:
            now_s = time.perf_counter()
            while arrivals and arrivals[0] <= now_s and self._send(arrivals[0], now_s, sent):
                arrivals.popleft()
            wait_s = min(max(arrivals[0] - time.perf_counter(), 0.0), 1e-3) if arrivals else 0.0
            self._receive(wait_s, sent)
        sent.seconds, sent.sent = time.perf_counter() - began_s, count
        until_s = time.perf_counter() + PATIENCE_S
        while self._due_s and time.perf_counter() < until_s:
            self._receive(0.01, sent)
        sent.unanswered += len(self._due_s)
        return sent

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._poll.close()

    def _send(self, due_s: float, now_s: float, sent: Sent) -> bool:
        if self._idle:
            connection = self._idle.pop()
        elif len(self._open) < MAX_CONNECTIONS:
            connection = self._connect()
        else:
            return False
        self._due_s[connection.fileno()] = due_s
        sent.send_delays_s.append(now_s - due_s)
        connection.send(self._requests[len(sent.send_delays_s) % len(self._requests)])
        return True

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._server)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._open[connection.fileno()] = connection
        self._poll.register(connection.fileno(), select.EPOLLIN)
        return connection

    def _receive(self, wait_s: float, sent: Sent) -> None:
        for number, _ in self._poll.poll(wait_s):
            connection = self._open[number]
            data = connection.recv(65_536)
            if not data:
                self._forget(number, sent)
                continue
            if number in self._parts:
                data = self._parts.pop(number) + data
            end = data.find(b"\r\n\r\n") + 4
            at = data.find(_LENGTH) + len(_LENGTH)
            if end < 4 or len(data) < end + int(data[at : data.index(b"\r", at)]):
                self._parts[number] = data
                continue
            due_s = self._due_s.pop(number)
            self._idle.append(connection)
            if data[9:12] != b"200":
                sent.rejected[data[end:].decode()] += 1
            elif time.perf_counter() - due_s <= self._deadline_s:
                sent.in_time += 1
            else:
                sent.late += 1

    def _forget(self, number: int, sent: Sent) -> None:
        """The server has closed it."""
        connection = self._open.pop(number)
        sent.unanswered += self._due_s.pop(number, None) is not None
        self._idle = [other for other in self._idle if other is not connection]
        self._poll.unregister(number)
        connection.close()


def by_cause(rejected: Counter[str]) -> Counter[str]:
    """Sentences without their numbers."""
    causes: Counter[str] = Counter()
    for sentence, count in rejected.items():
        causes[_NUMBER.sub("N", sentence)[:110]] += count
    return causes
