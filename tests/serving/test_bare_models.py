"""Files of models served as they are: their own tensors, over HTTP and gRPC, without data, task or artifact."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from slotool import progress
from slotool.elastic.bare_model import MAX_TRIAL_VALUES, BareModel
from slotool.elastic.loading import load_served
from slotool.models.adapters.factory import FunctionModel
from slotool.models.signature import Signature
from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
from slotool.serving.operations import sources
from slotool.serving.operations.sources import Sources
from tests.serving.live_server import HTTP, LiveServer, live_server
from tests.serving.onnx_files import save

Slotool = Callable[..., Any]
F, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    node = helper.make_node
    rows = ["n", 16]
    sums = [node("Add", ["a", "b"], ["sum"]), node("Sub", ["a", "b"], ["difference"])]
    save(folder / "simple.onnx", sums, [("a", I32, rows), ("b", I32, rows)],
         [("sum", I32, rows), ("difference", I32, rows)])  # fmt: skip
    found = [node("NonZero", ["x"], ["where"]), node("ReduceSum", ["x"], ["total"], keepdims=0)]
    save(folder / "detector.onnx", found, [("x", F, ["h", "w"])], [("where", I64, [2, "k"]), ("total", F, [])])
    axis = node("Constant", [], ["axis"], value=helper.make_tensor("v", I32, [], [0]))
    save(folder / "running.onnx", [axis, node("CumSum", ["x", "axis"], ["y"])], [("x", F, ["steps", 4])],
         [("y", F, ["steps", 4])])  # fmt: skip
    text = TensorProto.STRING
    save(folder / "text.onnx", [node("Identity", ["t"], ["u"])], [("t", text, ["n", 1])], [("u", text, ["n", 1])])
    half = TensorProto.FLOAT16
    save(folder / "scaled.onnx", [node("Mul", ["x", "by"], ["y"])], [("x", half, ["n", 2]), ("by", half, [])],
         [("y", half, ["n", 2])])  # fmt: skip
    weight = node("Constant", [], ["w"], value=helper.make_tensor("v", F, [1, 1, 9], [1.0] * 9))
    rows = ["n", 1, "length"]
    save(folder / "sound.onnx", [weight, node("Conv", ["x", "w"], ["y"])], [("x", F, rows)], [("y", F, rows)])
    sizes = node("Constant", [], ["sizes"], value=helper.make_tensor("v", I64, [3], [-1, 7, 11]))
    save(folder / "odd.onnx", [sizes, node("Reshape", ["x", "sizes"], ["y"])], [("x", F, ["n", "length"])],
         [("y", F, ["n", 7, 11])])  # fmt: skip
    save(folder / "fixed.onnx", [node("Relu", ["x"], ["y"])], [("x", F, [1, 3])], [("y", F, [1, 3])])
    return folder


REQUESTS: dict[str, dict[str, np.ndarray]] = {
    "simple": {"a": np.arange(32, dtype=np.int32).reshape(2, 16), "b": np.ones((2, 16), np.int32)},
    "detector": {"x": np.eye(5, 3, dtype=np.float32)},
    "running": {"x": np.ones((6, 4), np.float32)},
    "text": {"t": np.array([["a"], ["ü"]], np.object_)},
    "scaled": {"x": np.ones((3, 2), np.float16), "by": np.array(2.5, np.float16)},
    "fixed": {"x": np.array([[-1, 0, 2]], np.float32)},
}


def served(folder: Path, names: list[str]) -> list[Any]:
    return list(Sources(tuple(folder / f"{name}.onnx" for name in names)).load(print).values())


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with live_server(served(folder, list(REQUESTS))) as server:
        yield server


def test_a_model_that_takes_long_to_load_is_named_before_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, texts = threading.Event(), list[str]()

    def load_once_named(*source: Any, **how: Any) -> Any:
        assert named.wait(60)
        return load_served(*source, **how)

    def note(text: str) -> None:
        texts.append(text)
        named.set()

    monkeypatch.setattr(sources, "load_served", load_once_named)
    monkeypatch.setattr(progress, "SLOW_S", 0.01)
    assert list(Sources((folder / "simple.onnx",)).load(print, note)) == ["simple"]
    assert "simple.onnx" in texts[0]


def answers(client: Any, module: Any, model: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    inputs = []
    for name, array in arrays.items():
        inputs.append(module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer(model, inputs)
    names = [output["name"] if isinstance(output, dict) else output.name for output in outputs_of(result)]
    return {name: result.as_numpy(name) for name in names}


def outputs_of(result: Any) -> Any:
    response = result.get_response()
    return response["outputs"] if isinstance(response, dict) else response.outputs


@pytest.mark.parametrize("model", REQUESTS)
def test_triton_clients_get_what_the_file_computes(folder: Path, server: LiveServer, model: str) -> None:
    arrays = REQUESTS[model]
    reference = ReferenceEvaluator(str(folder / f"{model}.onnx"))
    expected = dict(zip(reference.output_names, reference.run(None, arrays), strict=True))
    if model == "text":
        expected = {"u": np.array([[b"a"], ["ü".encode()]], np.object_)}
    clients = (triton, server.address), (triton_grpc, server.grpc_address)
    for module, address in clients:
        with module.InferenceServerClient(address) as client:
            result = answers(client, module, model, arrays)
        assert result.keys() == expected.keys()
        for name, array in expected.items():
            assert result[name].dtype == np.asarray(array).dtype
            np.testing.assert_array_equal(result[name], array)


def test_metadata_is_the_files(server: LiveServer) -> None:
    stated = {name: HTTP.get(f"{server.url}/v2/models/{name}").json() for name in REQUESTS}
    assert stated["detector"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
    assert [tensor["shape"] for tensor in stated["detector"]["outputs"]] == [[2, -1], []]
    assert [tensor["shape"] for tensor in stated["scaled"]["inputs"]] == [[-1, 2], []]
    assert stated["fixed"]["inputs"][0]["shape"] == [1, 3]
    sizes = {name: HTTP.get(f"{server.url}/v2/models/{name}/config").json()["max_batch_size"] for name in REQUESTS}
    assert {name for name, size in sizes.items() if size} == {"simple", "text"}
    config = HTTP.get(f"{server.url}/v2/models/detector/config").json()
    assert config["input"][0]["dims"] == [-1, -1]


def test_only_independent_rows_share_a_call(folder: Path) -> None:
    assert load_served(str(folder / "simple.onnx")).max_batch
    assert not load_served(str(folder / "running.onnx")).max_batch
    assert load_served(str(folder / "running.onnx"), max_batch=4).max_batch == 4


def test_no_trial_takes_more_memory_than_there_may_be() -> None:
    tried: list[int] = []

    def needs_large(x: np.ndarray) -> np.ndarray:
        tried.append(x.size)
        raise ValueError("too small")

    wide = Signature.parse("x=FP32[-1,-1,-1,-1,-1,-1] -> y=FP32[-1]")
    assert not BareModel(FunctionModel(needs_large, wide)).max_batch
    assert max(tried) <= 2 * MAX_TRIAL_VALUES


def test_a_call_has_no_more_examples_than_the_model_takes(folder: Path) -> None:
    model = load_served(str(folder / "running.onnx"), max_batch=2)
    outputs = model.respond(np.ones((5, 4), np.float32), model.full)
    assert outputs["y"][:, 0].tolist() == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("make", [lambda: None, lambda: LocalInferenceEngine(1, 1, hang_s=10.0)])
def test_requests_at_once_are_answered_apart(folder: Path, make: Callable[[], InferenceEngine | None]) -> None:
    """Rows that depend on each other never meet those of another request, in this process and in workers."""
    with live_server(served(folder, ["running", "simple"]), engine=make()) as server:
        found: dict[int, list[float]] = {}

        def ask(steps: int) -> None:
            tensor = {"name": "x", "datatype": "FP32", "shape": [steps, 4], "data": [1.0] * 4 * steps}
            answer = HTTP.post(f"{server.url}/v2/models/running/infer", json={"inputs": [tensor]})
            found[steps] = answer.json()["outputs"][0]["data"][::4]

        threads = [threading.Thread(target=ask, args=(steps,)) for steps in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {steps: [float(step) for step in range(1, steps + 1)] for steps in range(1, 9)}


@pytest.mark.parametrize(
    ("model", "shape", "data"),
    [
        ("detector", [2, 2, 2], [0.0] * 8),
        ("detector", [2, -1], [0.0]),
        ("detector", [], [0.0]),
        ("fixed", [2, 3], [0.0] * 6),
        ("running", [2, 3], [0.0] * 6),
        ("simple", [0, 16], []),
    ],
)
def test_another_shape_is_rejected(server: LiveServer, model: str, shape: list[int], data: list[float]) -> None:
    entry = {"name": "a" if model == "simple" else "x", "datatype": "INT32" if model == "simple" else "FP32"}
    body = {"inputs": [{**entry, "shape": shape, "data": data}]}
    answer = HTTP.post(f"{server.url}/v2/models/{model}/infer", json=body)
    assert answer.status_code == 400
    assert "shape" in answer.json()["error"]


def status_of(server: LiveServer, model: str, shape: list[int]) -> int:
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "data": [1.0] * int(np.prod(shape))}
    return HTTP.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": [entry]}).status_code


@pytest.mark.parametrize("make", [lambda: None, lambda: LocalInferenceEngine(1, 1, hang_s=10.0)])
def test_an_input_too_short_for_the_model_is_a_bad_request(
    folder: Path, make: Callable[[], InferenceEngine | None]
) -> None:
    with live_server(served(folder, ["sound"]), engine=make()) as server:
        assert (status_of(server, "sound", [1, 1, 5]), status_of(server, "sound", [1, 1, 12])) == (400, 200)
        with (
            triton_grpc.InferenceServerClient(server.grpc_address) as client,
            pytest.raises(InferenceServerException) as refused,
        ):
            answers(client, triton_grpc, "sound", {"x": np.ones((1, 1, 5), np.float32)})
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("make", [lambda: None, lambda: LocalInferenceEngine(1, 1, hang_s=10.0)])
def test_a_model_that_no_made_up_input_suits_is_named_and_its_error_has_no_type_of_ours(
    folder: Path, make: Callable[[], InferenceEngine | None], capfd: pytest.CaptureFixture[str]
) -> None:
    with live_server(served(folder, ["odd"]), engine=make()) as server:
        assert "odd" in capfd.readouterr().err
        assert (status_of(server, "odd", [2, 5]), status_of(server, "odd", [2, 77])) == (500, 200)
        entry = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
        error = HTTP.post(f"{server.url}/v2/models/odd/infer", json={"inputs": [entry]}).json()["error"]
        assert "odd" in error
        assert "RunError" not in error


def test_compute_answers_the_first_output(server: LiveServer) -> None:
    body = np.array([-1, 0, 2], np.float32).tobytes()
    answer = HTTP.post(f"{server.url}/compute", content=body, headers={"Model": "fixed"})
    assert answer.json()["answer"] == [[0.0, 0.0, 2.0]]
    assert HTTP.post(f"{server.url}/compute", content=b"\0" * 4, headers={"Model": "fixed"}).status_code == 400


def test_labels_of_a_bare_model_are_refused(server: LiveServer) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    answer = HTTP.post(f"{server.url}/v2/models/fixed/infer", json=body).json()
    labelled = HTTP.post(
        f"{server.url}/v2/models/fixed/feedback", json={"request": answer["parameters"]["request"], "labels": [1]}
    )
    assert labelled.status_code == 400, labelled.text


def test_a_configuration_is_checked_without_serving(slotool: Slotool, folder: Path) -> None:
    (folder / "service.toml").write_text('[[models]]\nartifact = "simple.onnx"\n')
    checked = slotool("serve", "--config", folder / "service.toml", "--check-config", "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["models"]) == (0, {"simple": ["full"]})
    (folder / "service.toml").write_text('[[models]]\nartifact = "other.onnx"\n')
    refused = slotool("serve", "--config", folder / "service.toml", "--check-config")
    assert (refused.exit_code, "other.onnx" in refused.stderr) == (2, True)


@pytest.mark.parametrize("name", ["nosuch.onnx", "broken.onnx", "notes.md"])
def test_a_file_that_is_no_model_is_a_sentence(slotool: Slotool, tmp_path: Path, name: str) -> None:
    if name != "nosuch.onnx":
        (tmp_path / name).write_bytes(b"no model")
    finished = slotool("serve", tmp_path / name, "--port", 0)
    assert finished.exit_code == 2
    assert name in finished.stderr
    assert "Traceback" not in finished.stderr
