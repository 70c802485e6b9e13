"""``keras.ops`` in a model's own ``call``: what is captured computes what Keras computes, and costs what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_keras
from slotool.graphs.torch_module import GraphModule

Shape = tuple[int, ...]
SEQUENCE, IMAGE, HEADS = (8, 16), (6, 4, 3), (4, 8, 16)
POOLED = ("MaxPooling2D", "AveragePooling2D", "Add")


def keras_relu(x: Any, **limits: float) -> Any:
    import keras

    return keras.activations.relu(x, **limits)


# By name: what is computed, of inputs of which shapes, and the operators that it is, without inputs and views.
CASES: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], tuple[str, ...]]] = {
    "matmul": (lambda ops, a, b: ops.matmul(a, b), (SEQUENCE, (16, 5)), ("MatMul",)),
    "heads": (
        lambda ops, a, b: ops.matmul(ops.softmax(ops.matmul(a, ops.transpose(b, (0, 1, 3, 2)))), b),
        (HEADS, HEADS),
        ("MatMul", "Softmax", "MatMul"),
    ),
    "einsum scores": (lambda ops, a, b: ops.einsum("bhqd,bhkd->bhqk", a, b), (HEADS, HEADS), ("MatMul",)),
    "einsum of several axes": (
        lambda ops, a, b: ops.einsum("bihd,bjhd->bhji", a, b),
        ((5, 2, 3), (7, 2, 3)),
        ("MatMul",),
    ),
    "attention": (
        lambda ops, a, b: ops.dot_product_attention(a, b, b, is_causal=False),
        ((8, 4, 16), (10, 4, 16)),
        ("ScaledDotProductAttention",),
    ),
    "reshape": (lambda ops, a: ops.reshape(a, (-1, 4, 2, 16)), (SEQUENCE,), ()),
    "reshape of an image": (lambda ops, a: ops.reshape(a, (-1, 24, 3)), (IMAGE,), ()),
    "transpose": (lambda ops, a: ops.transpose(a, (0, 3, 1, 2)), (IMAGE,), ()),
    "swapaxes": (lambda ops, a: ops.swapaxes(a, 1, -1), (HEADS,), ()),
    "moveaxis": (lambda ops, a: ops.moveaxis(a, 3, 1), (HEADS,), ()),
    "concatenate": (lambda ops, a, b: ops.concatenate([a, b], axis=1), (IMAGE, IMAGE), ("Concatenate",)),
    "stack": (lambda ops, a, b: ops.stack([a, b], axis=2), (SEQUENCE, SEQUENCE), ("Stack",)),
    "mean": (lambda ops, a: ops.mean(a, axis=1), (SEQUENCE,), ("Mean",)),
    "mean of an image": (lambda ops, a: ops.mean(a, axis=(1, 2)), (IMAGE,), ("Mean",)),
    "mean of its rows": (lambda ops, a: ops.mean(a, axis=1), (IMAGE,), ("Mean",)),
    "mean of its channels": (lambda ops, a: ops.mean(a, axis=-1, keepdims=True), (IMAGE,), ("Mean",)),
    "variance": (lambda ops, a: ops.var(a, axis=-1), (SEQUENCE,), ("Variance",)),
    "take": (lambda ops, a: ops.take(a, 3, axis=1), (SEQUENCE,), ()),
    "slices": (lambda ops, a: a[:, 2:6, ::2], (SEQUENCE,), ()),
    "a row and a new axis": (lambda ops, a: a[:, -1][..., None], (SEQUENCE,), ()),
    "where": (lambda ops, a, b: ops.where(a > b, a, b), (SEQUENCE, SEQUENCE), ("Elementwise", "Where")),
    "top_k": (lambda ops, a: ops.top_k(a, 3)[0], (SEQUENCE,), ("TopK",)),
    "split": (lambda ops, a: ops.split(a, [6], axis=-1)[1], (SEQUENCE,), ()),
    "rms norm": (
        lambda ops, a: a * ops.rsqrt(ops.mean(ops.square(a), axis=-1, keepdims=True)),
        (SEQUENCE,),
        ("Elementwise", "Mean", "Elementwise", "Multiply"),
    ),
    "silu": (lambda ops, a: ops.silu(a), (IMAGE,), ("Activation",)),
    "subtract": (lambda ops, a, b: a - b, (IMAGE, IMAGE), ("Elementwise",)),
    "pad": (lambda ops, a: ops.pad(a, ((0, 0), (1, 2), (0, 0))), (SEQUENCE,), ("Pad",)),
    "roll": (lambda ops, a: ops.roll(a, 1, axis=2), (IMAGE,), ("Roll",)),
    "patches": (lambda ops, a: ops.image.extract_patches(a, 2), (IMAGE,), ()),
    "patches that overlap": (lambda ops, a: ops.image.extract_patches(a, (3, 2), strides=1), (IMAGE,), ("Unfold",)),
    "patches beyond the edge": (
        lambda ops, a: ops.image.extract_patches(a, 3, strides=2, padding="same"),
        (IMAGE,),
        ("Unfold",),
    ),
    "depth to space": (lambda ops, a: ops.nn.depth_to_space(a, 2), ((3, 2, 12),), ()),
    "space to depth": (lambda ops, a: ops.nn.space_to_depth(a, 2), (IMAGE,), ()),
    "max_pool": (lambda ops, a: ops.max_pool(a, 3, strides=2, padding="same"), (IMAGE,), ("MaxPooling2D",)),
    "average_pool of steps": (lambda ops, a: ops.average_pool(a, 2), (SEQUENCE,), ("AveragePooling1D",)),
    "max_pool of a volume": (lambda ops, a: ops.max_pool(a, 2), ((4, 6, 2, 3),), ("MaxPooling3D",)),
    "max_pool, then a sum": (lambda ops, a: ops.max_pool(a, 2) + ops.average_pool(a, 2), (IMAGE,), POOLED),
    "resize": (lambda ops, a: ops.image.resize(a, (12, 8), interpolation="nearest"), (IMAGE,), ("Resize",)),
    "glu": (lambda ops, a: ops.glu(a), (SEQUENCE,), ("Activation", "Multiply")),
    "einsum that sums": (lambda ops, a, b: ops.einsum("bij,bij->bi", a, b), (SEQUENCE, SEQUENCE), ("MatMul",)),
    "einsum of two vectors": (lambda ops, a, b: ops.einsum("bi,bj->bij", a, b), ((5,), (3,)), ("MatMul",)),
    "einsum of one": (lambda ops, a: ops.einsum("bijk->bki", a), (HEADS,), ("Sum",)),
    "einsum with dots": (lambda ops, a, b: ops.einsum("b...j,bkj->b...k", a, b), (HEADS, (5, 16)), ("MatMul",)),
    "moments": (lambda ops, a: ops.moments(a, axes=(1, 2))[1], (IMAGE,), ("Variance",)),
    "relu with a limit": (lambda ops, a: keras_relu(a, max_value=1.0), (SEQUENCE,), ("ReLU", "Elementwise")),
    "normalize": (lambda ops, a: ops.normalize(a, axis=-1), (SEQUENCE,), ("Norm", "Elementwise")),
    "log_softmax": (lambda ops, a: ops.log_softmax(a), (SEQUENCE,), ("Softmax", "Elementwise")),
}
VIEWS = ("InputLayer", "Transpose", "Reshape", "Slice")


@pytest.fixture(scope="module")
def keras() -> Any:
    return pytest.importorskip("keras")


def answer(graph: OperatorGraph, values: list[np.ndarray]) -> np.ndarray:
    import torch

    with torch.no_grad():
        return GraphModule(graph)(*map(torch.from_numpy, values)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_captured_as_it_computes(keras: Any, name: str) -> None:
    compute, shapes, expected = CASES[name]
    inputs = [keras.Input(shape) for shape in shapes]
    model = keras.Model(inputs, compute(keras.ops, *inputs))
    graph = capture_keras(model)
    assert not graph.unknown
    assert tuple(op.op for op in graph.operators if op.op not in VIEWS) == expected
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(2, *shape)).astype(np.float32) for shape in shapes]
    wanted = np.asarray(keras.ops.convert_to_numpy(model(values)))
    found = answer(graph, [np.moveaxis(each, 3, 1) if each.ndim == 4 else each for each in values])
    if found.shape != wanted.shape:
        # An image that stayed as layers have it.
        found = np.moveaxis(found, 1, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def vision_transformer(keras: Any) -> Any:
    """As people write one: layers of their own with arrays of their own."""
    layers, ops = keras.layers, keras.ops

    class Patches(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            rows = ops.image.extract_patches(x, 4)
            return ops.reshape(rows, (ops.shape(x)[0], rows.shape[1] * rows.shape[2], rows.shape[3]))

    class Positions(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.position = layers.Dense(24), layers.Embedding(16, 24)

        def call(self, x: Any) -> Any:
            return self.project(x) + self.position(ops.expand_dims(ops.arange(0, 16), 0))

    class Attention(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernels = [self.add_weight(shape=(24, 24)) for _ in range(3)]
            self.scale = self.add_weight(shape=(24,))

        def call(self, x: Any) -> Any:
            heads = [ops.reshape(ops.matmul(x, kernel), (-1, 16, 3, 8)) for kernel in self.kernels]
            query, key, value = (ops.transpose(each, (0, 2, 1, 3)) for each in heads)
            scores = ops.softmax(ops.einsum("bhqd,bhkd->bhqk", query, key) / 8**0.5, axis=-1)
            joined = ops.reshape(ops.transpose(ops.matmul(scores, value), (0, 2, 1, 3)), (-1, 16, 24))
            return x + joined * self.scale

    image = keras.Input((16, 16, 3))
    x = Attention()(Positions()(Patches()(image)))
    return keras.Model(image, layers.Dense(5)(ops.mean(layers.LayerNormalization()(x), axis=1)))


def test_layers_of_ones_own_with_arrays_of_their_own_have_their_products_and_weights(keras: Any) -> None:
    model = vision_transformer(keras)
    graph = capture_keras(model)
    assert not graph.unknown
    assert graph.weights == model.count_params()
    assert graph.matrix_flops == 2 * (16 * 48 * 24 + 3 * 16 * 24 * 24 + 2 * 3 * 16 * 16 * 8 + 24 * 5)


def test_a_convolution_takes_what_operations_made_with_its_channels_first(keras: Any) -> None:
    layers, ops = keras.layers, keras.ops
    rows = keras.Input((24, 5))
    image = ops.reshape(rows, (-1, 6, 4, 5))
    graph = capture_keras(keras.Model(rows, layers.Conv2D(2, 3)(ops.tanh(image))))
    assert [op.op for op in graph.operators][1:] == ["Reshape", "Activation", "Transpose", "Conv2D"]
    assert graph.output_shape == (2, 4, 2)


def test_numbers_of_classes_are_rows_of_the_unit_matrix(keras: Any) -> None:
    numbers = keras.Input((5,), dtype="int32")
    for compute, shape in (
        (lambda ops: ops.one_hot(numbers, 7), (5, 7)),
        (lambda ops: ops.multi_hot(numbers, 7), (7,)),
        (lambda _: keras.layers.CategoryEncoding(7, output_mode="multi_hot")(numbers), (7,)),
        (lambda _: keras.layers.CategoryEncoding(7, output_mode="count")(numbers), (7,)),
    ):
        graph = capture_keras(keras.Model(numbers, compute(keras.ops)))
        assert not graph.unknown
        assert graph.output_shape == shape
        assert graph.weights == 0


def test_a_kernel_of_ones_own_is_a_convolution_with_its_weights(keras: Any) -> None:
    ops = keras.ops

    class Convolution(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(1, 1, shape[-1], 8))
            self.spatial = self.add_weight(shape=(3, 3, 8, 2))
            self.back = self.add_weight(shape=(2, 2, 4, 16))

        def call(self, x: Any) -> Any:
            x = ops.depthwise_conv(ops.conv(x, self.kernel), self.spatial, strides=2, padding="same")
            return ops.conv_transpose(x, self.back, strides=2)

    x = keras.Input((6, 4, 3))
    model = keras.Model(x, Convolution()(x))
    graph = capture_keras(model)
    assert [o.op for o in graph.operators][1:] == ["Conv2D", "DepthwiseConv2D", "Conv2DTranspose"]
    assert graph.weights == model.count_params()
    assert graph.matrix_flops == 2 * (6 * 4 * 3 * 8 + 3 * 2 * 9 * 16 + 3 * 2 * 16 * 4 * 4)


def test_an_operation_of_no_kind_of_ours_is_kept_by_its_name(keras: Any) -> None:
    """Also one that is called like a layer, and one whose axis is that of the batch."""
    x = keras.Input((4, 6))
    for compute in (lambda ops: ops.histogram(x)[0], lambda ops: ops.sum(x, axis=0, keepdims=True)):
        graph = capture_keras(keras.Model(x, compute(keras.ops)))
        assert len(graph.unknown) == 1
