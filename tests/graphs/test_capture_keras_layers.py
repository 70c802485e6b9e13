"""Keras layers that are several operators, or what their ``call`` is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_keras
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.operator_cases import shared_backend

VIEWS = ("InputLayer", "Constant", "Transpose", "Reshape", "Slice", "Expand")


@pytest.fixture(scope="module")
def keras() -> Any:
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    return pytest.importorskip("keras")


def costs(graph: OperatorGraph) -> list[str]:
    return [operator.op for operator in graph.operators if operator.op not in VIEWS]


def runs(graph: OperatorGraph) -> bool:
    backend = shared_backend(TorchBackend)
    return bool(backend.array(backend.prepare(graph, 2)()).shape == (2, *graph.output_shape))


VOLUME, IMAGE, STEPS = (4, 6, 8, 3), (6, 8, 3), (6, 5)
# Layers of one input, the operators that they are, without views, and their products' FLOPs.
LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], list[str], int]] = {
    "Conv3D": (lambda k: k.Conv3D(5, 3, padding="same"), VOLUME, ["Conv3D"], 2 * 4 * 6 * 8 * 27 * 3 * 5),
    "Conv3DTranspose": (lambda k: k.Conv3DTranspose(2, 2, strides=2), VOLUME, ["Conv3DTranspose"], 2 * 192 * 8 * 6),
    "MaxPooling3D": (lambda k: k.MaxPooling3D(2), VOLUME, ["MaxPooling3D"], 0),
    "GlobalAveragePooling3D": (lambda k: k.GlobalAveragePooling3D(), VOLUME, ["Mean"], 0),
    "UpSampling3D": (lambda k: k.UpSampling3D(2), VOLUME, ["Resize"], 0),
    "ZeroPadding3D": (lambda k: k.ZeroPadding3D((1, 0, 2)), VOLUME, ["Pad"], 0),
    "Cropping3D": (lambda k: k.Cropping3D((1, 2, 1)), VOLUME, [], 0),
    "Conv1DTranspose": (
        lambda k: k.Conv1DTranspose(4, 3, strides=2, padding="same"),
        STEPS,
        ["Conv1DTranspose"],
        2 * 6 * 3 * 5 * 4,
    ),
    "DepthwiseConv1D": (lambda k: k.DepthwiseConv1D(3, depth_multiplier=2), STEPS, ["Conv1D"], 2 * 4 * 3 * 10),
    "SeparableConv1D": (lambda k: k.SeparableConv1D(7, 3), STEPS, ["Conv1D", "Conv1D"], 2 * 4 * (3 * 5 + 5 * 7)),
    "UpSampling1D": (lambda k: k.UpSampling1D(2), STEPS, ["Resize"], 0),
    "AdaptiveAveragePooling2D": (lambda k: k.AdaptiveAveragePooling2D(2), IMAGE, ["AdaptivePooling"], 0),
    "Resizing": (lambda k: k.Resizing(12, 16), IMAGE, ["Resize"], 0),
    "CenterCrop": (lambda k: k.CenterCrop(3, 4), IMAGE, ["Cropping2D"], 0),
    "RandomFlip": (lambda k: k.RandomFlip(), IMAGE, [], 0),
    "Permute": (lambda k: k.Permute((2, 1, 3)), IMAGE, [], 0),
    "PReLU": (lambda k: k.PReLU(shared_axes=[1, 2]), IMAGE, ["ReLU", "Elementwise", "ReLU", "Multiply", "Add"], 0),
    "UnitNormalization": (lambda k: k.UnitNormalization(), STEPS, ["Norm", "Elementwise"], 0),
    "Lambda": (lambda k: k.Lambda(lambda x: x / 255.0 - 1.0), IMAGE, ["Rescaling", "Rescaling"], 0),
    "Bidirectional, added up": (
        lambda k: k.Bidirectional(k.GRU(4), merge_mode="ave"),
        STEPS,
        ["GRU", "Add", "Rescaling"],
        2 * 6 * 2 * 3 * 4 * (5 + 4),
    ),
    "TimeDistributed": (
        lambda k: k.TimeDistributed(k.Conv2D(5, 3)),
        (2, *IMAGE),
        ["Conv2D", "Conv2D", "Stack"],
        2 * 2 * 4 * 6 * 27 * 5,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_operators_that_it_computes(keras: Any, name: str) -> None:
    make, shape, expected, flops = LAYERS[name]
    x = keras.Input(shape)
    model = keras.Model(x, make(keras.layers)(x))
    graph = capture_keras(model)
    assert not graph.unknown
    assert costs(graph) == expected
    assert (graph.weights, graph.matrix_flops) == (model.count_params(), flops)
    assert sorted(graph.output_shape) == sorted(model.output_shape[1:])
    assert runs(graph)


def test_attention_of_fewer_heads_of_keys_repeats_them_and_may_be_gated(keras: Any) -> None:
    x = keras.Input((6, 16))
    for gate in (False, True):
        model = keras.Model(x, keras.layers.GroupQueryAttention(4, 8, 2, use_gate=gate)(x, x, use_causal_mask=True))
        graph = capture_keras(model)
        assert not graph.unknown
        assert graph.weights == model.count_params()
        products = 6 * 16 * (32 + 2 * 8 + 32 + 32 * gate)
        assert graph.matrix_flops == 2 * products + 2 * 8 * 6 * 6 * (4 + 4)
        assert costs(graph).count("Repeat") == 2
        assert runs(graph)


def test_attention_that_tells_its_scores_has_two_outputs(keras: Any) -> None:
    x = keras.Input((6, 16))
    answer, scores = keras.layers.MultiHeadAttention(2, 8)(x, x, return_attention_scores=True)
    graph = capture_keras(keras.Model(x, [answer, keras.layers.Flatten()(scores)]))
    assert not graph.unknown
    assert [operator.op for operator in graph.operators].count("MatMul") == 2
    assert graph.output_shape == (2 * 6 * 6,)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_decoder_begins_with_the_state_of_its_encoder(keras: Any, kind: str) -> None:
    layers = keras.layers
    source, target = keras.Input((7, 12)), keras.Input((5, 9))
    _, *states = getattr(layers, kind)(8, return_state=True)(source)
    x = getattr(layers, kind)(8, return_sequences=True)(target, initial_state=states)
    model = keras.Model([source, target], layers.Dense(9)(x))
    graph = capture_keras(model)
    assert not graph.unknown
    assert graph.weights == model.count_params()
    gates = {"LSTM": 4, "GRU": 3}[kind]
    assert graph.matrix_flops == 2 * gates * 8 * (7 * (12 + 8) + 5 * (9 + 8)) + 2 * 5 * 8 * 9
    assert runs(graph)


def test_cells_are_run_once_for_each_step(keras: Any) -> None:
    layers = keras.layers
    x = keras.Input((6, 5))
    stacked = keras.Model(x, layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True)(x))
    frames = keras.Input((3, 6, 6, 2))
    convolved = keras.Model(frames, layers.ConvLSTM2D(4, 3, padding="same")(frames))
    both = keras.Model(x, layers.Concatenate()(layers.Bidirectional(layers.LSTM(4, return_state=True))(x)))
    for model, flops, shape in (
        (stacked, 2 * 6 * ((5 + 4) * 16 + (4 + 3) * 9), (6, 3)),
        (convolved, 2 * 3 * 36 * 9 * (2 + 4) * 16, (6, 6, 4)),
        (both, 2 * 2 * 6 * (5 + 4) * 16, (24,)),
    ):
        graph = capture_keras(model)
        assert not graph.unknown
        assert graph.matrix_flops == flops
        assert sorted(graph.output_shape) == sorted(shape)
        assert graph.weights == model.count_params()


def test_weights_of_a_layer_called_twice_count_once(keras: Any) -> None:
    layers = keras.layers
    first, second, shared = keras.Input((8,)), keras.Input((8,)), layers.Dense(16, activation="relu")
    model = keras.Model([first, second], layers.Dense(1)(layers.Lambda(keras.ops.abs)(shared(first) - shared(second))))
    graph = capture_keras(model)
    assert not graph.unknown
    assert (graph.weights, graph.shared_weights) == (model.count_params(), 8 * 16 + 16)
    assert graph.matrix_flops == 2 * (2 * 8 * 16 + 16)


def test_a_call_of_ones_own_may_read_the_size_of_the_batch(keras: Any) -> None:
    layers, ops = keras.layers, keras.ops

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.cell, self.head = layers.Conv2D(8, 3), layers.LSTMCell(4), layers.Dense(3)

        def build(self, shape: Any) -> None:
            self.first = self.add_weight(shape=(1, 1, 32))

        def call(self, x: Any) -> Any:
            batch = ops.shape(x)[0]
            rows = ops.reshape(self.conv(x), (batch, -1, 32))
            rows = ops.concatenate([ops.broadcast_to(self.first, (batch, 1, 32)), rows], axis=1)
            states = [ops.zeros((batch, 4)), ops.zeros((batch, 4))]
            for step in range(rows.shape[1]):
                x, states = self.cell(rows[:, step], states)
            return self.head(ops.reshape(x, (batch, -1)))

    model = Net()
    model(np.zeros((2, 6, 6, 3), np.float32))
    graph = capture_keras(model)
    assert not graph.unknown
    assert graph.weights == model.count_params()
    # The first state is zeros, whose product is none for an example.
    assert graph.matrix_flops == 2 * (16 * 27 * 8 + (5 * 32 + 4 * 4) * 16 + 4 * 3)
    assert graph.output_shape == (3,)


def test_what_takes_no_symbols_is_kept_by_its_name_with_all_its_outputs(keras: Any) -> None:
    class Two(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(1,))

        def call(self, x: Any) -> Any:
            x = keras.ops.convert_to_tensor(x.numpy())
            return keras.ops.abs(x), keras.ops.sum(x, axis=1)

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor(x.shape), keras.KerasTensor((x.shape[0], x.shape[2]))

    x = keras.Input((6, 5))
    rows, total = Two()(x)
    model = keras.Model(x, [rows, keras.layers.Dense(2)(total)])
    graph = capture_keras(model)
    assert [(o.op, o.shape, o.weights) for o in graph.unknown] == [("keras.Two", (6, 5), 1), ("keras.Two", (5,), 0)]
    assert graph.weights == model.count_params()
