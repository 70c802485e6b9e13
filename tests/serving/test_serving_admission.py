"""Requests that are turned away unread while the event loop is behind, and those that are not."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from hypothesis import given
from hypothesis import strategies as st
from live_server import POINTS, LiveServer, ThreeLinear, live_server, served
from tritonclient.utils import InferenceServerException

from slotool.serving import Limits
from slotool.serving.admission import LEAST, LEAST_REST, LOOK_EVERY_S, SHARE, Admission

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
HEAD = f"POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"
CHUNKED = "POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
COMPUTE = f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"


@given(
    rest=st.floats(0.0, 1.0),
    timeout_us=st.floats(1e2, 1e9),
    answers=st.lists(st.booleans(), min_size=1, max_size=300),
)
def test_only_a_loop_that_hardly_rests_lets_fewer_in(rest: float, timeout_us: float, answers: list[bool]) -> None:
    now_s = 0.0
    admission = Admission(lambda: rest * now_s, lambda: now_s)
    in_hand = 0
    admission.watch(lambda: in_hand)
    for answered in answers:
        now_s += LOOK_EVERY_S / len(answers) * 1.001
        admission.finished(timeout_us, answered=answered)
    if rest >= LEAST_REST + 1e-9:
        assert admission.limit == math.inf
        assert admission.refusal() is None
        return
    if rest <= LEAST_REST - 1e-9:
        patience_s = min(timeout_us, 1e6) * 1e-6
        # Patience is a running mean that begins with a second.
        least, most = (SHARE * wait_s * sum(answers) / LOOK_EVERY_S for wait_s in (patience_s, 1.0))
        assert admission.limit <= max(LEAST, most) + 1
        assert admission.limit >= max(LEAST, int(0.99 * least))
        in_hand = int(admission.limit) - 1
        assert admission.refusal() is None
        in_hand += 1
        refusal = admission.refusal()
        assert refusal is not None
        assert refusal.status == 503


@pytest.fixture(scope="module")
def full() -> Iterator[LiveServer]:
    """A server that may have nothing in hand, so that its loop is always behind."""
    with live_server([served(ThreeLinear())]) as live:
        live.admission.limit = 0
        yield live


def connected(live: LiveServer) -> socket.socket:
    host, port = live.address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ask(connection: socket.socket, *parts: bytes) -> bytes:
    for part in parts:
        connection.sendall(part)
    answer = connection.recv(10_000)
    while b"}" not in answer:
        answer += connection.recv(10_000)
    return answer


@pytest.mark.parametrize("head", [HEAD, COMPUTE])
def test_a_whole_request_is_refused_unread_and_its_connection_kept(full: LiveServer, head: str) -> None:
    model = "three" if head is HEAD else ""
    calls = len(full.models["three"].calls)
    before = full.count("slotool_drops_total", model=model, cause="overloaded")
    with connected(full) as connection:
        for _ in range(3):
            answer = ask(connection, head.encode() + b"\r\n" + X.tobytes())
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"retry-after: 1" in answer
            assert b"requests are in hand" in answer
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
def test_requests_that_cannot_be_told_from_one_look_are_refused_all_the_same(
    full: LiveServer, parts: tuple[bytes, ...]
) -> None:
    with connected(full) as connection:
        answer = ask(connection, *parts)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"requests are in hand" in answer


def test_grpc_is_refused_too_and_everything_else_is_answered(full: LiveServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(full.grpc_address)
    tensor = tritonclient.grpc.InferInput("input", [1, 1, 2, 3], "FP32")
    tensor.set_data_from_numpy(X)
    with pytest.raises(InferenceServerException, match="requests are in hand"):
        client.infer("three", [tensor])
    assert client.is_server_ready()
    for path in ("/metrics", "/v2", "/v2/health/ready", "/v2/models/three"):
        assert httpx.get(full.url + path).status_code == 200


def test_connections_beyond_the_limit_are_told_so_and_closed() -> None:
    with live_server([served(ThreeLinear())], Limits(connections=2)) as live:
        with connected(live) as first, connected(live) as second:
            for connection in (first, second):
                assert b"200 OK" in ask(connection, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
            with connected(live) as third:
                assert b"2 connections are open already" in ask(third)
                assert third.recv(1) == b""
            assert live.count("slotool_drops_total", model="", cause="connections") == 1
        assert httpx.get(f"{live.url}/v2").status_code == 200


def test_a_flooded_loop_turns_the_next_wave_away() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live:
        model.sleep_s[POINTS[-1]] = 0.01

        async def flood() -> list[str]:
            async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:

                async def post() -> str:
                    return (await client.post(f"{live.url}/compute", content=X.tobytes())).text

                first = [asyncio.ensure_future(post()) for _ in range(150)]
                await asyncio.sleep(0.6)
                second = await asyncio.gather(*(post() for _ in range(150)))
                return [*await asyncio.gather(*first), *second]

        told = asyncio.run(flood())
    assert any('"label"' in text for text in told)
    assert any("one is answered every" in text for text in told)
