"""Models of any signature are served under their own tensor names, to Triton's unmodified clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper

from slotool.models import Classification
from slotool.models.adapters.onnx import OnnxModel
from tests.serving.live_server import LiveServer, live_server
from tests.serving.wrapped_model import served_as_is


def text_classifier(path: Path) -> OnnxModel:
    """Two classes: sums of embeddings of the tokens that the mask keeps. INT64 [n, s] twice → logits FP32 [n, 2]."""
    weights = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
            helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kept", "last"], ["column"]),
            helper.make_node("Mul", ["embedded", "column"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "middle"], ["logits"], keepdims=0),
        ],
        "classifier",
        [tensor(name, TensorProto.INT64, ["n", "s"]) for name in ("input_ids", "attention_mask")],
        [tensor("logits", TensorProto.FLOAT, ["n", 2])],
        [
            onnx.numpy_helper.from_array(weights, "table"),
            onnx.numpy_helper.from_array(np.array([-1]), "last"),
            onnx.numpy_helper.from_array(np.array([1]), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return OnnxModel(path, threads=1)


IDS = np.array([[1, 2, 3], [4, 5, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    path = tmp_path_factory.mktemp("models") / "classifier.onnx"
    with live_server([served_as_is(text_classifier(path), Classification("logits"))]) as live:
        yield live


def given(client: Any, **arrays: np.ndarray) -> list[Any]:
    """Inputs for one of Triton's clients, in binary form."""
    made = []
    for name, array in arrays.items():
        made.append(client.InferInput(name, list(array.shape), "INT64"))
        made[-1].set_data_from_numpy(array)
    return made


def test_a_model_of_two_integer_inputs_answers_tritons_clients(live: LiveServer) -> None:
    expected = live.models["classifier"].model({"input_ids": IDS, "attention_mask": MASK})["logits"]
    for module, address in ((triton_http, live.address), (triton_grpc, live.grpc_address)):
        with module.InferenceServerClient(address) as client:
            answer = client.infer("classifier", given(module, attention_mask=MASK, input_ids=IDS))
            np.testing.assert_array_equal(answer.as_numpy("logits"), expected)
            assert answer.as_numpy("label") is None
            wanted = [module.InferRequestedOutput(name) for name in ("label", "confidence")]
            answer = client.infer("classifier", given(module, input_ids=IDS, attention_mask=MASK), outputs=wanted)
            assert answer.as_numpy("label").tolist() == expected.argmax(axis=1).tolist()
            assert answer.as_numpy("confidence").min() >= 0.5
