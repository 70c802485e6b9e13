"""The classification extension with Triton's own clients, and requests for what no server of fixed models does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from slotool.serving.protocol.tensors import MAX_TEXTS, classified
from slotool.serving.rejections import Rejection
from tests.serving.live_server import HTTP, POINTS, LiveServer, ThreeLinear, live_server, served

X = np.random.default_rng(3).random((2, 1, 2, 3)).astype(np.float32)
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server([served(ThreeLinear())]) as server:
        yield server


def asked(server: LiveServer, protocol: str, count: int, **options: Any) -> np.ndarray:
    """The logits, by their highest ``count``, as Triton's client gets them."""
    kind: ModuleType = PROTOCOLS[protocol]
    address = server.address if protocol == "http" else server.grpc_address
    tensor = kind.InferInput("input", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    with kind.InferenceServerClient(address) as client:
        outputs = [kind.InferRequestedOutput("logits", class_count=count, **options)]
        answer = client.infer("three", [tensor], outputs=outputs)
        assert answer.as_numpy("label") is None, "only named outputs are sent"
        found = answer.as_numpy("logits")
        assert found is not None
        return np.asarray(found)


@pytest.mark.parametrize(("protocol", "options"), [("http", {}), ("http", {"binary_data": False}), ("grpc", {})])
@pytest.mark.parametrize("count", [2, 9])
def test_clients_get_the_highest_scores(server: LiveServer, protocol: str, options: Any, count: int) -> None:
    logits = ThreeLinear().forward(X, POINTS[2])
    found = asked(server, protocol, count, **options)
    assert found.shape == (2, min(count, 4))
    for row, texts in zip(logits, found, strict=True):
        for text, index in zip(texts, row.argsort()[::-1], strict=False):
            score, at = (text if isinstance(text, str) else text.decode()).split(":")
            assert int(at) == index
            assert float(score) == pytest.approx(row[index], abs=1e-5)


def test_names_of_classes_come_with_them_and_order_is_certain() -> None:
    scores = np.array([[1, 3, 3], [np.nan, -1, 0]], np.float32)
    spec, texts = classified("y", scores, 2, ("cat", "dog", "cow"))
    assert spec.datatype == "BYTES"
    assert texts.tolist() == [[b"3.000000:1:dog", b"3.000000:2:cow"], [b"0.000000:2:cow", b"-1.000000:1:dog"]]
    # Names of something else are left out; whole numbers keep their order.
    assert classified("y", np.array([[7, 255]], np.uint8), 1, ("cat",))[1].tolist() == [[b"255.000000:1"]]
    with pytest.raises(Rejection, match=f"at most {MAX_TEXTS}"):
        classified("y", np.zeros((64, 1_025)), 2_000, ())


def test_names_of_a_model_s_classes_are_those_of_its_data(server: LiveServer) -> None:
    front = server.front
    named = replace(front.interfaces["three"], reading={"classes": ["ant", "bee", "cat", "dog"]})
    before = front.interfaces["three"]
    front.interfaces["three"] = named
    try:
        found = asked(server, "grpc", 1)
    finally:
        front.interfaces["three"] = before
    labels = dict(enumerate(["ant", "bee", "cat", "dog"]))
    for (text,) in found.tolist():
        _, index, label = text.decode().split(":")
        assert label == labels[int(index)]


def test_what_is_set_at_the_start_is_not_set_by_requests(server: LiveServer) -> None:
    for page, sentence in (
        ("logging", "what is logged is set when the server starts"),
        ("trace/setting", "what is traced is set when the server starts"),
        ("models/three/trace/setting", "what is traced is set when the server starts"),
    ):
        for ask in (HTTP.get, HTTP.post):
            answer = ask(f"{server.url}/v2/{page}")
            assert answer.status_code == 404
            assert sentence in answer.json()["error"]


def test_models_are_not_loaded_or_unloaded(server: LiveServer) -> None:
    for verb in ("load", "unload"):
        answer = HTTP.post(f"{server.url}/v2/repository/models/three/{verb}", json={})
        assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (
            404,
            "these models are fixed",
        )
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        for change in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="these models are fixed"):
                change("three")
