"""Drawn streams of requests over real sockets, many of which arrive in one turn of the event loop: answered and counted
as by uvicorn and the application's routes."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from slotool.scheduling import Policy, by_demand
from slotool.serving.front.frontend import LoopSelector
from slotool.serving.routing.model_queue import LOG
from tests.serving.drawn_requests import FAILS, LAST, UNDEFINED, Sent, infer, stream, values
from tests.serving.live_server import POINTS, LiveServer, ThreeLinear, live_server, served, space, tier_rules, until

LARGE = POINTS[-1]


class WholeNumbers(ThreeLinear):
    """Of whole numbers, whose products are the same in a batch of any size."""

    def __init__(self, name: str = "three"):
        super().__init__(name)
        drawn = np.random.default_rng(0)
        self.weights = {point: drawn.integers(-3, 4, size=(6, 4)).astype(np.float32) for point in POINTS}

    def forward(self, x: np.ndarray, point: Any) -> np.ndarray:
        first = x.reshape(len(x), -1)[:, 0]
        if (first == FAILS).any():
            raise RuntimeError("it fails")
        logits = super().forward(x, point)
        logits[first == UNDEFINED] = np.nan
        return logits


def policy(took_us: float = 10.0) -> Policy:
    """It has seen a call of one example take so long, so that requests may share one, and learns nothing more: on a
    busy machine calls take longer."""
    known = by_demand(space())
    known.observe(LARGE, 1, took_us)
    known.observe = lambda point, examples, took_us: None
    return known


def model(**options: Any) -> Any:
    return served(WholeNumbers(), policy(**options), tier_rules())


class Gate:
    """While it is shut, servers read nothing; then they find all that was sent in one turn of their event loops, on so
    many sockets where that is said: a busy system may deliver some of it late."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets = 0

    def until(self, sockets: int) -> Gate:
        self._sockets = sockets
        return self

    def __enter__(self) -> None:
        self._is_open.clear()

    def __exit__(self, *raised: object) -> None:
        self._is_open.set()

    def select(self, selector: LoopSelector, timeout: float | None, plain: Callable[..., Any]) -> Any:
        found = plain(selector, timeout)
        if found and not self._is_open.is_set():
            self._is_open.wait(60)
            sockets, self._sockets = self._sockets, 0
            until(lambda: len(plain(selector, 0)) >= sockets)
            return plain(selector, 0)
        return found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, plain = Gate(), LoopSelector.select
    monkeypatch.setattr(LoopSelector, "select", lambda self, timeout=None: gate.select(self, timeout, plain))
    return gate


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LiveServer]]:
    with live_server([model()]) as fast, live_server([model()], http="uvicorn") as plain:
        yield [fast, plain]


SHOWN = ("content-type", "retry-after", "traceparent", "connection")
# Of an answer, what differs from one to the next.
TIMES = ("queue_us", "compute_us", "latency_us", "request", "slack_us", "batch")


def without_times(document: Any) -> Any:
    if isinstance(document, list):
        return [without_times(value) for value in document]
    if isinstance(document, str):  # some sentences say for how long a request has waited
        return re.sub(r"[\d.]+ [µm]?s\b", "… s", document)
    if not isinstance(document, dict):
        return document
    return {name: without_times(value) for name, value in document.items() if name not in TIMES}


class Connection:
    def __init__(self, live: LiveServer):
        self.socket = live.connect()
        self._received = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str | None], Any, bytes] | None:
        """Status, headers, document and what follows it; None where the server has closed the connection."""
        while True:
            head, end, body = self._received.partition(b"\r\n\r\n")
            if end:
                first, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines)
                length = int(headers["content-length"])
                if len(body) >= length:
                    self._received = body[length:]
                    json_length = int(headers.get("inference-header-content-length", length))
                    named = {name: headers.get(name) for name in SHOWN}
                    return int(first.split()[1]), named, json.loads(body[:json_length]), body[json_length:length]
            more = self.socket.recv(65_536)
            if not more:
                assert not self._received, "it was closed within an answer"
                return None
            self._received += more


def connected(live: LiveServer, count: int, **document: Any) -> list[Connection]:
    """Connections, each of which has been answered."""
    connections = [Connection(live) for _ in range(count)]
    for connection in connections:
        connection.send(infer(values(random.Random(0)), **document))
        assert connection.answer()[0] == 200
    return connections


def played(live: LiveServer, rounds: list[list[Sent]], gate: Gate) -> list[Any]:
    """What each connection was answered in each round, and whether the server has closed it then."""
    connections: dict[int, Connection] = {}
    said = []
    for sent in rounds:
        with gate:
            for each in sent:
                if each.connection not in connections:
                    connections[each.connection] = Connection(live)
                connections[each.connection].send(each.data[: each.at_first])
        time.sleep(0.002 if any(each.at_first < len(each.data) for each in sent) else 0)
        for each in sent:
            connections[each.connection].send(each.data[each.at_first :])
        for each in sent:
            connection = connections[each.connection]
            answers = [connection.answer() for _ in each.kinds]
            is_closed = each.kinds[-1] in LAST and connection.answer() is None
            said.append((each.connection, each.kinds, without_times([*map(list, filter(None, answers))]), is_closed))
            if is_closed:
                connections.pop(each.connection).socket.close()
    for connection in connections.values():
        connection.socket.close()
    return said


# Requests that shared a call and failed are tried again: how many share one is not the same.
BY_CALL = (
    "slotool_retries_total", "slotool_batch_examples_count", "slotool_batch_examples_bucket", "slotool_calls_total",
    "slotool_cpu_throttled_periods_total",
)  # fmt: skip


def counted(live: LiveServer) -> dict[Any, float]:
    """All counts of requests and examples."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for metric in live.router.metrics.registry.collect()
        for sample in metric.samples
        if metric.type in ("counter", "histogram") and sample.name.startswith("slotool_") and sample.name not in BY_CALL
        and not sample.name.endswith(("_created", "_seconds_bucket", "_seconds_sum", "_seconds_total"))
    }  # fmt: skip


def test_drawn_streams_are_answered_and_counted_the_same(servers: list[LiveServer], gate: Gate) -> None:
    for seed in range(6):
        rounds = stream(random.Random(seed))
        fast, plain = (played(live, rounds, gate) for live in servers)
        for ours, theirs in zip(fast, plain, strict=True):
            assert (seed, *ours) == (seed, *theirs)
        # The last are counted once they are on their way.
        until(lambda: counted(servers[0]) == counted(servers[1]))
        assert [(live.front.in_progress, live.router.waiting()) for live in servers] == 2 * [(0, 0)]
    made, examples = (servers[0].count(f"slotool_batch_examples_{kind}", model="three") for kind in ("count", "sum"))
    assert examples > made, "some have shared a call"


@pytest.mark.parametrize("leaves", ["closes", "resets", "shuts down"])
def test_half_of_those_that_came_together_leave(servers: list[LiveServer], gate: Gate, leaves: str) -> None:
    live, drawn = servers[0], random.Random(1)

    def ended() -> float:
        return sum(value for (name, *_), value in counted(live).items() if name == "slotool_requests_total")

    before = ended()
    staying, leaving = connected(live, 10), connected(live, 10)
    given = [values(drawn) for _ in staying]
    with gate.until(20):
        for here, gone, x in zip(staying, leaving, given, strict=True):
            gone.send(infer(x))
            here.send(infer(x))
            if leaves == "resets":
                gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if leaves == "shuts down":
                gone.socket.shutdown(socket.SHUT_WR)
            else:
                gone.socket.close()
    for connection, x in zip(staying, given, strict=True):
        with connection:
            assert logits_of(connection.answer()) == [*(x @ live.models["three"].weights[LARGE])]
    for connection in leaving:
        connection.socket.close()
    until(lambda: ended() == before + 20 + 20)
    until(lambda: not (live.front.in_progress or live.router.waiting()))


def logits_of(answer: Any) -> list[float]:
    status, _, document, _ = answer
    assert status == 200, document
    return document["outputs"][0]["data"]


def test_a_server_that_ends_answers_what_it_has_read(gate: Gate) -> None:
    with live_server([model()]) as live:
        connections, drawn = connected(live, 10), random.Random(2)
        given = [values(drawn) for _ in connections]
        with gate.until(10):
            for connection, x in zip(connections, given, strict=True):
                connection.send(infer(x))
            live.server.should_exit = True
        for connection, x in zip(connections, given, strict=True):
            with connection:
                assert logits_of(connection.answer()) == [*(x @ live.models["three"].weights[LARGE])]
                assert connection.answer() is None


@pytest.mark.parametrize("ids", [False, True], ids=["alike", "each with an id"])
def test_no_more_than_a_millisecond_of_calls_is_made_before_others_are_read(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, ids: bool
) -> None:
    """Of calls that are too long to be shared, however many wait for one: an urgent request may come."""
    entry = model(took_us=900.0)
    own = entry.model
    own.sleep_s[LARGE] = 4e-4
    made_by_turn = []
    with live_server([entry]) as live:
        named = [{"id": f"client-{at}"} if ids else {} for at in range(30)]
        connections, plain = [connected(live, 1, **name)[0] for name in named], LoopSelector.select

        def select(self: LoopSelector, timeout: float | None = None) -> Any:
            made_by_turn.append(len(own.calls))
            return plain(self, timeout)

        with gate.until(30):
            for connection, name in zip(connections, named, strict=True):
                connection.send(infer(np.ones(6, dtype=np.float32), **name))
            monkeypatch.setattr(LoopSelector, "select", select)
            made_by_turn.append(len(own.calls))
        for connection in connections:
            with connection:
                assert connection.answer()[0] == 200
    # One that begins before the millisecond is over ends after it.
    assert np.diff([*made_by_turn, len(own.calls)]).max() <= 1 + 1e-3 / own.sleep_s[LARGE]


def has_failing(policy: Policy, method: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have that method of it raise; what the server's log then says of it."""
    said: list[str] = []
    monkeypatch.setattr(LOG, "error", lambda sentence, *values, exc_info: said.append(sentence % values))

    def fails(*asked: Any) -> None:
        raise ZeroDivisionError("a fault of the policy")

    monkeypatch.setattr(policy, method, fails)
    return said


@pytest.mark.parametrize(
    ("way", "method"),
    [
        ("fast", "observe"), ("uvicorn", "observe"), ("fast", "planned_us"), ("uvicorn", "planned_us"),
        ("fast", "serves"),
    ],
)  # fmt: skip
def test_a_policy_that_fails_after_its_decision_costs_no_answer(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, way: str, method: str
) -> None:
    entry = model()
    with live_server([entry], http=way) as live:
        connections = connected(live, 6)
        said = has_failing(entry.policy, method, monkeypatch)
        for together in (connections[:1], connections, connections):
            with gate.until(len(together)):
                for connection in together:
                    connection.send(infer(np.ones(6, dtype=np.float32)))
            for connection in together:
                assert logits_of(connection.answer()) == [*entry.model.weights[LARGE].sum(axis=0)]
        for connection in connections:
            connection.socket.close()
        assert live.count("slotool_policy_failures_total", model="three", method=method) >= 2
    assert len(said) == 1, "of many failures the first"
    assert said[0].startswith("three: the policy ")
    assert f" failed in {method}: ZeroDivisionError: a fault of the policy; " in said[0]


@pytest.mark.parametrize("way", ["fast", "uvicorn"])
def test_a_request_that_a_policy_fails_to_decide_on_is_told_why(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    entry = model()
    with live_server([entry], http=way) as live:
        connections = connected(live, 2)
        said = has_failing(entry.policy, "decide", monkeypatch)
        for connection in connections:
            connection.send(infer(np.ones(6, dtype=np.float32)))
            answer = connection.answer()
            assert answer is not None
            assert answer[0] == 500
            assert answer[2]["error"].endswith("failed in decide: ZeroDivisionError: a fault of the policy")
            connection.socket.close()
        assert live.count("slotool_policy_failures_total", model="three", method="decide") == 2
    assert len(said) == 1
    assert said[0].endswith("; the request gets no answer")
