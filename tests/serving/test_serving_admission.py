"""Requests that are turned away unread while the event loop is behind, and those that are not."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from slotool.serving import rejections
from slotool.serving.admission import BUSY_INTERVALS, INTERVAL_S, MIN_IDLE_SHARE, MIN_LIMIT, SHARE, Admission
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
HEAD = f"POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"
CHUNKED = "POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
BODY = b'{"inputs": [{"name": "input", "shape": [1, 1, 2, 3], "datatype": "FP32", "data": [0, 0, 0, 0, 0, 0]}]}'
ANSWERED = HEAD.replace(str(X.nbytes), str(len(BODY))).encode() + b"\r\n" + BODY
COMPUTE = f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"


@given(
    idle=st.floats(0.0, 1.0),
    timeout_us=st.floats(1e2, 1e9),
    answers=st.lists(st.booleans(), min_size=1, max_size=300),
)
def test_only_a_loop_that_is_hardly_ever_idle_admits_fewer(idle: float, timeout_us: float, answers: list[bool]) -> None:
    now_s = 0.0
    admission = Admission(lambda: idle * now_s, lambda: now_s)
    for _ in range(BUSY_INTERVALS):
        assert admission.limit == math.inf
        for answered in answers:
            now_s += INTERVAL_S / len(answers) * 1.001
            admission.begin()
            admission.end(timeout_us, answered=answered)
        assert admission.rejection() is None
    if idle >= MIN_IDLE_SHARE + 1e-9:
        assert admission.limit == math.inf
        return
    if idle <= MIN_IDLE_SHARE - 1e-9:
        patience_s = min(timeout_us, 1e6) * 1e-6
        # Patience is a running mean that begins with a second.
        least, most = (SHARE * wait_s * sum(answers) / INTERVAL_S for wait_s in (patience_s, 1.0))
        assert admission.limit <= max(MIN_LIMIT, most) + 1
        assert admission.limit >= max(MIN_LIMIT, int(0.99 * least))
        admission.in_progress = int(admission.limit) - 1
        assert admission.rejection() is None
        admission.begin()
        rejection = admission.rejection()
        assert rejection is not None
        assert rejection.status == 503


# What may happen: for so long the loop is idle for such a share; so many requests are then admitted, if they
# are, and so many end.
TURNS = st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 1.0), st.integers(0, 40), st.integers(0, 40))


@given(schedule=st.lists(TURNS, max_size=30), asked=st.booleans(), timeout_us=st.floats(1e2, 1e9))
def test_after_a_second_of_idleness_everybody_is_admitted_whatever_came_before(
    schedule: list[tuple[float, float, int, int]], asked: bool, timeout_us: float
) -> None:
    now_s = idle_s = 0.0
    admission = Admission(lambda: idle_s, lambda: now_s)
    for length_s, idle, begun, ended in schedule:
        now_s, idle_s = now_s + length_s, idle_s + idle * length_s
        for _ in range(begun):
            if admission.rejection() is None:
                admission.begin()
        for _ in range(min(ended, admission.in_progress)):
            admission.end(timeout_us, answered=True)
    # Those that are left wait for a worker that hangs, and so for nothing the loop could do.
    if asked:
        admission.rejection()
    now_s, idle_s = now_s + 1.0, idle_s + 1.0
    assert admission.rejection() is None


@given(stall_s=st.floats(INTERVAL_S, 2.0), waiting=st.integers(0, 100), pause_s=st.floats(INTERVAL_S, 1.0))
def test_a_stall_rejects_nothing_of_what_came_meanwhile(stall_s: float, waiting: int, pause_s: float) -> None:
    now_s = idle_s = 0.0
    admission = Admission(lambda: idle_s, lambda: now_s)
    for _ in range(5):
        now_s += stall_s
        for _ in range(waiting):
            assert admission.rejection() is None
            admission.begin()
        while admission.in_progress:
            admission.end(1e6, answered=True)
        now_s, idle_s = now_s + pause_s, idle_s + pause_s
        assert admission.rejection() is None


def test_requests_that_came_during_one_long_call_are_answered() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(live.connect()) for _ in range(4 * MIN_LIMIT)]
        for connection in connections:
            assert ask(connection, ANSWERED).startswith(b"HTTP/1.1 200")
        time.sleep(2 * INTERVAL_S)  # the call that follows begins an interval
        called = len(model.calls)
        model.sleep_s = dict.fromkeys(model.sleep_s, 2 * INTERVAL_S)
        connections[0].sendall(ANSWERED)
        until(lambda: len(model.calls) > called)
        for connection in connections[1:]:
            connection.sendall(ANSWERED)
        model.sleep_s = dict.fromkeys(model.sleep_s, 0.0)
        for connection in connections:
            assert ask(connection).startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def full() -> Iterator[LiveServer]:
    """A server that is always overloaded."""
    with live_server([served(ThreeLinear())]) as live:
        live.admission.rejection = lambda: rejections.overloaded(8, 1e4, 1e5)
        yield live


def ask(connection: socket.socket, *parts: bytes) -> bytes:
    for part in parts:
        connection.sendall(part)
    answer = connection.recv(10_000)
    while b"}" not in answer:
        answer += connection.recv(10_000)
    return answer


@pytest.mark.parametrize("head", [HEAD, COMPUTE])
def test_a_whole_request_is_rejected_unread_and_its_connection_kept(full: LiveServer, head: str) -> None:
    model = "three" if head is HEAD else ""
    calls = len(full.models["three"].calls)
    before = full.count("slotool_drops_total", model=model, cause="overloaded")
    with full.connect() as connection:
        for _ in range(3):
            answer = ask(connection, head.encode() + b"\r\n" + X.tobytes())
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"retry-after: 1" in answer
            assert b"requests are in progress" in answer
        assert b"200 OK" in ask(connection, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert full.count("slotool_drops_total", model=model, cause="overloaded") - before == 3
    assert len(full.models["three"].calls) == calls


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD.encode() + b"\r\n", X.tobytes()),
        (CHUNKED.encode() + b"\r\n18\r\n", X.tobytes(), b"\r\n0\r\n\r\n"),
        (HEAD.encode() + b"Connection: close\r\n\r\n" + X.tobytes(),),
        (2 * (HEAD.encode() + b"\r\n" + X.tobytes()),),
    ],
    ids=["in two parts", "in chunks", "closing", "two at once"],
)
def test_requests_that_cannot_be_told_from_one_look_are_rejected_all_the_same(
    full: LiveServer, parts: tuple[bytes, ...]
) -> None:
    with full.connect() as connection:
        answer = ask(connection, *parts)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"requests are in progress" in answer


def test_grpc_is_rejected_too_and_everything_else_is_answered(full: LiveServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(full.grpc_address)
    tensor = tritonclient.grpc.InferInput("input", [1, 1, 2, 3], "FP32")
    tensor.set_data_from_numpy(X)
    with pytest.raises(InferenceServerException, match="requests are in progress"):
        client.infer("three", [tensor])
    assert client.is_server_ready()
    for path in ("/metrics", "/v2", "/v2/health/ready", "/v2/models/three"):
        assert HTTP.get(full.url + path).status_code == 200


def statuses(live: LiveServer, expected: int, *parts: bytes) -> list[bytes]:
    """Of the first so many answers on a connection, or of fewer where it is closed."""
    with live.connect() as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.001)
        said = b""
        while len(found := re.findall(rb"HTTP/1.1 (\d+)", said)) < expected and (chunk := connection.recv(65_536)):
            said += chunk
    return found


INFER = HEAD.encode() + b"\r\n" + X.tobytes()
PAGE = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
LONGER = INFER.replace(b": 24", b": %d" % (24 + len(PAGE))) + PAGE
UPGRADE = INFER.replace(b"Host: x", b"Host: x\r\nUpgrade: h2c\r\nConnection: Upgrade")
PACKETS = {
    "whole ones": ([INFER + COMPUTE.encode() + b"\r\n" + X.tobytes() + INFER], [b"503"] * 3),
    "one and a page": ([INFER + PAGE], [b"503", b"200"]),
    "a page and one": ([PAGE + INFER, INFER], [b"200", b"503", b"503"]),
    "one and a half": ([INFER + INFER[:40], INFER[40:] + PAGE], [b"503", b"503", b"200"]),
    "a body that looks like a request": ([LONGER, PAGE], [b"503", b"200"]),
    "chunks": ([CHUNKED.encode() + b"\r\n18\r\n" + X.tobytes() + b"\r\n0\r\n\r\n" + INFER], [b"503", b"503"]),
    "one that closes": ([INFER.replace(b"Host: x", b"Host: x\r\nConnection: close") + INFER], [b"503"]),
    "an older client": ([INFER.replace(b"HTTP/1.1", b"HTTP/1.0") + PAGE], [b"503"]),
    "an upgrade": ([UPGRADE + PAGE], [b"503", b"200"]),
    "two lengths": ([INFER.replace(b"Host: x", b"Host: x\r\nContent-Length: 4") + PAGE], [b"400"]),
    "no request": ([INFER + b"nonsense\r\n\r\n", PAGE], [b"503", b"400"]),
    "another page": ([INFER.replace(b"/infer", b"/infer/more") + PAGE], [b"404", b"200"]),
}  # fmt: skip


@pytest.mark.parametrize("packets", PACKETS)
def test_rejections_end_where_requests_do(full: LiveServer, packets: str) -> None:
    sent, expected = PACKETS[packets]
    assert statuses(full, len(expected), *sent) == expected
    whole = b"".join(sent)
    for at in range(1, len(whole), 7):
        assert statuses(full, len(expected), whole[:at], whole[at:]) == expected, at
