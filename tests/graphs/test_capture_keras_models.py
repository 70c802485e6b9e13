"""Capture of Keras models with several inputs, with a ``call`` of their own, and with layers made of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slotool.graphs.capture import capture_keras


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    return pytest.importorskip("keras")


SIZES = {"zoom": 3, "angle": 8, "middle": 5}


def _mixed(keras: Any, tensors: dict[str, Any]) -> Any:
    """The last that is declared lies farthest from the output, so Keras would run it first."""
    dense, joined = keras.layers.Dense, keras.layers.Concatenate
    deep = dense(4)(dense(4)(tensors["middle"]))
    return dense(2)(joined()([joined()([deep, dense(4)(tensors["angle"])]), tensors["zoom"]]))


@pytest.mark.parametrize("form", ["list", "reversed", "dict", "nested"])
def test_inputs_are_in_the_order_of_the_model(keras: Any, form: str) -> None:
    tensors = {name: keras.Input((size,), name=name) for name, size in SIZES.items()}
    given = {
        "list": list(tensors.values()),
        "reversed": list(tensors.values())[::-1],
        "dict": tensors,
        "nested": [tensors["middle"], [tensors["zoom"], tensors["angle"]]],
    }[form]
    model = keras.Model(given, _mixed(keras, tensors))
    graph = capture_keras(model)
    assert [operator.name for operator in graph.inputs] == [tensor.name for tensor in model.inputs]
    assert [operator.shape for operator in graph.inputs] == [tuple(tensor.shape)[1:] for tensor in model.inputs]
    wanted = {"list": list(SIZES), "reversed": list(SIZES)[::-1], "dict": sorted(SIZES)}
    assert [operator.name for operator in graph.inputs] == wanted.get(form, ["middle", "zoom", "angle"])


def test_an_input_that_nothing_takes_keeps_its_place(keras: Any) -> None:
    unused, used = keras.Input((3,), name="unused"), keras.Input((4,), name="used")
    graph = capture_keras(keras.Model([unused, used], keras.layers.Dense(2)(used)))
    assert [operator.name for operator in graph.inputs] == ["unused", "used"]


def test_a_nested_model_of_several_inputs_gets_each_where_it_belongs(keras: Any) -> None:
    def inputs() -> dict[str, Any]:
        return {name: keras.Input((size,), name=name) for name, size in SIZES.items()}

    inside, outside = inputs(), inputs()
    inner = keras.Model(list(inside.values()), _mixed(keras, inside))
    graph = capture_keras(keras.Model(list(outside.values())[::-1], inner(list(outside.values()))))
    flat = capture_keras(keras.Model(list(inside.values())[::-1], _mixed(keras, inside)))
    assert [operator.name for operator in graph.inputs] == ["middle", "angle", "zoom"]
    assert graph.flops == flat.flops


@pytest.mark.parametrize("form", ["dict", "list", "one"])
def test_a_model_with_a_call_of_its_own_has_the_shapes_it_was_called_with(keras: Any, form: str) -> None:
    class Sum(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = keras.layers.Dense(4, activation="relu"), keras.layers.Dense(4)
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, inputs: Any, training: bool = True) -> Any:
            z, a = {"dict": lambda: (inputs["z"], inputs["a"]), "list": lambda: inputs, "one": lambda: [inputs] * 2}[
                form
            ]()
            return self.dropout(self.first(z) + self.second(a), training=training)

    z, a = np.zeros((2, 3), np.float32), np.zeros((2, 5), np.float32)
    model = Sum()
    model({"dict": {"z": z, "a": a}, "list": [z, a], "one": z}[form])
    graph = capture_keras(model)
    # Keras sorts a dictionary's inputs.
    wanted = {
        "dict": [("a", (5,)), ("z", (3,))],
        "list": [("input_0", (3,)), ("input_1", (5,))],
        "one": [("input", (3,))],
    }
    assert [(operator.name, operator.shape) for operator in graph.inputs] == wanted[form]
    assert [operator.op for operator in graph.operators if operator.op != "InputLayer"] == ["Dense", "Dense", "Add"]
    assert graph.weights == model.count_params()


def test_a_text_model_with_a_call_of_its_own_takes_whole_numbers(keras: Any) -> None:
    layers = keras.layers

    class Text(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = layers.Embedding(50, 6), layers.LSTM(8, return_sequences=True)
            self.attention, self.pool, self.head = (
                layers.MultiHeadAttention(2, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3),
            )

        def call(self, tokens: Any) -> Any:
            x = self.lstm(self.embedding(tokens))
            return self.head(self.pool(x + self.attention(x, x)))

    model = Text()
    model(np.zeros((2, 7), np.int32))
    graph = capture_keras(model)
    assert not graph.unknown
    assert graph.weights == model.count_params()
    assert graph.inputs[0].attributes["dtype"] == "int32"
    (lstm,) = (operator for operator in graph.operators if operator.op == "LSTM")
    assert lstm.flops == 7 * 2 * (6 + 8) * 4 * 8


def test_recurrent_layers_have_the_weights_that_keras_counts(keras: Any) -> None:
    layers = keras.layers
    x = keras.Input((6, 3))
    for layer, op, shape in (
        (layers.LSTM(4), "LSTM", (4,)),
        (layers.LSTM(4, return_sequences=True, use_bias=False), "LSTM", (6, 4)),
        (layers.GRU(4), "GRU", (4,)),
        (layers.GRU(4, reset_after=False), "GRU", (4,)),
        (layers.SimpleRNN(4), "SimpleRNN", (4,)),
        (layers.Bidirectional(layers.LSTM(4)), "LSTM", (8,)),
        (layers.Bidirectional(layers.GRU(4, return_sequences=True)), "GRU", (6, 8)),
    ):
        model = keras.Model(x, layer(x))
        graph = capture_keras(model)
        assert [operator.op for operator in graph.operators][1] == op
        assert (graph.weights, graph.output_shape) == (model.count_params(), shape)


def test_masks_of_padded_texts_are_no_inputs(keras: Any) -> None:
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    graphs = []
    for masked in (False, True):
        x = layers.Embedding(20, 8, mask_zero=masked)(tokens)
        x = layers.Bidirectional(layers.GRU(4, return_sequences=True))(x)
        seen = {"attention_mask": keras.ops.ones((1, 6, 6), "bool")} if masked else {}
        x = layers.GlobalAveragePooling1D()(x + layers.MultiHeadAttention(2, 4)(x, x, **seen))
        graphs.append(capture_keras(keras.Model(tokens, layers.Dense(3)(x))))
    assert not graphs[1].unknown
    assert graphs[0].id == graphs[1].id


def test_a_layer_made_of_layers_is_what_it_is_made_of(keras: Any) -> None:
    layers = keras.layers

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm = layers.MultiHeadAttention(2, 4), layers.LayerNormalization()
            self.mlp = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(8)])

        def build(self, shape: Any) -> None:
            self.shift = self.add_weight(shape=(1, 1, 8))

        def call(self, x: Any, gate: Any = None, training: bool = False) -> Any:
            x = self.norm(x + self.attention(x, x))
            return self.mlp(x * gate) + self.shift

    x, gate = keras.Input((6, 8), name="x"), keras.Input((6, 8), name="gate")
    model = keras.Model([gate, x], Block()(Block()(x, gate=gate), gate=gate))
    graph = capture_keras(model)
    assert not graph.unknown
    assert [operator.op for operator in graph.operators].count("ScaledDotProductAttention") == 2
    assert graph.weights == model.count_params()
    assert [operator.name for operator in graph.inputs] == ["gate", "x"]


def test_a_layer_whose_call_takes_no_symbolic_inputs_is_kept_by_its_name(keras: Any) -> None:
    class Opaque(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def build(self, shape: Any) -> None:
            self.dense.build(shape)

        def call(self, x: Any) -> Any:
            return self.dense(keras.ops.convert_to_tensor(abs(x.numpy())))

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], 4)

    x = keras.Input((3,))
    model = keras.Model(x, Opaque()(x))
    graph = capture_keras(model)
    assert [(operator.op, operator.weights) for operator in graph.unknown] == [("keras.Opaque", 16)]
