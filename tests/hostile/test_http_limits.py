"""Clients that send too much, too slowly, too many at a time, or nothing more: each gets a rejection, none a reset."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slotool.serving import RequestLimits
from slotool.serving.access import Clients
from tests.serving.live_server import LiveServer, ThreeLinear, live_server, served

BODY = struct.pack("<6f", *range(6))
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def hasty() -> Iterator[LiveServer]:
    """Its patience for bodies is three tenths of a second."""
    with live_server([served(ThreeLinear())], RequestLimits(body_s=0.3, body_bytes=100_000)) as live:
        yield live


def request(body: bytes, *headers: str, line: str = "POST /compute HTTP/1.1", length: int | None = None) -> bytes:
    lines = (line, "Host: x", f"Content-Length: {len(body) if length is None else length}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def everything(connection: socket.socket) -> bytes:
    """What the server says until it closes. Raises ``ConnectionResetError`` if it does not close in peace."""
    said = b""
    while chunk := connection.recv(65_536):
        said += chunk
    return said


@pytest.mark.parametrize("body_bytes", [len(BODY), 300_000], ids=["small requests", "large requests"])
def test_connections_beyond_the_limit_are_told_and_never_reset(body_bytes: int) -> None:
    sent = request(BODY + bytes(body_bytes - len(BODY)))
    resets: list[BaseException] = []
    said: list[bytes] = []

    def client(live: LiveServer) -> None:
        try:
            with live.connect() as connection:
                connection.sendall(sent)
                said.append(everything(connection))
        except OSError as error:
            resets.append(error)

    with live_server([served(ThreeLinear())], RequestLimits(connections=4)) as live, ExitStack() as stack:
        kept = [stack.enter_context(live.connect()) for _ in range(4)]
        for connection in kept:
            connection.sendall(request(BODY))
            assert b"200 OK" in connection.recv(10_000)
        clients = [threading.Thread(target=client, args=(live,)) for _ in range(40)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert not resets
        assert len(said) == 40
        for answer in said:
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"4 connections are open already; try again later" in answer
        for connection in kept:
            connection.sendall(request(BODY))
            assert b"200 OK" in connection.recv(10_000)
        assert live.count("slotool_drops_total", model="", cause="connections") == 40


def test_who_sends_far_too_much_gets_the_answer_and_no_reset(hasty: LiveServer) -> None:
    for headers in ((), ("Content-Encoding: gzip",), ("Authorization: Bearer x",)):
        with hasty.connect() as connection:
            connection.sendall(request(bytes(5_000_000), *headers))
            answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close\r\n" in answer


def test_a_head_is_no_longer_for_having_begun_behind_a_body() -> None:
    line = b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: "
    with live_server([served(ThreeLinear())], RequestLimits(head_bytes=2_000)) as live:
        for size, status in ((1_500, b"200"), (2_100, b"431"), (2_600, b"431")):
            with live.connect() as connection:
                connection.sendall(request(BODY) + line + b"x" * 1_200)
                assert b"HTTP/1.1 200 OK" in connection.recv(10_000)
                connection.sendall(b"x" * (size - 1_200) + b"\r\n\r\n")
                assert connection.recv(10_000).startswith(b"HTTP/1.1 " + status)


HALVES = {
    "an inference": request(BODY[:7], length=24),
    "nothing of an inference": request(b"", length=24),
    "a page": request(b"x", line="GET /v2 HTTP/1.1", length=24),
    "compressed": request(b"x", "Content-Encoding: gzip", length=24),
    "chunked": b"POST /compute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n4",
    "large": request(bytes(70_000), line="POST /v2/models/three/infer HTTP/1.1", length=80_000),
}


@pytest.mark.parametrize("half", HALVES)
def test_a_body_that_does_not_come_ends_with_408_and_a_sentence(hasty: LiveServer, half: str) -> None:
    with hasty.connect() as connection:
        connection.sendall(HALVES[half])
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"the body did not arrive within 0.3 s" in answer
    assert b"connection: close\r\n" in answer
    with hasty.connect() as connection:
        connection.sendall(request(BODY))
        assert b"200 OK" in connection.recv(10_000)


def test_who_is_rejected_learns_it_however_little_of_the_body_comes() -> None:
    token = Clients.of_token(TOKEN, "here")
    limits = RequestLimits(body_s=0.3)
    with live_server([served(ThreeLinear())], limits, clients=token) as live, live.connect() as connection:
        connection.sendall(request(BODY[:7], length=24))
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close\r\n" in answer


FLOODS = {
    "extensions of chunks": b"1;" + b"x" * 200_000 + b"\r\na\r\n",
    "trailers": b"1\r\na\r\n0\r\n" + b"X: yyyyyyyyyyyyyyyyyyy\r\n" * 10_000,
    "one trailer": b"1\r\na\r\n0\r\nX: " + b"y" * 200_000,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_chunks_that_are_all_framing_are_read_no_further(flood: str) -> None:
    head = b"POST /compute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with live_server([served(ThreeLinear())]) as live, live.connect() as connection:
        connection.sendall(head)
        time.sleep(0.05)
        for at in range(0, len(FLOODS[flood]), 50_000):
            connection.sendall(FLOODS[flood][at : at + 50_000])
            time.sleep(0.02)
        answer = everything(connection)
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), answer
    assert b"connection: close\r\n" in answer


def test_a_short_rejected_request_keeps_its_connection_and_a_long_one_does_not(hasty: LiveServer) -> None:
    line = "POST /v2/models/none/infer HTTP/1.1"
    with hasty.connect() as connection:
        for _ in range(3):
            connection.sendall(request(BODY, line=line))
            assert b"connection: close" not in connection.recv(10_000)
        connection.sendall(request(bytes(90_000), line=line, length=95_000))
        answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close\r\n" in answer


@pytest.mark.parametrize(
    ("line", "headers", "stays"),
    [
        ("POST /compute HTTP/1.1", (), True),
        ("POST /compute HTTP/1.1", ("Connection: close",), False),
        ("POST /compute HTTP/1.0", (), False),
        ("POST /compute HTTP/1.0", ("Connection: keep-alive",), False),
        ("HEAD /v2 HTTP/1.1", (), True),
        ("GET /v2 HTTP/1.0", (), False),
    ],
)
def test_connections_are_kept_as_the_version_and_the_header_say(
    hasty: LiveServer, line: str, headers: tuple[str, ...], stays: bool
) -> None:
    with hasty.connect() as connection:
        connection.sendall(request(BODY, *headers, line=line))
        if not stays:
            answer = everything(connection)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in answer
            return
        assert b"HTTP/1.1 200 OK" in connection.recv(10_000)
        connection.sendall(request(BODY))
        assert b"HTTP/1.1 200 OK" in connection.recv(10_000)


def test_the_word_to_go_on_is_said_before_the_body_and_not_to_who_is_rejected(hasty: LiveServer) -> None:
    with hasty.connect() as connection:
        connection.sendall(request(b"", "Expect: 100-continue", length=len(BODY)))
        assert connection.recv(10_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert b"HTTP/1.1 200 OK" in connection.recv(10_000)
        connection.sendall(request(b"", "Expect: 100-continue", line="PUT /compute HTTP/1.1", length=len(BODY)))
        answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"connection: close\r\n" in answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")
def test_curl_that_asks_for_http2_is_answered_over_http1(hasty: LiveServer) -> None:
    ask = ["curl", "--silent", "--show-error", "--http2", "--noproxy", "*", "--data-binary", "@-"]
    for _ in range(2):
        ask += [f"{hasty.url}/compute"]
    done = subprocess.run(ask, input=BODY, capture_output=True, timeout=60)
    if done.returncode == 2:
        pytest.skip("this curl does not know --http2")
    assert done.stdout.count(b'"label"') == 2, done.stderr
