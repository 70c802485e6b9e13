"""Capture of Keras models that people write and have not built: by the shape that is said, and from a file of code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.errors import GraphError
from slotool.graphs.capture.sources import Source, captured


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    return pytest.importorskip("keras")


def _captured(model: Any, **said: Any) -> Any:
    (graph,) = slotool.capture(model, progress=None, **said).graphs
    assert not graph.unknown
    assert graph.weights == model.count_params()
    return graph


def test_a_model_that_is_not_built_is_built_by_the_shape_that_is_said(keras: Any) -> None:
    layers = keras.layers

    class Residual(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = layers.Dense(16), layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.last(keras.ops.relu(self.first(x)) + x)

    assert _captured(Residual(), input_shape=(16,)).matrix_flops == 2 * 16 * (16 + 3)
    assert _captured(keras.Sequential([layers.Dense(5)]), input_shape=(7,)).matrix_flops == 2 * 7 * 5
    with pytest.raises(GraphError, match=r"is not built, .*--input-shape 28,28,1"):
        slotool.capture(Residual(), progress=None)
    with pytest.raises(GraphError, match=r"does not run on inputs of \[9\] and float32.*9"):
        slotool.capture(Residual(), input_shape=(9,), progress=None)


def test_several_inputs_are_said_by_the_names_of_keys_or_of_arguments(keras: Any) -> None:
    layers, ops = keras.layers, keras.ops

    class OfKeys(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense, self.head = layers.Embedding(50, 6), layers.Dense(6), layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return {"score": self.head(ops.mean(self.embedding(inputs["ids"]), 1) + self.dense(inputs["facts"]))}

    class OfArguments(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.dense, self.head = layers.Embedding(50, 6), layers.Dense(6), layers.Dense(2)

        def call(self, ids: Any, facts: Any) -> Any:
            return self.head(ops.mean(self.embedding(ids), 1) + self.dense(facts))

    for model in (OfKeys(), OfArguments()):
        graph = _captured(model, input_shape={"ids": (9,), "facts": (4,)})
        assert {op.name: op.attributes.get("dtype") for op in graph.inputs} == {"ids": "int32", "facts": None}
        assert graph.matrix_flops == 2 * (4 * 6 + 6 * 2)
    with pytest.raises(GraphError, match=r"several inputs, .*--input-shape 'ids=28;facts=28'"):
        slotool.capture(OfArguments(), input_shape=(4,), progress=None)


def test_whole_numbers_that_no_embedding_takes_are_said(keras: Any) -> None:
    class Rows(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            if inputs["at"].dtype == "float32":
                raise ValueError("places are whole numbers")
            places = keras.ops.repeat(inputs["at"][..., None], 5, axis=-1)
            return self.dense(keras.ops.take_along_axis(inputs["x"], places, axis=1))

    shapes = {"x": (8, 5), "at": (4,)}
    with pytest.raises(GraphError, match=r"say the type, as --input-dtype int32"):
        slotool.capture(Rows(), input_shape=shapes, progress=None)
    graph = _captured(Rows(), input_shape=shapes, input_dtype={"at": "int32"})
    assert graph.matrix_flops == 2 * 4 * 5 * 3
    functional = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(GraphError, match=r"says itself of what element type its inputs are"):
        slotool.capture(functional, input_dtype="int32", progress=None)


def test_the_order_of_axes_is_that_of_keras(keras: Any) -> None:
    free = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(2, 3)])
    with pytest.raises(GraphError, match=r"not \[3, 8, 9\]; sizes are in the order that Keras has them, as 8,9,3"):
        slotool.capture(free, input_shape=(3, 8, 9), progress=None)
    assert _captured(free, input_shape=(8, 9, 3)).matrix_flops == 2 * 6 * 7 * 27 * 2


CODE = """
import keras
from torch import nn


def small(width=4):
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(width)])


class Free(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def of_torch():
    return nn.Linear(2, 2)
"""


def test_the_command_line_takes_functions_that_make_keras_models(slotool: Any, tmp_path: Path, keras: Any) -> None:
    (tmp_path / "keras_nets.py").write_text(CODE)
    small, free = f"{tmp_path}/keras_nets.py:small", f"{tmp_path}/keras_nets.py:Free"
    done = slotool("capture", "--keras", small, "--factory-arguments", "width=9", "--json")
    assert done.document["flops"] == 2 * 6 * 9
    done = slotool("capture", "--keras", small, "--keras", free, "--input-shape", "6", "--json")
    assert [each["flops"] for each in done.document["graphs"]] == [2 * 6 * 4, 2 * 6 * 3]
    done = slotool("predict", "--keras", small, "--backend", "keras", "--json")
    assert done.exit_code == 0
    for source, sentence in (
        (Source("torch", small, (6,)), f"a Keras model is captured by --keras {small}"),
        (
            Source("keras", f"{tmp_path}/keras_nets.py:of_torch"),
            "makes no keras.Model, but something of type Linear: give it by --torch",
        ),
        (Source("keras", free), "is not built"),
    ):
        with pytest.raises(GraphError) as caught:
            captured(source)
        assert sentence in str(caught.value)
