"""Whole requests read in one look: as the parser that reads everything has them, or left to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from slotool.serving import RequestLimits
from slotool.serving.http.requests import RequestReader
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
LARGE = POINTS[-1]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())]) as live:
        yield live


def compute(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def answers(connection: socket.socket, count: int) -> list[bytes]:
    said = b""
    while said.count(b"HTTP/1.1 ") < count or not said.endswith(b"}"):
        more = connection.recv(65_536)
        if not more:
            break
        said += more
    return [b"HTTP/1.1 " + part for part in said.split(b"HTTP/1.1 ")[1:]]


def answers_to(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    (answer,) = answers(connection, 1)
    return answer


def label(connection: socket.socket, request: bytes) -> int:
    answer = answers_to(connection, request)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    found: int = json.loads(answer.partition(b"\r\n\r\n")[2])["label"]
    return found


def test_what_comes_behind_a_waiting_request_is_answered_after_it() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, live.connect() as busy, live.connect() as connection:
        model.sleep_s[LARGE] = 0.1
        busy.sendall(2 * compute(X.tobytes()))
        time.sleep(0.05)
        connection.sendall(compute(X.tobytes()))
        time.sleep(0.2)  # It waits for its turn, behind the calls of the other.
        connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n" + compute(b"abc"))
        first, ready, wrong = answers(connection, 3)
        assert b"operating_point" in first
        assert ready.startswith(b"HTTP/1.1 200 OK")
        assert wrong.startswith(b"HTTP/1.1 400")


def test_an_answer_that_looks_like_a_head_is_sent_at_once(live: LiveServer) -> None:
    # Its last four bytes are those that end a head, and nothing comes after them.
    ends = np.frombuffer(b"\r\n\r\n", dtype="<f4")
    weights = live.models["three"].weights[LARGE]
    kept = weights.copy()
    weights[:] = 0.0
    weights[0, -1] = ends[0]
    try:
        x = np.zeros((1, 1, 2, 3), dtype=np.float32)
        x[0, 0, 0, 0] = 1.0
        json_part = (
            '{"inputs":[{"name":"input","datatype":"FP32","shape":[1,1,2,3],"parameters":{"binary_data_size":24}}],'
            '"outputs":[{"name":"logits","parameters":{"binary_data":true}}]}'
        )
        headers = {"Inference-Header-Content-Length": str(len(json_part)), "Content-Type": "application/octet-stream"}
        url = f"{live.url}/v2/models/three/infer"
        answer = HTTP.post(url, content=json_part.encode() + x.tobytes(), headers=headers, timeout=10)
        assert answer.status_code == 200
        assert answer.content.endswith(b"\r\n\r\n")
    finally:
        weights[:] = kept


@pytest.mark.parametrize("at", [1, 30, -25, -24, -1], ids=str)
def test_a_head_that_is_repeated_is_answered_however_it_is_cut(live: LiveServer, at: int) -> None:
    """Bodies that look like heads too, and what follows a request in its packet."""
    x = np.arange(6, dtype=np.float32).reshape(X.shape)
    blank = np.frombuffer(b"\r\n\r\n" * 6, dtype="<f4").reshape(X.shape)
    sent = [x, -x, blank, x]
    with live.connect() as connection:
        alone = [label(connection, compute(each.tobytes())) for each in sent]
        for each, expected in zip(sent, alone, strict=True):
            request = compute(each.tobytes())
            connection.sendall(request[:at])
            time.sleep(0.01)
            assert label(connection, request[at:]) == expected
        # An empty line behind a request belongs to none.
        assert label(connection, compute(blank.tobytes()) + b"\r\n") == alone[2]
        assert label(connection, compute(x.tobytes())) == alone[0]
        connection.sendall(b"".join(compute(each.tobytes()) for each in sent))
        assert [json.loads(each.partition(b"\r\n\r\n")[2])["label"] for each in answers(connection, 4)] == alone
        # Another head of the same length, and one that says how long its body is.
        assert answers_to(connection, compute(x.tobytes()).replace(b"/compute", b"/compuxe")).startswith(
            b"HTTP/1.1 404"
        )
        assert label(connection, compute(x.tobytes())) == alone[0]
        assert answers_to(connection, compute(x.tobytes()[:-4])).startswith(b"HTTP/1.1 400")


def test_a_head_that_another_connection_has_sent_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not parsed again, and the connection waits for the next request as any other."""
    x = np.arange(6, dtype=np.float32).reshape(X.shape)
    with live_server([served(ThreeLinear())], RequestLimits(head_s=1.0)) as live:
        with live.connect() as first:
            expected = [label(first, compute(each.tobytes())) for each in (x, -x)]
        parsed: list[bytes] = []
        feed = RequestReader._feed

        def noting(self: RequestReader, data: bytes) -> None:
            parsed.append(data)
            feed(self, data)

        monkeypatch.setattr(RequestReader, "_feed", noting)
        with live.connect() as second:
            assert label(second, compute(x.tobytes())) == expected[0]
            assert parsed == []
            time.sleep(1.5)
            assert label(second, compute((-x).tobytes())) == expected[1]
            # A body of another length has another head.
            assert answers_to(second, compute(x.tobytes()[:-4])).startswith(b"HTTP/1.1 400")
            assert len(parsed) == 1


def test_the_head_of_a_last_request_is_not_repeated(live: LiveServer) -> None:
    with live.connect() as connection:
        connection.sendall(2 * compute(X.tobytes(), "Connection: close"))
        assert len(answers(connection, 2)) == 1


def test_a_fault_is_a_500_and_the_connection_stays(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.connect() as connection:
        monkeypatch.setattr(live.router, "submit", None)
        connection.sendall(compute(X.tobytes()))
        (answer,) = answers(connection, 1)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"a fault of slotool: TypeError" in answer
        monkeypatch.undo()
        connection.sendall(compute(X.tobytes()))
        assert answers(connection, 1)[0].startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_rests_is_closed_some_time_after_its_last_answer() -> None:
    limits = RequestLimits(keep_alive_s=2.0)
    with live_server([served(ThreeLinear())], limits) as live, live.connect() as connection:
        for _ in range(2):
            connection.sendall(compute(X.tobytes()))
            assert answers(connection, 1)[0].startswith(b"HTTP/1.1 200 OK")
            answered_s = time.monotonic()
            time.sleep(0.5)
        assert connection.recv(1) == b""
        assert time.monotonic() - answered_s >= 1.8
