"""Datatypes that are cast, of requests and between versions of a family, and names of classes as answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from slotool.elastic.family import Family
from slotool.elastic.versions import open_versions
from slotool.errors import InputError
from slotool.models import Classification
from slotool.models.adapters.factory import FunctionModel
from slotool.models.signature import Signature, TensorSpec, is_cast
from slotool.serving.operations.sources import Sources
from tests.serving.live_server import HTTP, LiveServer, live_server
from tests.serving.onnx_files import save

# As KServe's guide to scikit-learn has it.
SAMPLE = {
    "inputs": [
        {"name": "input-0", "shape": [2, 4], "datatype": "FP32", "data": [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]]}
    ]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from skops import io  # loads all of scikit-learn, in each worker that collects this file

    folder = tmp_path_factory.mktemp("casts")
    x, classes = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[classes]
    io.dump(LogisticRegression(max_iter=500).fit(x, names), folder / "iris.skops")
    io.dump(LinearSVC().fit(x, names), folder / "svc.skops")
    for name, datatype in (("half", TensorProto.FLOAT16), ("whole", TensorProto.INT8)):
        tensor = [(name, datatype, ["n", 2])]
        save(folder / f"{name}.onnx", [helper.make_node("Identity", [name], ["y"])], tensor,
             [("y", datatype, ["n", 2])])  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    names = ("iris.skops", "svc.skops", "half.onnx", "whole.onnx")
    with live_server(list(Sources(tuple(folder / name for name in names)).load(print).values())) as server:
        yield server


def infer(server: LiveServer, model: str, body: dict[str, Any]) -> Any:
    return HTTP.post(f"{server.url}/v2/models/{model}/infer", json=body)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "BF16"])
@pytest.mark.parametrize("name", ["input-0", "features"])
def test_kserves_sample_of_scikit_learn_is_answered(server: LiveServer, datatype: str, name: str) -> None:
    body = {"inputs": [{**SAMPLE["inputs"][0], "datatype": datatype, "name": name}]}
    (output,) = infer(server, "iris", body).json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("probabilities", "FP64", [2, 3])
    asked = {**body, "outputs": [{"name": "class"}, {"name": "label"}]}
    named, label = infer(server, "iris", asked).json()["outputs"]
    assert (named["datatype"], named["data"], label["data"]) == ("BYTES", ["versicolor"] * 2, [1, 1])


ROW = {"name": "predict", "shape": [1, 4], "datatype": "FP32", "data": [[6.8, 2.8, 4.8, 1.4]]}
PEOPLE = [
    {
        "name": "First Name",
        "datatype": "BYTES",
        "parameters": {"content_type": "str"},
        "shape": [2],
        "data": ["J", "M"],
    },
    {"name": "Age", "datatype": "INT32", "shape": [2], "data": [34, 22]},
]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"inputs": [ROW]}, 200, ""),
        ({"parameters": {"content_type": "np"}, "inputs": [{**ROW, "parameters": {"content_type": "np"}}]}, 200, ""),
        (
            {"id": "7", "inputs": [ROW], "outputs": [{"name": "probabilities", "parameters": {"content_type": "np"}}]},
            200,
            "",
        ),
        ({"inputs": [ROW], "outputs": [{"name": "predict"}]}, 400, "predict"),
        ({"parameters": {"content_type": "pd"}, "inputs": PEOPLE}, 400, "input"),
        ({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}, 400, "BYTES"),
    ],
)
def test_samples_of_mlserver_are_answered_or_rejected_with_the_reason(
    server: LiveServer, body: dict[str, Any], status: int, said: str
) -> None:
    answer = infer(server, "iris", body)
    assert answer.status_code == status, answer.text
    assert said in answer.json().get("error", "")
    assert answer.json().get("id") == (body.get("id") if status == 200 else None)


def test_class_names_stand_in_the_metadata(server: LiveServer) -> None:
    document = HTTP.get(f"{server.url}/v2/models/iris").json()
    assert document["parameters"] == {"classes": ["setosa", "versicolor", "virginica"]}
    assert "parameters" not in HTTP.get(f"{server.url}/v2/models/half").json()
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        assert client.get_model_metadata("iris").inputs[0].name == "features"


def test_a_classifier_can_be_told_what_was_right(server: LiveServer) -> None:
    answer = infer(server, "svc", {**SAMPLE, "outputs": [{"name": "label"}]}).json()
    label = {"request": answer["parameters"]["request"], "labels": ["versicolor", "setosa"]}
    told = HTTP.post(f"{server.url}/v2/models/svc/feedback", json=label)
    assert told.json()["labelled"] == 2, told.text


@pytest.mark.parametrize(
    ("model", "datatype", "data", "expected"),
    [
        ("half", "FP32", [0.1, 1e-9], [float(np.float16(0.1)), 0.0]),
        ("half", "FP64", [0.1, None], [float(np.float16(0.1)), None]),
        ("whole", "INT64", [-128, 127], [-128, 127]),
        ("whole", "UINT32", [0, 127], [0, 127]),
    ],
)
def test_values_are_rounded_to_the_models_precision(
    server: LiveServer, model: str, datatype: str, data: list[Any], expected: list[Any]
) -> None:
    tensor = {"name": model, "shape": [1, 2], "datatype": datatype, "data": data}
    answer = infer(server, model, {"inputs": [tensor]}).json()
    np.testing.assert_allclose(np.array(answer["outputs"][0]["data"], float), np.array(expected, float), rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "datatype", "data"),
    [
        ("half", "FP32", [1e5, 0.0]),
        ("half", "INT32", [1, 2]),
        ("whole", "INT64", [128, 0]),
        ("whole", "FP32", [1.0, 2.0]),
        ("whole", "BOOL", [True, False]),
        ("whole", "NONE", [1, 2]),
    ],
)
def test_values_that_would_change_are_rejected(server: LiveServer, model: str, datatype: str, data: list[Any]) -> None:
    tensor = {"name": model, "shape": [1, 2], "datatype": datatype, "data": data}
    answer = infer(server, model, {"inputs": [tensor]})
    assert answer.status_code == 400
    assert model in answer.json()["error"]


def test_binary_and_typed_contents_are_cast_too(server: LiveServer) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        tensor = triton_grpc.InferInput("whole", [1, 2], "INT32")
        tensor.set_data_from_numpy(np.array([[-3, 4]], np.int32))
        assert client.infer("whole", [tensor]).as_numpy("y").tolist() == [[-3, 4]]


def test_datatypes_that_are_cast() -> None:
    assert is_cast("FP64", "BF16")
    assert is_cast("UINT8", "INT64")
    assert is_cast("BYTES", "BYTES")
    for sent, wanted in (("INT8", "FP32"), ("FP32", "INT8"), ("BOOL", "INT8"), ("BYTES", "FP32"), (None, "FP32"),
                         ("X", "INT8")):  # fmt: skip
        assert not is_cast(sent, wanted)
    with pytest.raises(InputError, match="beyond FP16"):
        TensorSpec("x", "FP16", (-1,)).cast(np.array([1e6]))
    assert np.isinf(TensorSpec("x", "FP16", (-1,)).cast(np.array([np.inf]))).all()


def family_of(*signatures: str) -> Family:
    """Versions that each give their input's mean of every row as both scores, and check its datatype."""

    def model(number: int, text: str) -> FunctionModel:
        signature = Signature.parse(text)

        def compute(x: np.ndarray) -> np.ndarray:
            assert x.dtype == signature.inputs[0].dtype
            return np.repeat(x.mean(axis=1, keepdims=True), 2, axis=1).astype(signature.outputs[0].dtype)

        return FunctionModel(compute, signature, name=f"v{number}")

    versions = open_versions({f"v{number}": model(number, text) for number, text in enumerate(signatures)}, 1)
    return Family("mixed", versions, Classification("y"), ("a", "b"), None)


def test_models_of_other_datatypes_are_one_family() -> None:
    family = family_of("x=FP64[-1,2] -> y=FP64[-1,2]", "x=FP32[-1,2] -> y=FP32[-1,2]")
    assert [str(spec) for spec in (*family.signature.inputs, *family.signature.outputs)] == ["FP64[-1, 2]"] * 2
    x = np.array([[0.1, 0.3]])
    for point, precision in zip(family.points, (1e-16, 1e-7), strict=True):
        outputs = family.respond(x, point)
        assert outputs["y"].dtype == np.float64
        np.testing.assert_allclose(outputs["y"], 0.2, atol=precision)
    assert family.checks_inputs
    with pytest.raises(InputError, match="beyond FP32"):
        family.check_inputs({"x": np.array([[1e300, 0.0]])})


def test_whole_numbers_and_floating_point_numbers_are_none() -> None:
    with pytest.raises(InputError, match="none of the same service"):
        family_of("x=INT64[-1,2] -> y=FP32[-1,2]", "x=FP32[-1,2] -> y=FP32[-1,2]")
    with pytest.raises(InputError, match="no datatype holds"):
        family_of("x=INT64[-1,2] -> y=FP32[-1,2]", "x=UINT64[-1,2] -> y=FP32[-1,2]")


def test_a_scikit_learn_and_an_onnx_model_are_one_family(folder: Path) -> None:
    shapes = [("features", TensorProto.FLOAT, ["n", 4])], [("probabilities", TensorProto.FLOAT, ["n", 3])]
    slope = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("v", TensorProto.FLOAT, [4, 3], range(12)))
    nodes = [slope, helper.make_node("MatMul", ["features", "w"], ["z"]),
             helper.make_node("Softmax", ["z"], ["probabilities"])]  # fmt: skip
    save(folder / "linear.onnx", nodes, *shapes)
    locations = {"linear": str(folder / "linear.onnx"), "iris": str(folder / "iris.skops")}
    names = ("setosa", "versicolor", "virginica")
    family = Family(
        "both", open_versions(locations, 1), Classification("probabilities", scores="probabilities"), names, None
    )
    x = load_iris().data[:5]
    for point in family.points:
        np.testing.assert_allclose(family.respond(x, point)["probabilities"].sum(axis=1), 1.0, rtol=1e-5)
