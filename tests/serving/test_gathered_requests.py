"""Requests that arrive together and are alike but for their values: answered as the queue would, in fewer steps."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from slotool.scheduling import FixedPoint, LatencyConstrained, Policy, by_demand
from slotool.serving import Router
from slotool.serving.admission import IdleTrackingSelector
from slotool.serving.model_queue import InferenceResult
from slotool.serving.request_options import RequestOptions
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served, space, until

LARGE = POINTS[-1]
PLAIN = RequestOptions()
EACH = 2  # examples of a request


def policy_after(took_us: float | None) -> Policy:
    """A policy that has seen a call of one example take so long."""
    policy = by_demand(space())
    if took_us is not None:
        policy.observe(LARGE, 1, took_us)
    return policy


def router_of(model: ThreeLinear, policy: Policy, **options: Any) -> Router:
    router = Router({model.name: served(model, policy)}, clock_us=lambda: 1e6, **options)
    model.calls.clear()
    return router


def inputs(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(EACH, 1, 2, 3)).astype(np.float32) for _ in range(count)]


def directly(router: Router, xs: list[np.ndarray], options: RequestOptions = PLAIN) -> list[InferenceResult]:
    """The answers to the first of them."""
    arrivals_us = [1e6 - 10 * (len(xs) - at) for at in range(len(xs))]
    answers = router.direct_calls.answer_alike(
        router.models["three"], options, arrivals_us, EACH, lambda count: np.concatenate(xs[:count])
    )
    if answers:
        router.direct_calls.settle()
    return list(answers)


def queued(router: Router, xs: list[np.ndarray], options: RequestOptions = PLAIN) -> list[Any]:
    outcomes: list[Any] = [None] * len(xs)

    async def ask() -> None:
        for at, x in enumerate(xs):
            arrival_us = 1e6 - 10 * (len(xs) - at)
            router.submit("three", x, options, arrival_us, lambda: False, lambda found, at=at: put(at, found))
        async with asyncio.timeout(10):
            while None in outcomes:
                await asyncio.sleep(1e-3)

    def put(at: int, outcome: Any) -> None:
        outcomes[at] = outcome

    asyncio.run(ask())
    return outcomes


def stated(answer: InferenceResult) -> tuple[Any, ...]:
    return (answer.decision, answer.labels.tolist(), answer.confidence, answer.queue_us, answer.compute_us,
            answer.slack_us, answer.batch, answer.is_shared)  # fmt: skip


def left_behind(router: Router, model: ThreeLinear) -> tuple[Any, ...]:
    queue = router._queues["three"]
    counted = router.metrics.registry.get_sample_value("slotool_batch_examples_sum", {"model": "three"})
    arrivals = list(queue.dispatcher.queue._arrivals.unread_us)
    outcomes = +queue.dispatcher.outcomes
    return (
        outcomes,
        list(model.calls),
        len(queue.pending),
        router.busy(),
        router.waiting(),
        router.arrived,
        counted,
        arrivals,
    )


@pytest.mark.parametrize("options", [PLAIN, RequestOptions(priority=2)], ids=["plain", "of a priority"])
def test_alike_requests_have_the_answers_that_the_queue_gives_them(options: RequestOptions) -> None:
    seen = []
    for ask in (directly, queued):
        model = ThreeLinear()
        router = router_of(model, policy_after(10.0))
        answers = ask(router, inputs(5), options)
        seen.append(([stated(answer) for answer in answers], left_behind(router, model)))
        router.close()
    assert seen[0] == seen[1]
    assert [calls for _, calls in seen[0][1][1]] == [10]
    assert len({str(answer) for answer in seen[0][0]}) == 5


def test_only_as_many_share_a_call_as_the_policy_has() -> None:
    model = ThreeLinear()
    router = router_of(model, policy_after(240.0))  # four examples in a millisecond
    assert len(directly(router, inputs(5))) == 2
    assert model.calls == [(LARGE, 4)]


REFUSED: dict[str, tuple[Callable[[], Policy], Callable[[ThreeLinear, Router], object]]] = {
    "nothing is known of calls": (lambda: policy_after(None), lambda model, router: None),
    "calls are long": (lambda: policy_after(2e3), lambda model, router: None),
    "the policy has none share": (lambda: LatencyConstrained(space(1, 2, 3)), lambda model, router: None),
    "no number": (lambda: policy_after(10.0), lambda model, router: model.weights[LARGE].fill(np.nan)),
    "the model fails": (lambda: policy_after(10.0), lambda model, router: model.weights.clear()),
    "the server ends": (lambda: policy_after(10.0), lambda model, router: router.end()),
    "another model": (
        lambda: policy_after(10.0), lambda model, router: router.replace(served(model, FixedPoint(space())))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_unusual_is_left_to_the_queue_as_if_nothing_had_been(kind: str) -> None:
    policy, change = REFUSED[kind]
    model = ThreeLinear()
    router = router_of(model, policy())
    before = router.models["three"]
    change(model, router)
    model.calls.clear()
    answers = router.direct_calls.answer_alike(
        before, PLAIN, [1e6, 1e6], 1, lambda count: np.concatenate(inputs(count))
    )
    assert not answers
    assert (router.arrived, router.waiting(), router.busy(), router._workers.idle()) == (0, 0, 0, 0)


def test_more_than_the_queue_would_hold_are_left_to_it() -> None:
    router = router_of(ThreeLinear(), policy_after(10.0), max_queue=3)
    assert not directly(router, inputs(4))
    assert len(directly(router, inputs(3))) == 3


WAITING: dict[str, tuple[RequestOptions, int, bool]] = {
    "without a deadline": (PLAIN, 4, True),
    "more than the queue would hold": (PLAIN, 5, False),
    "with a deadline": (RequestOptions(timeout_us=1e6), 4, False),
}


@pytest.mark.parametrize("kind", WAITING)
def test_requests_may_wait_for_those_in_the_queue_that_have_no_deadline(kind: str) -> None:
    options, count, expected = WAITING[kind]
    router = router_of(ThreeLinear(), policy_after(10.0), max_queue=6)
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        seen.append((router.direct_calls.is_soon_free(count), router.direct_calls.is_free()))

    async def ask() -> None:
        for x in inputs(2):
            router.submit("three", x, options, 1e6, lambda: False, lambda found: None)
        look()
        async with asyncio.timeout(10):
            while router.waiting():
                await asyncio.sleep(0)
        look()

    asyncio.run(ask())
    assert seen == [(expected, False), (False, True)]


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
    plain = IdleTrackingSelector.select

    def select(self: IdleTrackingSelector, timeout: float | None = None) -> Any:
        if not plain(self, timeout):
            return []
        time.sleep(0.03)
        return plain(self, 0)

    monkeypatch.setattr(IdleTrackingSelector, "select", select)


@pytest.fixture
def live(slow_select: None) -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear(), policy_after(10.0))]) as live:
        yield live


def connected(live: LiveServer, stack: ExitStack, count: int) -> list[socket.socket]:
    """Connections, each of which has asked twice: their requests are known."""
    connections = [stack.enter_context(live.connect()) for _ in range(count)]
    for connection in connections:
        for _ in range(3):
            connection.sendall(request(np.zeros((1, 1, 2, 3), dtype=np.float32)))
            assert answer_of(connection)[0] == 200
    return connections


def test_each_client_gets_the_answer_to_its_own_values(live: LiveServer, calls_shared: list[int]) -> None:
    model, random = live.models["three"], np.random.default_rng(1)
    with ExitStack() as stack:
        connections = connected(live, stack, 8)
        numbers = set()
        for _ in range(4):
            xs = random.normal(size=(8, 1, 1, 2, 3)).astype(np.float32)
            for connection, x in zip(connections, xs, strict=True):
                connection.sendall(request(x))
            for connection, x in zip(connections, xs, strict=True):
                status, answer = answer_of(connection)
                assert status == 200
                np.testing.assert_allclose(logits_of(answer), model.forward(x, LARGE).ravel(), rtol=1e-5)
                numbers.add(answer["parameters"]["request"])
        assert len(numbers) == 32
        assert max(calls_shared) > 1
        until(lambda: live.count("slotool_requests_total", model="three", outcome="ok") == 3 * 8 + 32)
        last = {"request": answer["parameters"]["request"], "labels": [int(logits_of(answer).argmax())]}
        assert HTTP.post(f"{live.url}/v2/models/three/feedback", json=last).status_code == 200
    assert live.admission.in_progress == 0


def test_unusual_requests_among_others_get_what_they_get_alone(live: LiveServer, calls_shared: list[int]) -> None:
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
        assert calls_shared
    until(lambda: live.admission.in_progress == 0)
    assert live.router.waiting() == 0


def test_requests_are_gathered_while_a_dispatch_is_to_come(live: LiveServer) -> None:
    """As after each long call, whether something waits or not: one that joined the queue now would take all others with
    it, which wait for nothing that came later."""
    router, front, seen = live.router, live.front, []

    def look() -> None:
        router._dispatch_loop.wake(3)
        seen.append(
            (front.may_gather(0, math.inf), front.may_stay_gathered(1, router.arrived), router.direct_calls.is_free())
        )

    live.server.servers[0].get_loop().call_soon_threadsafe(look)
    until(lambda: seen)
    assert seen == [(True, True, False)]


def test_those_for_which_no_time_is_left_are_gathered_again(
    slow_select: None, calls_shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not handed to the queue, which would go on filling under load."""
    model, policy = ThreeLinear(), policy_after(240.0)
    # On a crowded machine calls seem long to it, until none are shared.
    monkeypatch.setattr(policy, "observe", lambda point, examples, took_us: None)
    with live_server([served(model, policy)]) as live, ExitStack() as stack:
        connections = connected(live, stack, 24)
        time.sleep(1.1)  # without requests: the slow turns seem to be load
        calls_shared.clear()
        model.sleep_s[LARGE] = 1.2e-3  # one call in a turn of the event loop
        xs = np.random.default_rng(2).normal(size=(24, 1, 1, 2, 3)).astype(np.float32)
        for connection, x in zip(connections, xs, strict=True):
            connection.sendall(request(x))
        for connection, x in zip(connections, xs, strict=True):
            np.testing.assert_allclose(logits_of(answer_of(connection)[1]), model.weights[LARGE].T @ x.ravel(), 1e-4)
        assert sum(calls_shared) >= 16
        assert len(calls_shared) > 1


def test_nothing_is_gathered_for_longer_than_requests_wait(slow_select: None) -> None:
    model, x = ThreeLinear(), np.ones((1, 1, 2, 3), dtype=np.float32)
    policy = policy_after(10.0)
    with live_server([served(model, policy)], default_deadline_us=1e6) as live, ExitStack() as stack:
        connections = connected(live, stack, 8)
        for connection in connections[4:]:
            for _ in range(3):
                connection.sendall(request(x, id="other"))
                assert answer_of(connection)[0] == 200
        model.sleep_s[LARGE] = 1.4  # a call of the first four or of the others, and no time is left
        for connection in connections[:4]:
            connection.sendall(request(x))
        for connection in connections[4:]:
            connection.sendall(request(x, id="other"))
        statuses = [answer_of(connection)[0] for connection in connections]
        answered, late = sorted((statuses[:4], statuses[4:]), key=sum)
        assert answered.count(200) >= 2  # on a crowded machine not all of them come within 30 ms
        assert late.count(504) >= 3  # the first may find an empty queue
        until(lambda: live.admission.in_progress == 0)


def test_a_second_request_of_a_connection_is_answered_after_the_gathered_one(
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
            np.testing.assert_allclose(first, weights.sum(axis=0), rtol=1e-5)
            np.testing.assert_allclose(second, -first, rtol=1e-5)


def test_requests_with_a_deadline_share_calls_too(live: LiveServer, calls_shared: list[int]) -> None:
    with ExitStack() as stack:
        connections = connected(live, stack, 8)
        xs = np.random.default_rng(3).normal(size=(8, 1, 1, 2, 3)).astype(np.float32)
        for _ in range(50):  # on a crowded machine they may come one by one
            calls_shared.clear()
            for connection, x in zip(connections, xs, strict=True):
                connection.sendall(request(x, parameters={"timeout": 60_000_000}))
            for connection, x in zip(connections, xs, strict=True):
                status, answer = answer_of(connection)
                assert status == 200
                np.testing.assert_allclose(logits_of(answer), live.models["three"].forward(x, LARGE).ravel(), rtol=1e-5)
                assert 0 < answer["parameters"]["slack_us"] <= 60_000_000
            if calls_shared:
                break
        assert calls_shared
    until(lambda: live.admission.in_progress == 0)
