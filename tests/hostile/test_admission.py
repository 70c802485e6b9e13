"""Clients that overload a server, or leave it with half of a request, and what the next one finds."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress

import numpy as np

from slotool.serving import RequestLimits
from tests.serving.live_server import POINTS, LiveServer, ThreeLinear, live_server, served

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
HEAD = f"POST /compute HTTP/1.1\r\nHost: x\r\nDeadline-Ms: 40\r\nContent-Length: {X.nbytes}\r\n\r\n".encode()
OVERLOADED_S = 1.2
# A second is promised; the machine may have others to serve. It was 27 s.
WITHIN_S = 6.0


def ask(connection: socket.socket, request: bytes = HEAD + X.tobytes()) -> bytes:
    connection.sendall(request)
    said = b""
    while b"}" not in said:
        chunk = connection.recv(65_536)
        if not chunk:
            break
        said += chunk
    return said


def overload(live: LiveServer, until_s: float) -> list[bytes]:
    """Thirty clients that ask again as soon as they are answered or rejected. The answers."""
    said: list[bytes] = []

    def client() -> None:
        with suppress(OSError), live.connect() as connection:
            while time.monotonic() < until_s:
                said.append(ask(connection))

    threads = [threading.Thread(target=client) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_an_idle_server_answers_whatever_overloaded_it_and_whoever_left_half_a_request() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, ExitStack() as stack:
        model.sleep_s = dict.fromkeys(POINTS, 2e-3)
        for sent in 10 * [
            HEAD,
            HEAD + X.tobytes()[:5],
            HEAD.replace(b"Content-Length: 24", b"Transfer-Encoding: chunked"),
        ]:
            stack.enter_context(live.connect()).sendall(sent)
        said = overload(live, time.monotonic() + OVERLOADED_S)
        assert any(b'"label"' in answer for answer in said)
        over_s = time.monotonic()
        with live.connect() as connection:
            while b"200 OK" not in ask(connection):
                time.sleep(0.02)
                assert time.monotonic() - over_s < WITHIN_S


def test_half_sent_bodies_are_bounded_in_bytes_together_and_the_largest_goes_first() -> None:
    size = 100_000

    def announced(length: int) -> bytes:
        return f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()

    with live_server([served(ThreeLinear())], RequestLimits(unfinished_bytes=10 * size)) as live, ExitStack() as stack:
        small = [stack.enter_context(live.connect()) for _ in range(8)]
        large = stack.enter_context(live.connect())
        for connection in small:
            connection.sendall(announced(size + 1) + bytes(size))
        with suppress(OSError):
            large.sendall(announced(10 * size) + bytes(9 * size))
        answer = large.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"unfinished bodies hold more than 1000000 bytes together" in answer
        for connection in small:
            assert b"400 Bad Request" in ask(connection, b"x"), "it was read to its end"
        assert b"200 OK" in ask(stack.enter_context(live.connect()))
        assert live.count("slotool_drops_total", model="three", cause="unfinished") == 1
