"""Whole requests read in one look: as the parser that reads everything has them, or left to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httptools
import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import POINTS, LiveServer, ThreeLinear, live_server, served

from slotool.serving import server
from slotool.serving.guard import Token
from slotool.serving.whole_request import WholeRequest

X = np.zeros((1, 1, 2, 3), dtype=np.float32)
LARGE = POINTS[-1]
LONGEST = 2_000
NAMES = (
    *("Host", "Content-Length", "CONTENT-LENGTH", "Accept", "Deadline-Ms", "Tolerance"),
    *("Expect", "Transfer-Encoding", "Connection", "Upgrade", "X Y", ""),
)
VALUES = (
    *("x", "", "3", " 3 ", "4", "03", "+3", "0x3", "a\tb", "é", "a\x00b", "a\nb"),
    *("100-continue", "chunked", "close", "keep-alive"),
)
PATHS = ("/compute", "/v2/models/a/infer", "/v2/models/a.b/versions/1/infer", "/v2/models/a%20b/infer", "/compute?x=1",
         "/v2/models//infer", "/metrics", "/v2/models/a/b/infer")  # fmt: skip


class Parsed:
    """What httptools makes of a request."""

    def __init__(self, data: bytes):
        self.headers: list[tuple[str, str]] = []
        self.url, self.body, self.ends = b"", b"", 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method, self.version, self.stays = (
            parser.get_method(), parser.get_http_version(), parser.should_keep_alive())  # fmt: skip

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ends += 1


@given(
    method=st.sampled_from(["POST", "GET", "post"]),
    path=st.sampled_from(PATHS),
    version=st.sampled_from(["1.1", "1.0", "2"]),
    headers=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=4),
    length=st.one_of(st.none(), st.just(3)),
    line=st.sampled_from(["\r\n", "\n"]),
    body=st.sampled_from([b"", b"abc", b"abcd", b"3\r\nabc\r\n0\r\n\r\n"]),
)
def test_what_is_read_at_once_is_what_the_parser_reads(
    method: str, path: str, version: str, headers: list[tuple[str, str]], length: int | None, line: str, body: bytes
) -> None:
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers)]
    lines += [] if length is None else [f"Content-Length: {length}"]
    data = line.join([*lines, "", ""]).encode("latin-1") + body
    request = WholeRequest.of(data, head_bytes=LONGEST)
    if request is None:
        return
    parsed = Parsed(data)
    assert (parsed.method, parsed.version, parsed.ends, parsed.stays) == (b"POST", "1.1", 1, True)
    assert request.body == parsed.body
    assert dict(request.head.headers) == dict(parsed.headers)
    assert len(request.head.headers) == len(parsed.headers)
    version_part = f"/versions/{request.head.version}" if request.head.version else ""
    model = request.head.model
    assert parsed.url.decode() == (f"/v2/models/{model}{version_part}/infer" if model else "/compute")


def test_usual_requests_are_read_at_once() -> None:
    head = b"POST /v2/models/a/versions/1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nAccept:\r\n\r\n"
    request = WholeRequest.of(head + b"abc", head_bytes=LONGEST)
    assert request is not None
    assert (request.head.model, request.head.version, request.body) == ("a", "1", b"abc")
    assert request.head.headers["accept"] == ""
    assert WholeRequest.of(head + b"ab", head_bytes=LONGEST) is None
    assert WholeRequest.of(head + b"abcd", head_bytes=LONGEST) is None
    assert WholeRequest.of(head + b"abc", head_bytes=20) is None


def test_thousands_of_blanks_before_a_bad_byte_are_read_as_fast_as_anything() -> None:
    head = b"POST /compute HTTP/1.1\r\nContent-Length: 0\r\nX:%b\x00\r\n\r\n" % (b" " * 1_000_000)
    assert WholeRequest.of(head, head_bytes=len(head)) is None


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())]) as live:
        yield live


def connected(live: LiveServer) -> socket.socket:
    host, port = live.address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


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


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "in two parts"])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (compute(X.tobytes()), b"200 OK"),
        (compute(b"abc"), b"400 Bad Request"),
        (compute(X.tobytes(), "Deadline-Ms: 0.000001"), b"504 Gateway Timeout"),
        (compute(X.tobytes(), "Model: other"), b"404 Not Found"),
        (compute(X.tobytes(), "Content-Encoding: br"), b"415 Unsupported Media Type"),
        (compute(X.tobytes(), "Priority: -1"), b"400 Bad Request"),
    ],
)
def test_both_ways_answer_alike(live: LiveServer, parts: int, sent: bytes, status: bytes) -> None:
    with connected(live) as connection:
        for _ in range(2):
            head_end = sent.index(b"\r\n\r\n") + 4
            for part in [sent] if parts == 1 else [sent[:head_end], sent[head_end:]]:
                connection.sendall(part)
                time.sleep(0.02 * (parts - 1))
            (answer,) = answers(connection, 1)
            assert answer.startswith(b"HTTP/1.1 " + status), answer
            assert b"content-type: application/json\r\n" in answer


def test_what_comes_behind_a_waiting_request_is_answered_after_it() -> None:
    model = ThreeLinear()
    with live_server([served(model)]) as live, connected(live) as busy, connected(live) as connection:
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
    weights = live.models["three"].weights[LARGE]  # type: ignore[attr-defined]
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
        answer = httpx.post(url, content=json_part.encode() + x.tobytes(), headers=headers, trust_env=False, timeout=10)
        assert answer.status_code == 200
        assert answer.content.endswith(b"\r\n\r\n")
    finally:
        weights[:] = kept


def test_the_token_is_wanted_here_too() -> None:
    token = Token.of("s" * 40, "here")
    with live_server([served(ThreeLinear())], token=token) as live, connected(live) as connection:
        for headers, status in (
            ((), b"401"),
            (("Authorization: Bearer " + "t" * 40,), b"401"),
            (("Authorization: Bearer " + "s" * 40,), b"200"),
        ):
            connection.sendall(compute(X.tobytes(), *headers))
            (answer,) = answers(connection, 1)
            assert answer.startswith(b"HTTP/1.1 " + status), answer
            assert (b"www-authenticate: Bearer\r\n" in answer) == (status == b"401")


def test_a_fault_is_a_500_and_the_connection_stays(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(live) as connection:
        monkeypatch.setattr(live.router, "answer", None)
        connection.sendall(compute(X.tobytes()))
        (answer,) = answers(connection, 1)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"a fault of slotool: TypeError" in answer
        monkeypatch.undo()
        connection.sendall(compute(X.tobytes()))
        assert answers(connection, 1)[0].startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_rests_is_closed_some_time_after_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 1)
    with live_server([served(ThreeLinear())]) as live, connected(live) as connection:
        for _ in range(3):
            connection.sendall(compute(X.tobytes()))
            assert answers(connection, 1)[0].startswith(b"HTTP/1.1 200 OK")
            answered_s = time.monotonic()
            time.sleep(0.6)
        assert connection.recv(1) == b""
        assert time.monotonic() - answered_s >= 0.9
