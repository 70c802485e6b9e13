"""What strangers may do: the token, limits on a request's head, and slow or confused clients."""

from __future__ import annotations

import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from slotool.errors import InputError
from slotool.serving import RequestLimits
from slotool.serving.access import Clients, others_can_read, read_clients
from slotool.serving.rejections import Rejection
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served

SECRET = "correct-horse-battery"
X = np.zeros((1, 1, 2, 3), dtype=np.float32)


@pytest.fixture(scope="module")
def guarded() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())], clients=Clients.of_token(SECRET, "the test")) as live:
        yield live


@pytest.fixture(scope="module")
def hasty() -> Iterator[LiveServer]:
    """A server that waits 0.6 s for a head."""
    with live_server([served(ThreeLinear())], RequestLimits(head_bytes=2_000, head_s=0.6)) as live:
        yield live


@pytest.mark.parametrize(
    "path",
    # The first of the last two is answered by the fast path, the other by the application.
    ["/", "/metrics", "/openapi.json", "/v2", "/v2/models/three", "/nowhere", "/compute", "/compute?by=route"],
)
def test_only_who_shows_the_token_is_answered(guarded: LiveServer, path: str) -> None:
    ask = partial(HTTP.get, guarded.url + path)
    if path.startswith("/compute"):
        ask = partial(HTTP.post, guarded.url + path, content=X.tobytes())
    before = guarded.count("slotool_drops_total", model="", cause="unauthorized")
    wrong = ["", "Bearer", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", f"Basic {SECRET}", SECRET, "Bearer ü"]
    for shown in (None, *wrong):
        headers = {} if shown is None else {"Authorization": shown.encode()}
        response = ask(headers=headers)
        assert response.status_code == 401, shown
        assert response.headers["www-authenticate"] == "Bearer"
        assert SECRET not in response.text
        assert "token" in response.json()["error"].lower()
    assert guarded.count("slotool_drops_total", model="", cause="unauthorized") == before + 1 + len(wrong)
    right = ask(headers={"Authorization": f"bearer {SECRET}"})
    assert right.status_code == (404 if path == "/nowhere" else 200)


def test_probes_need_no_token(guarded: LiveServer) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert HTTP.get(guarded.url + path).status_code == 200
    with tritonclient.grpc.InferenceServerClient(guarded.grpc_address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()


def test_the_token_guards_grpc_too(guarded: LiveServer) -> None:
    tensor = tritonclient.grpc.InferInput("input", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    with tritonclient.grpc.InferenceServerClient(guarded.grpc_address) as client:
        for headers in (None, {"authorization": "Bearer nonsense-of-length"}):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("three", [tensor], headers=headers)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
            with pytest.raises(InferenceServerException):
                client.get_model_metadata("three", headers=headers)
        result = client.infer("three", [tensor], headers={"authorization": f"Bearer {SECRET}"})
        assert result.as_numpy("label").shape == (1,)


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    assert not others_can_read(path)
    path.chmod(0o600 | stat.S_IRGRP)
    assert others_can_read(path)
    environment = {"SLOTOOL_TOKEN": "another-one-of-length"}
    for source, secret in ((path, SECRET), (None, "another-one-of-length")):
        clients = read_clients(source, environment)
        assert clients is not None
        clients.check(f"Bearer {secret}")
        with pytest.raises(Rejection, match="not one of"):
            clients.check(f"Bearer {secret}x")
    assert read_clients(None, {}) is None


@pytest.mark.parametrize("text", ["", "short", "with spaces in the middle", "ünsichtbare-zeichen-darin"])
def test_what_is_no_token_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(InputError, match="at least 16 visible ASCII"):
        read_clients(path, {})
    with pytest.raises(InputError, match="SLOTOOL_TOKEN"):
        read_clients(None, {"SLOTOOL_TOKEN": text})
    with pytest.raises(InputError, match="cannot be read"):
        read_clients(tmp_path / "nothing", {})


def everything(connection: socket.socket) -> bytes:
    """What the server says until it closes the connection, which it must; with a reset if it has not read it all."""
    said = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65_536):
            said += chunk
    return said


GET = b"GET /v2 HTTP/1.1\r\nHost: x\r\n"
HEADS = {
    "one long header": (GET + b"X: " + b"x" * 3_000 + b"\r\n\r\n", b"431"),
    "many headers": (GET + b"X: y\r\n" * 400 + b"\r\n", b"431"),
    "a long path": (b"GET /" + b"x" * 3_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431"),
    "a header without end": (GET + b"X: " + b"x" * 2_500, b"431"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"400"),
    "a bad path": (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    "a bad version": (b"GET / HTTP/9.9\r\n\r\n", b"400"),
    "a bad length": (b"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", b"400"),
    "two lengths": (b"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
    "nothing more": (GET, b"408"),
}


@pytest.mark.parametrize("what", HEADS)
def test_heads_are_limited_in_length_and_time(hasty: LiveServer, what: str) -> None:
    sent, status = HEADS[what]
    with closing(hasty.connect()) as connection:
        connection.sendall(sent)
        said = everything(connection)
    assert said.startswith(b"HTTP/1.1 " + status), said[:200]
    assert b'{"error":"' in said
    assert HTTP.get(f"{hasty.url}/v2").status_code == 200


def test_slow_heads_end_in_time_however_they_drip(hasty: LiveServer) -> None:
    before = hasty.count("slotool_drops_total", model="", cause="too-slow")
    with closing(hasty.connect()) as connection:
        began = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            for byte in GET * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 30, "far less than all of it takes"
    assert hasty.count("slotool_drops_total", model="", cause="too-slow") == before + 1


def test_a_connection_that_says_nothing_is_closed(hasty: LiveServer) -> None:
    with closing(hasty.connect()) as connection:
        assert everything(connection) == b""


def test_connections_are_kept_alive_between_requests_and_the_next_head_has_its_own_time(hasty: LiveServer) -> None:
    with closing(hasty.connect()) as connection:
        for _ in range(2):
            connection.sendall(GET + b"\r\n")
            time.sleep(0.9)
        connection.sendall(GET)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", everything(connection))
    assert statuses == [b"200", b"200", b"408"], "idling is no slow head"
