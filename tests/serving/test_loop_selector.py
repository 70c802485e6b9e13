"""Turns of the event loop: how many sockets each reads, since when their requests count, and that a busy loop refuses
no deadline that can be met."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from slotool.data.columns import Columns
from slotool.scheduling import FixedPoint
from slotool.serving import InferenceResult, Rejection, Router
from slotool.serving.front.frontend import MAX_READY, LoopSelector
from slotool.serving.request import Request
from slotool.serving.request_options import RequestOptions
from tests.serving.live_server import ThreeLinear, live_server, served, space, until

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
HEAD = f"POST /v2/models/three/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n"
BODY = b'{"inputs": [{"name": "input", "shape": [1, 1, 2, 3], "datatype": "FP32", "data": [0, 0, 0, 0, 0, 0]}]}'
ANSWERED = HEAD.replace(str(X.nbytes), str(len(BODY))).encode() + b"\r\n" + BODY


def request(timeout_us: float) -> bytes:
    """A whole one, that has so long."""
    body = BODY[:-1] + b', "parameters": {"timeout": %d}}' % timeout_us
    return HEAD.replace(str(X.nbytes), str(len(body))).encode() + b"\r\n" + body


def binary(timeout_us: float) -> bytes:
    """A request with its values after the JSON."""
    tensor = '{"name": "input", "shape": [1, 1, 2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}'
    text = f'{{"inputs": [{tensor}], "parameters": {{"timeout": {timeout_us:.0f}}}}}'
    head = HEAD.replace(str(X.nbytes), str(len(text) + X.nbytes))
    return f"{head}Inference-Header-Content-Length: {len(text)}\r\n\r\n{text}".encode() + X.tobytes()


def ask(connection: socket.socket, *parts: bytes) -> bytes:
    for part in parts:
        connection.sendall(part)
    answer = connection.recv(10_000)
    while b"}" not in answer:
        answer += connection.recv(10_000)
    return answer


def test_requests_that_came_during_one_long_call_are_answered() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(live.connect()) for _ in range(32)]
        for connection in connections:
            assert ask(connection, ANSWERED).startswith(b"HTTP/1.1 200")
        called = len(model.calls)
        model.sleep_s = dict.fromkeys(model.sleep_s, 0.2)
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


def test_a_turn_reads_a_bounded_number_of_sockets_and_the_others_next() -> None:
    pairs = [socket.socketpair() for _ in range(2 * MAX_READY + 5)]
    with contextlib.ExitStack() as stack, contextlib.closing(LoopSelector()) as selector:
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
            selector.register(pair[0], selectors.EVENT_READ)
            pair[1].send(b"x")
        read: list[object] = []
        for expected in (MAX_READY, MAX_READY, 5, 0):
            events = selector.select(0)
            assert len(events) == selector.ready == expected
            for key, _ in events:
                read.append(key.fileobj)
                key.fileobj.recv(1)
        assert {id(each) for each in read} == {id(pair[0]) for pair in pairs}


def test_writing_rejections_is_no_part_of_the_time_that_a_call_takes() -> None:
    """Else each crowd of rejections made calls seem longer, by which more were rejected."""
    clock_us, ended = [1e6], list[InferenceResult | Rejection]()
    model = ThreeLinear()
    router = Router({"three": served(model, FixedPoint(space()))}, clock_us=lambda: clock_us[0])

    def slowly(outcome: InferenceResult | Rejection) -> None:
        clock_us[0] += 1e4
        ended.append(outcome)

    async def ask_all() -> None:
        for timeout_us in (*[1.0] * 20, 1e9):
            options = RequestOptions(timeout_us)
            x = Columns({"input": X})
            router.submit(Request(router.models["three"], x, options, 1e6 - 5.0, lambda: False, slowly))
        while len(ended) < 21:
            await asyncio.sleep(0)

    asyncio.run(ask_all())
    (result,) = [each for each in ended if isinstance(each, InferenceResult)]
    assert result.compute_us == 0.0
    router.close()


def test_a_crowd_of_clients_that_ask_again_at_once_is_answered() -> None:
    """Sixty-four of a network of microseconds, each with more time than all of them take."""
    sent = request(timeout_us=30_000_000)
    with live_server([served(ThreeLinear())]) as live, ThreadPoolExecutor(64) as pool:

        def client(_: int) -> set[bytes]:
            with live.connect() as connection:
                return {ask(connection, sent)[:12] for _ in range(10)}

        assert set().union(*pool.map(client, range(64))) == {b"HTTP/1.1 200"}


def test_what_came_while_the_loop_computed_counts_from_its_last_look() -> None:
    selector = LoopSelector()
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
    selector = LoopSelector()
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(selector):
        selector.register(ours, selectors.EVENT_READ)
        began_us = 1e6 * time.monotonic()
        waker = threading.Timer(0.05, theirs.send, (b"request",))
        waker.start()
        assert selector.select(60.0)
        assert began_us < selector.arrived_us <= 1e6 * time.monotonic()
        waker.join()


def test_what_waits_unread_for_half_of_its_time_is_rejected_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with time or without a deadline is answered."""
    model, plain = ThreeLinear(), LoopSelector.select

    def select(self: LoopSelector, timeout: float | None = None) -> Any:
        events = plain(self, timeout)
        self.arrived_us = self.behind_us = 0.0
        return events

    with live_server([served(model)]) as live, live.connect() as connection:
        assert ask(connection, request(timeout_us=60e6)).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(LoopSelector, "select", select)
        # The loop may still wait in the method that it had.
        assert ask(connection, request(timeout_us=60e6)).startswith(b"HTTP/1.1 200")
        called = len(model.calls)
        for sent in (binary(timeout_us=1e4), binary(timeout_us=1e4)):
            time.sleep(0.02)
            assert ask(connection, sent).startswith(b"HTTP/1.1 503")
        assert len(model.calls) == called
        for sent in (ANSWERED, binary(timeout_us=60e6)):
            time.sleep(0.02)
            assert ask(connection, sent).startswith(b"HTTP/1.1 200")


def test_answers_of_workers_do_not_wait_behind_unread_sockets() -> None:
    pairs = [socket.socketpair() for _ in range(2 * MAX_READY)]
    with contextlib.ExitStack() as stack, contextlib.closing(LoopSelector()) as selector:
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
            selector.register(pair[0], selectors.EVENT_READ)
            pair[1].send(b"x")
        selector.prefer(pairs[-1][0].fileno())
        assert pairs[-1][0] in [key.fileobj for key, _ in selector.select(0)]
        selector.unregister(pairs[-1][0])
        assert pairs[-1][0] not in [key.fileobj for key, _ in selector.select(0)]
