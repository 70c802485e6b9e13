"""A model behind another server is a model like any other, and its failures have one sentence each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import Mock

import numpy as np
import orjson
import pytest
from live_server import LiveServer, ThreeLinear, live_server, served

from slotool.errors import InputError, RunError, TimedOut
from slotool.models import Signature, TensorSpec
from slotool.models.adapters.remote import (
    MAX_TRIES,
    VARIABLE,
    GrpcModel,
    HttpModel,
    RemoteUnavailable,
    headers_for,
    open_remote,
)
from slotool.models.loading import load
from slotool.serving.access import Clients

X = np.random.default_rng(0).normal(size=(5, 1, 2, 3)).astype(np.float32)
MODEL = ThreeLinear()


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served(MODEL)]) as live:
        yield live


def test_over_http_and_grpc_it_answers_as_the_server_has_it(live: LiveServer) -> None:
    expected = MODEL.forward(X, MODEL.full)
    for url in (f"{live.url}/v2/models/three", f"grpc://{live.grpc_address}/three"):
        with load(url) as model:
            assert model.name == "three"
            assert model.signature.input("input") == TensorSpec("input", "FP32", (-1, 1, 2, 3))
            made = model(X)
        np.testing.assert_allclose(made["logits"], expected, rtol=1e-6)
        assert made["label"].tolist() == expected.argmax(axis=1).tolist()


def test_outputs_are_asked_for_by_name_over_grpc(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(f"grpc://{live.grpc_address}/three") as model:
        assert isinstance(model, GrpcModel)
        model.signature = Signature(model.signature.inputs, (model.signature.output("label"),))
        infer = Mock(wraps=model._client.infer)
        monkeypatch.setattr(model._client, "infer", infer)
        assert list(model(X)) == ["label"]
        assert [output.name() for output in infer.call_args.args[3]] == ["label"]


def test_a_server_that_wants_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a-token-for-the-test"
    with live_server([served(MODEL)], clients=Clients.of_token(token, "the test")) as live:
        urls = f"{live.url}/v2/models/three", f"grpc://{live.grpc_address}/three"
        with pytest.raises(RunError, match=r"answered 401: it wants a token; name it in \$SLOTOOL_REMOTE_TOKENS"):
            load(urls[0])
        monkeypatch.setenv(VARIABLE, f"elsewhere:1=OTHER {live.address}=MINE {live.grpc_address}=MINE")
        monkeypatch.setenv("MINE", token)
        for url in urls:
            with load(url) as model:
                assert model(X)["label"].tolist() == MODEL.forward(X, MODEL.full).argmax(axis=1).tolist()
        monkeypatch.setenv("MINE", "another-token-altogether")
        with pytest.raises(RunError, match="answered 401: the token shown is not its own"):
            load(urls[0])


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("here:1", "not HOST:PORT=NAME"),
        ("here:1=", "not HOST:PORT=NAME"),
        ("here:1=NONE", r"\$NONE, for here:1, is not"),
    ],
)
def test_a_token_that_is_not_there_is_named(named: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        headers_for("http://here:1/v2/models/m", {VARIABLE: named})


def test_a_token_goes_to_its_own_server_only() -> None:
    environment = {VARIABLE: "here:1=MINE", "MINE": "s3cret"}
    assert headers_for("grpc://HERE:1/m", environment) == {"authorization": "Bearer s3cret"}
    for other in ("http://here:2/v2/models/m", "http://here/v2/models/m", "http://here:1.evil.example/v2/models/m"):
        assert headers_for(other, environment) == {}


def test_an_unknown_model_and_a_wrong_address(live: LiveServer) -> None:
    with pytest.raises(InputError, match="answered 404: Request for unknown model: 'four'"):
        HttpModel(f"{live.url}/v2/models/four")
    with pytest.raises(InputError, match="unknown model: 'four'"):
        GrpcModel(f"grpc://{live.grpc_address}/four")
    with pytest.raises(InputError, match="http://host:port/v2/models/NAME or"):
        HttpModel(live.url)
    with pytest.raises(RemoteUnavailable, match="no connection"):
        HttpModel("http://127.0.0.1:9/v2/models/three")
    with pytest.raises(InputError, match="leaves no time"):
        HttpModel(live.url, timeout_s=0)


@pytest.mark.parametrize(
    "path",
    ["a/../../../admin", "a/%2e%2e/%2e%2e", "..", "a/versions/..", "a/ready", "a/versions/1/2", "a?b=c", "a#b"],
)
def test_a_name_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="NAME or"):
        HttpModel(f"http://127.0.0.1:9/v2/models/{path}")


@pytest.mark.parametrize(
    ("kind", "url"), [(HttpModel, "http://me:pw@host/v2/models/m"), (GrpcModel, "grpc://me@host/m")]
)
def test_a_url_with_a_password_is_refused_and_not_repeated(kind: Any, url: str) -> None:
    with pytest.raises(InputError, match="SLOTOOL_REMOTE_TOKENS") as caught:
        kind(url)
    assert "pw" not in str(caught.value)


class Endpoint(ThreadingHTTPServer):
    """Answers inference requests by ``answers``, one after the other: status and body, after ``delay_s`` and, with
    ``drip_s``, a byte at a time."""

    signature = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.delay_s, self.drip_s, self.calls = 0.0, 0.0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v2/models/m"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self._send(200, orjson.dumps(Endpoint.signature.document()))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls += 1
        time.sleep(self.server.delay_s)
        self._send(*self.server.answers.pop(0))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            for at in range(len(body) if self.server.drip_s else 0):
                self.wfile.write(body[at : at + 1])
                time.sleep(self.server.drip_s)
            self.wfile.write(b"" if self.server.drip_s else body)
        except ConnectionError:  # the client would not wait
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


RIGHT = orjson.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]}]})


def test_a_call_that_is_rejected_for_now_is_made_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(503, b'{"error": "overloaded"}'), (429, b"later"), (200, RIGHT)]
    with HttpModel(endpoint.url, timeout_s=30) as model:
        assert model([1.0])["y"].tolist() == [2.5]
    assert endpoint.calls == 3


def test_a_caller_who_can_do_without_does_not_wait_for_an_overloaded_server(endpoint: Endpoint) -> None:
    with HttpModel(endpoint.url) as model:
        endpoint.answers = [(503, b"later")] * 5
        with pytest.raises(RemoteUnavailable, match="answered 503: later"):
            model.run_within({"x": np.ones(1, dtype=np.float32)}, 30.0)
    assert endpoint.calls == MAX_TRIES


def test_a_call_that_was_computed_is_not_made_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(500, b'{"error": "broken"}'), (200, RIGHT)]
    with HttpModel(endpoint.url) as model, pytest.raises(RunError, match="answered 500: broken"):
        model([1.0])
    assert endpoint.calls == 1


def test_the_time_of_a_call_ends(endpoint: Endpoint) -> None:
    endpoint.answers, endpoint.delay_s = [(200, RIGHT)], 5.0
    started_s = time.monotonic()
    with HttpModel(endpoint.url, timeout_s=0.3) as model, pytest.raises(TimedOut, match="did not answer within"):
        model([1.0])
    assert time.monotonic() - started_s < 4.0
    endpoint.answers.append((200, RIGHT))


def test_an_answer_that_drips_ends_too(endpoint: Endpoint) -> None:
    with HttpModel(endpoint.url) as model:
        endpoint.answers, endpoint.drip_s = [(200, RIGHT)], 0.05
        with pytest.raises(TimedOut, match="did not answer within"):
            model.run_within({"x": np.ones(1, dtype=np.float32)}, 0.2)
        endpoint.answers, endpoint.drip_s = [(200, RIGHT)], 0.0
        assert model([1.0])["y"].tolist() == [2.5]


def test_one_whose_signature_is_known_is_not_asked_before_its_first_call(endpoint: Endpoint) -> None:
    for url in ("http://127.0.0.1:9/v2/models/m", "grpc://127.0.0.1:9/m"):
        with open_remote(url, signature=Endpoint.signature) as model, pytest.raises(RemoteUnavailable):
            model.run_within({"x": np.ones(1, dtype=np.float32)}, 30.0)
    endpoint.answers = [(200, RIGHT)]
    with open_remote(endpoint.url, signature=Endpoint.signature) as model:
        assert model([1.0])["y"].tolist() == [2.5]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[]", "a JSON object is expected"),
        (b"{}", "answered without a list of outputs"),
        (b'{"outputs": []}', "answered without output 'y'"),
        (RIGHT.replace(b"FP32", b"INT64"), "output y is INT64"),
        (RIGHT.replace(b"[1]", b"[3]"), r"does not hold a FP32 of shape \[3\]"),
        (RIGHT.replace(b"[1]", b"[-1]"), "does not hold a FP32"),
        (RIGHT.replace(b"[2.5]", b'["a"]'), "does not hold a FP32"),
        (RIGHT.replace(b"[1]", b"[1e300]"), "does not hold a FP32"),
        (RIGHT.replace(b"[1]", b"[9999999999999]"), "does not hold a FP32"),
    ],
)
def test_an_answer_of_another_form(endpoint: Endpoint, body: bytes, sentence: str) -> None:
    endpoint.answers = [(200, body)]
    with HttpModel(endpoint.url) as model, pytest.raises((RunError, InputError), match=sentence):
        model([1.0])
