"""Versions of one service whose files call tensors otherwise, or compute a fixed number of examples in a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slotool as api
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.errors import InputError
from slotool.models.adapters.factory import FunctionModel
from slotool.models.model import BatchedModel, RenamedModel, Renames, batched
from slotool.models.signature import Signature
from tests.conftest import Slotool

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(4, 3)).astype(np.float32)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = (X @ WEIGHTS).argmax(axis=1)


def write(path: Path, given: str, made: str, batch: int | str = "n", *, softmax: bool = False) -> None:
    """The same network under other names of its tensors, with a softmax at its end or without."""
    sides = ((given, [batch, 4]), (made, [batch, 3]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sides)
    weights = [numpy_helper.from_array(WEIGHTS, "w")]
    product = "product" if softmax else made
    nodes = [helper.make_node("MatMul", [given, "w"], [product])]
    nodes += [helper.make_node("Softmax", [product], [made])] * softmax
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=X, y=Y)
    write(tmp_path / "a.onnx", "x", "scores")
    write(tmp_path / "b.onnx", "input", "out", batch=1)
    write(tmp_path / "c.onnx", "input", "probabilities", batch=3)
    return tmp_path


def test_the_only_tensor_of_another_name_is_matched_and_said(here: Path, slotool: Slotool) -> None:
    command = "family a=a.onnx b=b.onnx --data data.npz -o f --repeats 1 --latency l.parquet --json"
    made = slotool(*command.split())
    assert made.exit_code == 0, made.stderr
    assert made.document["renamed"] == {"b": {"inputs": {"input": "x"}, "outputs": {"out": "scores"}}}
    assert [row["accuracy"] for row in made.document["versions"]] == [1.0, 1.0]
    assert "version b: its input 'input' is 'x', its output 'out' is 'scores' here" in " ".join(made.stderr.split())
    family = load_model("f")
    assert isinstance(family, Family)
    assert family.signatures["b"].inputs[0].shape == (1, 4)
    for point in family.points:
        outputs = family.respond(X[:5], point)
        np.testing.assert_allclose(outputs["scores"], X[:5] @ WEIGHTS, rtol=1e-5)


def test_what_may_be_another_tensor_is_renamed_where_that_is_asked(here: Path, slotool: Slotool) -> None:
    command = "family a=a.onnx c=c.onnx --data data.npz -o f --repeats 1 --json --scores logits"
    renamed = slotool(*command.split(), "--rename", "c:probabilities=scores")
    assert renamed.exit_code == 0, renamed.stderr
    assert renamed.document["renamed"]["c"]["outputs"] == {"probabilities": "scores"}
    assert renamed.document["versions"][0]["accuracy"] == 1.0
    np.testing.assert_allclose(load_model("f").respond(X, load_model("f").points[0])["scores"], X @ WEIGHTS, rtol=1e-5)
    for text, sentence in (
        ("c:probabilities", "is not VERSION:TENSOR=NAME, such as"),
        ("z:probabilities=x", "rename: no version is called 'z'; there are a, c"),
        ("c:odds=x", "version c (c.onnx): no tensor is called 'odds'; there are input, probabilities"),
    ):
        said = slotool(*command.split(), "--force", "--rename", text)
        assert sentence in " ".join(said.stderr.replace("│", " ").split())
        assert said.exit_code == 2


@pytest.mark.parametrize(("softmax", "name"), [(True, "dense_1"), (True, "logits"), (False, "prob"), (False, "scores")])
def test_what_an_output_holds_is_read_from_its_values(here: Path, softmax: bool, name: str) -> None:
    write(here / "k.onnx", "input", name, softmax=softmax)
    made = api.family({"k": "k.onnx"}, "data.npz", repeats=1)
    scores = np.exp(X @ WEIGHTS)
    confidences = np.sort(scores.max(axis=1) / scores.sum(axis=1))
    np.testing.assert_allclose(np.sort(made.outcomes.matrix("confidence")[:, 0]), confidences, rtol=1e-5)
    assert made.outcomes.matrix("error").mean() == 0.0


def test_probabilities_and_logits_are_no_versions_of_one_service(here: Path, slotool: Slotool) -> None:
    write(here / "k.onnx", "input", "dense_1", softmax=True)
    for more in ((), ("--scores", "logits"), ("--rename", "k:dense_1=scores")):
        refused = slotool("family", "a=a.onnx", "k=k.onnx", "--data", "data.npz", "-o", "f", *more)
        assert refused.exit_code == 2
        assert "dense_1" in refused.stderr
        assert "probabilities" in refused.stderr
    assert not (here / "f").exists()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_calls_of_a_fixed_size_are_filled_up(count: int) -> None:
    sizes: list[int] = []

    def doubled(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x))
        return 2 * x

    model = batched(FunctionModel(doubled, Signature.parse("x=FP32[3,2] -> y=FP32[3,2]")))
    assert isinstance(model, BatchedModel)
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    np.testing.assert_array_equal(model({"x": x})["y"], 2 * x)
    np.testing.assert_array_equal(model.run_within({"x": x}, 1.0)["y"], 2 * x)
    assert set(sizes) <= {3}


@pytest.mark.parametrize("signature", ["x=FP32[1,2] -> y=FP32[]", "x=FP32[2,2] -> y=FP32[1]", "x=FP32[0] -> y=FP32[0]"])
def test_tensors_that_count_no_examples_are_refused(signature: str) -> None:
    with pytest.raises(InputError, match="its first dimension must be free, or fixed alike in all tensors"):
        batched(FunctionModel(lambda x: x, Signature.parse(signature)))


def test_two_tensors_of_one_name_are_refused() -> None:
    model = FunctionModel(lambda **given: given, Signature.parse("a=FP32[-1] b=FP32[-1] -> a=FP32[-1] b=FP32[-1]"))
    swapped = RenamedModel(model, Renames({"a": "b", "b": "a"}, {}))
    assert {name: values.tolist() for name, values in swapped({"a": [1.0], "b": [2.0]}).items()} == {"a": [2], "b": [1]}
    with pytest.raises(InputError, match="two input tensors are called 'b'"):
        RenamedModel(model, Renames({"a": "b"}, {}))


def test_ordinary_keras_models_are_versions_of_one_service(here: Path) -> None:
    keras = pytest.importorskip("keras")

    def network(units: int, outputs: Any = None) -> Any:
        inputs = keras.Input((4,))
        last = keras.layers.Dense(3, activation="softmax")(keras.layers.Dense(units)(inputs))
        return keras.Model(inputs, last if outputs is None else outputs(last))

    layers = keras.layers
    keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(3, name="probabilities")]).save("small.keras")
    keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(3, name="probabilities")]).save("large.keras")
    made = api.family({"small": "small.keras", "large": "large.keras"}, "data.npz", repeats=1, out="f")
    assert [tensor["name"] for tensor in made.document["outputs"]] == ["probabilities"]
    again = load_model("f")
    assert isinstance(again, Family)
    assert set(again.respond(X[:2], again.points[0])) == {"probabilities"}
    network(4).save("one.keras")
    network(8).save("two.keras")
    pair = api.family({"one": "one.keras", "two": "two.keras"}, "data.npz", repeats=1)
    assert set(pair.document["renamed"]["two"]["outputs"].values()) == {pair.document["outputs"][0]["name"]}
    network(4, lambda last: {"odds": last, "half": last / 2}).save("named.keras")
    named = api.family({"named": "named.keras"}, "data.npz", repeats=1, output="odds")
    assert {tensor["name"] for tensor in named.document["outputs"]} == {"odds", "half"}


def test_a_version_that_answers_the_first_of_a_batch_only_is_refused(here: Path, slotool: Slotool) -> None:
    """It would be right of each example asked alone, and leave out the rest of every batch that is served."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one"], ["first"]),
        helper.make_node("MatMul", ["first", "w"], ["scores"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 4]), ("scores", ["m", 3]))
    )
    constants = [numpy_helper.from_array(np.array([at]), name) for name, at in (("zero", 0), ("one", 1))]
    graph = helper.make_graph(nodes, "first", [x], [y], [*constants, numpy_helper.from_array(WEIGHTS, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), here / "first.onnx")
    command = "family a=a.onnx b=first.onnx --data data.npz -o f --repeats 1"
    refused = slotool(*command.split())
    assert refused.exit_code == 2
    said = "version=b cannot run: output scores has shape [1, 3], expected one row for each of the 2 examples"
    assert said in " ".join(refused.stderr.split())
    assert not (here / "f").exists()
