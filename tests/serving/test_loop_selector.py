"""Requests that are turned away unread while the event loop is behind, and those that are not."""

from __future__ import annotations

import contextlib
import math
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
from hypothesis import given
from hypothesis import strategies as st

from slotool.serving import rejections
from slotool.serving.admission import (
    BUSY_INTERVALS,
    INTERVAL_S,
    MIN_IDLE_SHARE,
    MIN_LIMIT,
    SHARE,
    Admission,
    IdleTrackingSelector,
)
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
HEAD = f"POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"
BODY = b'{"inputs": [{"name": "input", "shape": [1, 1, 2, 3], "datatype": "FP32", "data": [0, 0, 0, 0, 0, 0]}]}'
ANSWERED = HEAD.replace(str(X.nbytes), str(len(BODY))).encode() + b"\r\n" + BODY
COMPUTE = f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"


@given(
    idle=st.floats(0.0, 1.0),
    timeout_us=st.floats(1e2, 1e9),
    answers=st.lists(st.booleans(), min_size=1, max_size=300),
    waiting=st.integers(0, 1_000),
)
def test_only_deadlines_that_cannot_be_met_are_rejected_and_only_by_a_loop_that_is_hardly_ever_idle(
    idle: float, timeout_us: float, answers: list[bool], waiting: int
) -> None:
    now_s = 0.0
    admission = Admission(lambda: idle * now_s, lambda: now_s)
    for _ in range(BUSY_INTERVALS):
        assert admission.rejection(timeout_us) is None
        for answered in answers:
            now_s += INTERVAL_S / len(answers) * 1.001
            admission.begin()
            admission.end(answered=answered)
        admission.rejection(timeout_us)
    for _ in range(waiting):
        admission.begin()
    assert admission.rejection(math.inf) is None
    rejection = admission.rejection(timeout_us)
    wait_us = waiting * 1e6 * INTERVAL_S / max(1, sum(answers))
    if idle >= MIN_IDLE_SHARE + 1e-9 or waiting < MIN_LIMIT or wait_us < 0.99 * SHARE * timeout_us:
        assert rejection is None
    elif idle <= MIN_IDLE_SHARE - 1e-9 and wait_us > 1.01 * SHARE * timeout_us:
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
            if admission.rejection(timeout_us) is None:
                admission.begin()
        for _ in range(min(ended, admission.in_progress)):
            admission.end(answered=True)
    # Those that are left wait for a worker that hangs, and so for nothing the loop could do.
    if asked:
        admission.rejection(timeout_us)
    now_s, idle_s = now_s + 1.0, idle_s + 1.0
    assert admission.rejection(timeout_us) is None


@given(stall_s=st.floats(INTERVAL_S, 2.0), waiting=st.integers(0, 100), pause_s=st.floats(INTERVAL_S, 1.0))
def test_a_stall_rejects_nothing_of_what_came_meanwhile(stall_s: float, waiting: int, pause_s: float) -> None:
    now_s = idle_s = 0.0
    admission = Admission(lambda: idle_s, lambda: now_s)
    for _ in range(5):
        now_s += stall_s
        for _ in range(waiting):
            assert admission.rejection(1e3) is None
            admission.begin()
        while admission.in_progress:
            admission.end(answered=True)
        now_s, idle_s = now_s + pause_s, idle_s + pause_s
        assert admission.rejection(1e3) is None


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


def test_a_request_with_time_is_answered_while_others_compute() -> None:
    """A closed loop of 16 clients and calls of 50 ms in the event loop, which is never idle: nobody is refused."""
    model = ThreeLinear()
    sent = request(timeout_us=60_000_000)
    with live_server([served(model)]) as live, ThreadPoolExecutor(16) as pool:
        model.sleep_s = dict.fromkeys(model.sleep_s, 0.05)

        def client(_: int) -> list[bytes]:
            with live.connect() as connection:
                return [ask(connection, sent)[:12] for _ in range(2)]

        assert {status for said in pool.map(client, range(16)) for status in said} == {b"HTTP/1.1 200"}


@pytest.fixture(scope="module")
def full() -> Iterator[LiveServer]:
    """A server that is always overloaded, where no deadline of up to a second can be met."""
    with live_server([served(ThreeLinear())]) as live:
        overloaded = rejections.overloaded(8, 1.25e5, 1e5)
        live.admission.rejection = lambda timeout_us: overloaded if timeout_us <= 1e6 else None
        yield live


def request(timeout_us: float, path: str = "/v2/models/three/infer") -> bytes:
    """A whole one, that has so long."""
    if path == "/compute":
        return COMPUTE.encode() + f"Deadline-Ms: {timeout_us / 1e3:g}\r\n\r\n".encode() + X.tobytes()
    body = BODY[:-1] + b', "parameters": {"timeout": %d}}' % timeout_us
    return HEAD.replace(str(X.nbytes), str(len(body))).encode() + b"\r\n" + body


def ask(connection: socket.socket, *parts: bytes) -> bytes:
    for part in parts:
        connection.sendall(part)
    answer = connection.recv(10_000)
    while b"}" not in answer:
        answer += connection.recv(10_000)
    return answer


@pytest.mark.parametrize("path", ["/v2/models/three/infer", "/compute"])
def test_a_request_is_rejected_before_its_turn_and_its_connection_kept(full: LiveServer, path: str) -> None:
    calls = len(full.models["three"].calls)
    before = full.count("slotool_drops_total", model="three", cause="overloaded")
    with full.connect() as connection:
        for _ in range(3):
            answer = ask(connection, request(1e5, path))
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"retry-after: 1" in answer
            assert b"requests are in progress" in answer
        assert b"200 OK" in ask(connection, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert full.count("slotool_drops_total", model="three", cause="overloaded") - before == 3
    assert len(full.models["three"].calls) == calls


@pytest.mark.parametrize("path", ["/v2/models/three/infer", "/compute"])
def test_requests_with_time_or_without_a_deadline_are_answered(full: LiveServer, path: str) -> None:
    without = ANSWERED if path != "/compute" else COMPUTE.encode() + b"\r\n" + X.tobytes()
    with full.connect() as connection:
        for sent in (request(1e7, path), request(0, path), without):
            assert ask(connection, sent).startswith(b"HTTP/1.1 200")


def test_grpc_and_everything_else_is_answered(full: LiveServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(full.grpc_address)
    tensor = tritonclient.grpc.InferInput("input", [1, 1, 2, 3], "FP32")
    tensor.set_data_from_numpy(X)
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


SHORT, LONG = request(1e5, "/compute"), request(1e7, "/compute")
PAGE = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
LONGER = SHORT.replace(b": 24", b": %d" % (24 + len(PAGE))) + PAGE
UPGRADE = SHORT.replace(b"Host: x", b"Host: x\r\nUpgrade: h2c\r\nConnection: Upgrade")
# Each by itself, whatever comes with it.
PACKETS = {
    "whole ones": ([SHORT + SHORT + SHORT], [b"503"] * 3),
    "one with time among them": ([SHORT + LONG], [b"503", b"200"]),
    "one without a deadline among them": ([SHORT + ANSWERED], [b"503", b"200"]),
    "one and a page": ([SHORT + PAGE], [b"503", b"200"]),
    "a page and one": ([PAGE, SHORT], [b"200", b"503"]),
    "one and a half": ([SHORT + SHORT[:40], SHORT[40:] + PAGE], [b"503", b"503", b"200"]),
    "a body that looks like a request": ([LONGER, PAGE], [b"400", b"200"]),
    "one that closes": ([SHORT.replace(b"Host: x", b"Host: x\r\nConnection: close") + SHORT], [b"503"]),
    "an older client": ([SHORT.replace(b"HTTP/1.1", b"HTTP/1.0") + PAGE], [b"503"]),
    "an upgrade": ([UPGRADE + PAGE], [b"503", b"200"]),
    "two lengths": ([SHORT.replace(b"Host: x", b"Host: x\r\nContent-Length: 4") + PAGE], [b"400"]),
    "no request": ([SHORT + b"nonsense\r\n\r\n", PAGE], [b"503", b"400"]),
    "another page": ([SHORT.replace(b"/compute", b"/compute/more") + PAGE], [b"404", b"200"]),
}  # fmt: skip


@pytest.mark.parametrize("packets", PACKETS)
def test_rejections_end_where_requests_do(full: LiveServer, packets: str) -> None:
    sent, expected = PACKETS[packets]
    assert statuses(full, len(expected), *sent) == expected
    whole = b"".join(sent)
    for at in range(1, len(whole), 7):
        found = statuses(full, len(expected), whole[:at], whole[at:])
        assert found == expected, at


def test_what_came_while_the_loop_computed_counts_from_its_last_look() -> None:
    selector = IdleTrackingSelector()
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(selector):
        selector.register(ours, selectors.EVENT_READ)
        for timeout_s in (0, 60.0):  # other callbacks wait, and none
            assert not selector.select(0)
            looked_us = 1e6 * time.monotonic()
            time.sleep(0.01)  # a call
            theirs.send(b"request")
            sent_us = 1e6 * time.monotonic()
            assert selector.select(timeout_s)
            assert selector.arrived_us <= looked_us < sent_us
            ours.recv(100)


def test_what_wakes_a_loop_that_sleeps_counts_from_then() -> None:
    selector = IdleTrackingSelector()
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(selector):
        selector.register(ours, selectors.EVENT_READ)
        began_us = 1e6 * time.monotonic()
        waker = threading.Timer(0.05, theirs.send, (b"request",))
        waker.start()
        assert selector.select(60.0)
        assert began_us < selector.arrived_us <= 1e6 * time.monotonic()
        waker.join()
