"""Requests that arrive in one turn of the event loop: they share calls, and each gets the answer to its own values."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from slotool.scheduling import Policy, by_demand
from slotool.serving.front.frontend import LoopSelector
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served, space, until

LARGE = POINTS[-1]


def policy_after(took_us: float) -> Policy:
    """A policy that has seen a call of one example take so long."""
    policy = by_demand(space())
    policy.observe(LARGE, 1, took_us)
    return policy


TENSOR = {"name": "input", "datatype": "FP32", "shape": [1, 1, 2, 3]}


def request(x: np.ndarray, **more: Any) -> bytes:
    document = {"inputs": [{**TENSOR, "parameters": {"binary_data_size": x.nbytes}}], **more}
    head = json.dumps(document).encode()
    lines = f"inference-header-content-length: {len(head)}\r\ncontent-length: {len(head) + x.nbytes}\r\n"
    return f"POST /v2/models/three/infer HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode() + head + x.tobytes()


def answers_of(connection: socket.socket, count: int) -> list[tuple[int, dict[str, Any]]]:
    found, said = [], b""
    while len(found) < count:
        head, end, body = said.partition(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if end and len(body) >= (length := int(lines[b"content-length"])):
            found.append((int(head.split()[1]), json.loads(body[:length])))
            said = body[length:]
        else:
            more = connection.recv(65_536)
            assert more, "the connection was closed"
            said += more
    return found


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    return answers_of(connection, 1)[0]


def logits_of(answer: dict[str, Any]) -> np.ndarray:
    return np.array(next(output["data"] for output in answer["outputs"] if output["name"] == "logits"))


@pytest.fixture
def slow_select(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the event loop that reads anything reads all that comes within 30 ms."""
    plain = LoopSelector.select

    def select(self: LoopSelector, timeout: float | None = None) -> Any:
        if not plain(self, timeout):
            return []
        time.sleep(0.03)
        return plain(self, 0)

    monkeypatch.setattr(LoopSelector, "select", select)


@pytest.fixture
def live(slow_select: None) -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear(), policy_after(10.0))]) as live:
        yield live


def connected(live: LiveServer, stack: ExitStack, count: int) -> list[socket.socket]:
    """Connections, each of which has been answered."""
    connections = [stack.enter_context(live.connect()) for _ in range(count)]
    for connection in connections:
        connection.sendall(request(np.zeros((1, 1, 2, 3), dtype=np.float32)))
        assert answer_of(connection)[0] == 200
    return connections


def test_each_client_gets_the_answer_to_its_own_values(live: LiveServer) -> None:
    model, random = live.models["three"], np.random.default_rng(1)
    with ExitStack() as stack:
        connections = connected(live, stack, 8)
        numbers, shared = set(), []
        for _ in range(4):
            xs = random.normal(size=(8, 1, 1, 2, 3)).astype(np.float32)
            for connection, x in zip(connections, xs, strict=True):
                connection.sendall(request(x))
            for connection, x in zip(connections, xs, strict=True):
                status, answer = answer_of(connection)
                assert status == 200
                np.testing.assert_allclose(logits_of(answer), model.forward(x, LARGE).ravel(), rtol=1e-5, atol=1e-6)
                numbers.add(answer["parameters"]["request"])
                shared.append(answer["parameters"].get("batch", 1))
        assert len(numbers) == 32
        assert max(shared) > 1
        until(lambda: live.count("slotool_requests_total", model="three", outcome="ok") == 8 + 32)
        last = {"request": answer["parameters"]["request"], "labels": [int(logits_of(answer).argmax())]}
        assert HTTP.post(f"{live.url}/v2/models/three/feedback", json=last).status_code == 200
    assert live.front.in_progress == 0


def test_unusual_requests_among_others_get_what_they_get_alone(live: LiveServer) -> None:
    """Values that are no numbers, a deadline, a client that leaves, and another head on the same connection."""
    x = np.ones((1, 1, 2, 3), dtype=np.float32)
    with ExitStack() as stack:
        *plain, broken, urgent, other = connected(live, stack, 8)
        for _ in range(3):
            leaving = connected(live, stack, 1)[0]
            for connection in plain:
                connection.sendall(request(x))
            leaving.sendall(request(x))
            leaving.close()
            broken.sendall(request(np.full_like(x, np.nan)))
            urgent.sendall(request(x, parameters={"timeout": 5_000_000}))
            other.sendall(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            assert [answer_of(connection)[0] for connection in plain] == 5 * [200]
            status, answer = answer_of(broken)
            assert status == 400
            assert "NaN" in answer["error"]
            assert "slack_us" in answer_of(urgent)[1]["parameters"]
            assert answer_of(other) == (200, {"ready": True})
    until(lambda: live.front.in_progress == 0)
    assert live.router.waiting() == 0


def test_no_request_waits_longer_than_the_default_deadline() -> None:
    model, x = ThreeLinear(), np.ones((1, 1, 2, 3), dtype=np.float32)
    with live_server([served(model, policy_after(2_000.0))], default_deadline_us=1e6) as live, ExitStack() as stack:
        first, *others = connected(live, stack, 4)
        called = len(model.calls)
        model.sleep_s[LARGE] = 1.4  # a call after which no time is left
        first.sendall(request(x))
        until(lambda: len(model.calls) > called)
        for connection in others:
            connection.sendall(request(x))
        assert answer_of(first)[0] == 200
        assert [answer_of(connection)[0] for connection in others] == 3 * [504]
        until(lambda: live.front.in_progress == 0)


def test_a_second_request_of_a_connection_is_answered_after_the_first(
    live: LiveServer,
) -> None:
    x, weights = np.ones((1, 1, 2, 3), dtype=np.float32), live.models["three"].weights[LARGE]
    with ExitStack() as stack:
        connections = connected(live, stack, 4)
        for connection in connections:
            connection.sendall(request(x))
        time.sleep(0.035)  # they have been read by then, or come with the next
        for connection in connections:
            connection.sendall(request(-x))
        for connection in connections:
            first, second = (logits_of(answer) for _, answer in answers_of(connection, 2))
            np.testing.assert_allclose(first, weights.sum(axis=0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(second, -first, rtol=1e-5, atol=1e-6)


def test_requests_with_a_deadline_share_calls_too(live: LiveServer) -> None:
    with ExitStack() as stack:
        connections = connected(live, stack, 8)
        xs = np.random.default_rng(3).normal(size=(8, 1, 1, 2, 3)).astype(np.float32)
        for _ in range(50):  # on a crowded machine they may come one by one
            for connection, x in zip(connections, xs, strict=True):
                connection.sendall(request(x, parameters={"timeout": 60_000_000}))
            shared = []
            for connection, x in zip(connections, xs, strict=True):
                status, answer = answer_of(connection)
                assert status == 200
                np.testing.assert_allclose(
                    logits_of(answer), live.models["three"].forward(x, LARGE).ravel(), rtol=1e-5, atol=1e-6
                )
                assert 0 < answer["parameters"]["slack_us"] <= 60_000_000
                shared.append(answer["parameters"].get("batch", 1))
            if max(shared) > 1:
                break
        assert max(shared) > 1
    until(lambda: live.front.in_progress == 0)
