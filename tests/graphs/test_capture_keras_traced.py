"""Keras layers that no symbol of Keras follows: traced by TensorFlow, and captured with all that they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slotool
from slotool.graphs import OperatorGraph


@pytest.fixture(scope="module")
def keras() -> Any:
    return pytest.importorskip("keras")


def graph_of(model: Any, **given: Any) -> OperatorGraph:
    (graph,) = slotool.capture(model, **given, progress=None).graphs
    assert not graph.unknown
    assert graph.weights == model.count_params()
    return graph


# By name: what TensorFlow computes, and the shapes of its inputs with the batch.
ROWS, SQUARES, IMAGES = (5, 6, 8), (5, 4, 4), (5, 8, 6, 3)
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (lambda tf, a, b: tf.matmul(a, b, transpose_b=True), (ROWS, ROWS)),
    "einsum": (lambda tf, a, b: tf.einsum("bij,bkj->bik", a, b), (ROWS, ROWS)),
    "slices": (lambda tf, a: a[:, 1:-1, tf.newaxis, ..., ::-2], (ROWS,)),
    "rows": (lambda tf, a: tf.gather(a, [3, 0, 1], axis=1), (ROWS,)),
    "rows of each": (
        lambda tf, a: tf.gather(a, tf.argsort(a[..., 0], axis=1), axis=1, batch_dims=1),
        (ROWS,),
    ),
    "reductions": (
        lambda tf, a: tf.reduce_prod(a, 1) + tf.reduce_max(a, 1) + tf.reduce_mean(a, 1) + tf.math.reduce_std(a, 1),
        (ROWS,),
    ),
    "gelu": (lambda tf, a: tf.nn.gelu(a, approximate=True) + tf.math.erf(a) + tf.nn.leaky_relu(a, 0.1), (ROWS,)),
    "windows": (
        lambda tf, a: tf.nn.conv2d(a, tf.reshape(tf.range(54, dtype="float32"), (3, 3, 3, 2)), 2, "SAME"),
        (IMAGES,),
    ),
    "dilated windows": (
        lambda tf, a: tf.nn.atrous_conv2d(a, tf.reshape(tf.range(54, dtype="float32"), (3, 3, 3, 2)), 2, "SAME"),
        (IMAGES,),
    ),
    "windows of each channel": (
        lambda tf, a: tf.nn.depthwise_conv2d(a, tf.ones((3, 3, 3, 2)), (1, 1, 1, 1), "VALID"),
        (IMAGES,),
    ),
    "windows transposed": (
        lambda tf, a: tf.nn.conv2d_transpose(
            a, tf.reshape(tf.range(54, dtype="float32"), (3, 3, 2, 3)), (5, 17, 13, 2), 2, "VALID"
        ),
        (IMAGES,),
    ),
    "pooling": (lambda tf, a: tf.nn.max_pool2d(a, 2, 2, "VALID") - tf.nn.avg_pool2d(a, 2, 2, "VALID"), (IMAGES,)),
    "patches": (
        lambda tf, a: tf.image.extract_patches(a, (1, 3, 3, 1), (1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        (IMAGES,),
    ),
    "blocks": (lambda tf, a: tf.nn.depth_to_space(tf.nn.space_to_depth(a, 2), 2), (IMAGES,)),
    "resizing": (lambda tf, a: tf.image.resize(a, (4, 3)), (IMAGES,)),
    "padding": (lambda tf, a: tf.pad(a, ((0, 0), (2, 1), (0, 3)), "REFLECT"), (ROWS,)),
    "one hot": (lambda tf, a: tf.one_hot(tf.cast(a, "int32"), 5), (ROWS,)),
    "bands": (lambda tf, a: tf.linalg.band_part(a, 1, 0), (SQUARES,)),
    "sums so far": (lambda tf, a: tf.cumsum(a, 1, reverse=True) + tf.math.cumprod(a, 1), (ROWS,)),
    "largest": (lambda tf, a: tf.math.top_k(a, 3)[0], (ROWS,)),
    "split": (lambda tf, a: tf.concat(tf.split(a, (2, 1, 3), 1)[::-1], 1), (ROWS,)),
    "roll": (lambda tf, a: tf.reverse(tf.roll(a, (2, -1), (1, 2)), (1,)), (ROWS,)),
    "written": (
        lambda tf, a: tf.tensor_scatter_nd_update(a, [[0, 1], [2, 3]], tf.ones((2, 8))),
        (ROWS,),
    ),
    "groups": (lambda tf, a: tf.math.unsorted_segment_sum(a, [0, 1, 0, 2, 1], 3), (ROWS,)),
    "the greatest of groups": (
        lambda tf, a: (
            tf.math.unsorted_segment_max(a, [0, 1, 0, 2, 1], 3) - tf.math.unsorted_segment_min(a, [0, 0, 1, 1, 2], 3)
        ),
        (ROWS,),
    ),
    "groups of each example": (
        lambda tf, a: tf.map_fn(
            lambda row: tf.math.unsorted_segment_sum(row[0], tf.cast(tf.abs(row[1][:, 0]), "int32"), 9),
            (a, a),
            fn_output_signature="float32",
        ),
        (ROWS,),
    ),
    "what one example hands to the next": (
        lambda tf, a: tf.scan(lambda before, row: before * 0.5 + row, a),
        (ROWS,),
    ),
    "products of each example": (
        lambda tf, a: tf.map_fn(lambda row: tf.matmul(row, row, transpose_b=True), a),
        (ROWS,),
    ),
    "one of several branches": (
        lambda tf, a: tf.switch_case(tf.constant(1), [lambda: a, lambda: a * 3, lambda: a - 1]),
        (ROWS,),
    ),
    "a Fourier transform": (lambda tf, a: tf.abs(tf.signal.rfft(a)), (ROWS,)),
    "a loop": (
        lambda tf, a: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2 + 1), (tf.constant(0), a))[1],
        (ROWS,),
    ),
    "each": (lambda tf, a: tf.map_fn(lambda row: row * 2, a), (ROWS,)),
    "a branch that is known": (
        lambda tf, a: tf.cond(tf.constant(a.shape[1] > 2), lambda: a + 1, lambda: a - 1),
        (ROWS,),
    ),
    "cross products": (lambda tf, a: tf.linalg.cross(a, a[:, ::-1]), (IMAGES,)),
    "buckets": (lambda tf, a: tf.raw_ops.Bucketize(input=a, boundaries=[0.0, 0.5]), (ROWS,)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_traced_computes_what_tensorflow_does(name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    import torch

    from slotool.graphs.capture.tensorflow_graph import TensorFlowModule

    compute, shapes = CASES[name]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    module = TensorFlowModule(lambda *given: compute(tf, *given), ["float32"] * len(values), [])
    with torch.no_grad():
        (found,) = module(*map(torch.from_numpy, values))
    np.testing.assert_allclose(found.numpy(), compute(tf, *map(tf.constant, values)).numpy(), rtol=1e-4, atol=1e-4)


def test_a_layer_written_in_tensorflow_has_its_products_and_weights(keras: Any) -> None:
    import tensorflow as tf

    class Mixer(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(16, 24))
            self.scale = self.add_weight(shape=())

        def call(self, x: Any) -> Any:
            return tf.nn.softmax(tf.nn.relu(tf.matmul(x, self.kernel)) * (1.0 + self.scale), axis=-1)

    inputs = keras.Input((10, 16))
    graph = graph_of(keras.Model(inputs, keras.layers.Dense(3)(Mixer()(inputs))))
    assert graph.matrix_flops == 2 * 10 * 16 * 24 + 2 * 10 * 24 * 3


def test_positions_that_depend_on_no_input_are_a_constant_with_their_weights(keras: Any) -> None:
    class Positions(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(32, shape[-1]))

        def call(self, x: Any) -> Any:
            steps, features = keras.ops.shape(x)[1:]
            rows = keras.ops.slice(self.table, (0, 0), (steps, features))
            return keras.ops.broadcast_to(rows, keras.ops.shape(x))

    inputs = keras.Input((None, 8))
    graph = graph_of(keras.Model(inputs, inputs + Positions()(inputs)), input_shape=(12, 8))
    (constant,) = [each for each in graph.operators if each.op == "Constant"]
    assert (constant.shape, constant.weights) == ((12, 8), 32 * 8)


def windowed(keras: Any, layer: Callable[[Any], Any]) -> Any:
    """Of an image of 8 × 8 of 12 channels its four windows of 4 × 4, as examples of their own, and back."""
    ops = keras.ops

    def call(x: Any) -> Any:
        rows = ops.transpose(ops.reshape(x, (-1, 2, 4, 2, 4, 12)), (0, 1, 3, 2, 4, 5))
        made = layer(ops.reshape(rows, (-1, 16, 12)))
        back = ops.transpose(ops.reshape(made, (-1, 2, 2, 4, 4, 12)), (0, 1, 3, 2, 4, 5))
        return x + ops.reshape(back, (-1, 8, 8, 12))

    return call


@pytest.mark.parametrize("form", ["functional", "layer"])
def test_windows_in_the_axis_of_the_batch_count_all_of_them(keras: Any, form: str) -> None:
    attention, dense = keras.layers.MultiHeadAttention(3, 4), keras.layers.Dense(12)
    call = windowed(keras, lambda rows: dense(attention(rows, rows)))

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.dense = attention, dense

        def build(self, shape: Any) -> None:
            self.attention.build((None, 16, 12), (None, 16, 12))
            self.dense.build((None, 16, 12))

        def call(self, x: Any) -> Any:
            return call(x)

    inputs = keras.Input((8, 8, 12))
    outputs = call(inputs) if form == "functional" else Block()(inputs)
    graph = graph_of(keras.Model(inputs, keras.layers.Conv2D(5, 1)(outputs)))
    projections, scores = 5 * 2 * 64 * 12 * 12, 2 * 2 * 64 * 16 * 12
    assert graph.matrix_flops == projections + scores + 2 * 64 * 12 * 5


@pytest.mark.parametrize("axes", [(1, 2), (2,)])
def test_attention_over_axes_of_an_image_counts_their_products(keras: Any, axes: tuple[int, ...]) -> None:
    inputs = keras.Input((6, 4, 8))
    outputs = keras.layers.MultiHeadAttention(2, 4, attention_axes=axes)(inputs, inputs)
    graph = graph_of(keras.Model(inputs, outputs))
    reach = 24 if axes == (1, 2) else 4
    assert graph.matrix_flops == 4 * 2 * 24 * 8 * 8 + 2 * 2 * 24 * reach * 8


def test_convolutions_around_a_traced_layer_turn_no_images(keras: Any) -> None:
    import tensorflow as tf

    class Gate(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * tf.sigmoid(x) + tf.nn.relu6(x)

    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3)(inputs)
    graph = graph_of(keras.Model(inputs, keras.layers.Conv2D(2, 3)(Gate()(x))))
    assert not {"Transpose", "Copy"} & {each.op for each in graph.operators}


def test_of_a_branch_by_values_the_costlier_is_counted(keras: Any) -> None:
    class Choice(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            turned = keras.ops.transpose(x, (0, 2, 1))
            wide = lambda: keras.ops.matmul(keras.ops.matmul(x, turned), x)  # noqa: E731
            return keras.ops.cond(keras.ops.sum(x) > 0, wide, lambda: x * 2.0)

    inputs = keras.Input((4, 6))
    (graph,) = slotool.capture(keras.Model(inputs, Choice()(inputs)), progress=None).graphs
    assert graph.matrix_flops == 2 * 2 * 4 * 4 * 6


def test_of_several_branches_by_values_the_costliest_is_counted(keras: Any) -> None:
    import tensorflow as tf

    class Switch(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            which = tf.cast(tf.reduce_sum(x), "int32") % 3
            product = lambda: tf.matmul(x, tf.matmul(x, x, transpose_a=True))  # noqa: E731
            return tf.switch_case(which, [lambda: x, product, lambda: x * 2])

    inputs = keras.Input((4, 6))
    (graph,) = slotool.capture(keras.Model(inputs, Switch()(inputs)), progress=None).graphs
    assert graph.matrix_flops == 2 * 2 * 4 * 6 * 6


def test_a_loop_over_the_examples_is_what_it_does_to_one(keras: Any) -> None:
    import tensorflow as tf

    class Messages(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(16)

        def call(self, nodes: Any, edges: Any) -> Any:
            sent = tf.gather(self.dense(nodes), edges[..., 0], batch_dims=1)
            summed = lambda each: tf.math.unsorted_segment_sum(each[0], each[1], 30)  # noqa: E731
            return tf.map_fn(summed, (sent, edges[..., 1]), fn_output_signature="float32")

    nodes, edges = keras.Input((30, 8)), keras.Input((60, 2), dtype="int32")
    graph = graph_of(keras.Model([nodes, edges], keras.layers.Dense(3)(Messages()(nodes, edges))))
    assert graph.matrix_flops == 2 * 30 * (8 * 16 + 16 * 3)
    assert [each.op for each in graph.operators].count("Scatter") == 1


def test_columns_of_texts_are_known(keras: Any) -> None:
    layers = keras.layers
    city, shop, age = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="string"), keras.Input((1,))
    looked_up = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(city)
    crossed = layers.HashedCrossing(50, output_mode="one_hot")([city, shop])
    hashed = layers.Embedding(20, 8)(layers.Hashing(20)(shop))
    joined = layers.Concatenate()([looked_up, crossed, layers.Flatten()(hashed), age])
    graph = graph_of(keras.Model([city, shop, age], layers.Dense(4)(joined)))
    assert graph.matrix_flops == 2 * (3 + 50 + 8 + 1) * 4


def test_low_rank_matrices_are_multiplied_in_every_call(keras: Any) -> None:
    inputs, dense = keras.Input((20,)), keras.layers.Dense(64)
    model = keras.Model(inputs, keras.layers.Dense(3)(dense(inputs)))
    dense.enable_lora(4)
    (graph,) = slotool.capture(model, progress=None).graphs
    assert graph.matrix_flops == 2 * (20 * 64 + 64 * 3) + 2 * 20 * 4 * 64


def test_a_model_within_another_takes_the_sizes_of_its_call(keras: Any) -> None:
    tokens = keras.Input((None,), dtype="int32")
    inner = keras.Model(tokens, keras.layers.Dense(5)(keras.layers.Embedding(20, 8)(tokens)))
    outer = keras.Input((None,), dtype="int32", name="ids")
    graph = graph_of(keras.Model(outer, inner(outer)), input_shape=(7,))
    assert graph.matrix_flops == 2 * 7 * 8 * 5


def test_a_number_for_each_example_is_an_input_of_one_value(keras: Any) -> None:
    inputs = {"x": keras.Input((6,), name="x"), "strength": keras.Input((), name="strength")}
    outputs = keras.layers.Dense(4)(inputs["x"]) * keras.ops.expand_dims(inputs["strength"], -1)
    graph = graph_of(keras.Model(inputs, outputs))
    assert [each.shape for each in graph.inputs] == [(1,), (6,)]


@pytest.mark.parametrize(
    ("make", "shape", "dtype"),
    [
        (lambda layers: layers.Discretization(bin_boundaries=[0.0, 1.0]), (6,), "float32"),
        (lambda layers: layers.Hashing(10), (6,), "int32"),
        (lambda layers: layers.IntegerLookup(vocabulary=[3, 5, 7]), (6,), "int32"),
    ],
)
def test_preprocessing_of_numbers_is_known(keras: Any, make: Any, shape: tuple[int, ...], dtype: str) -> None:
    inputs = keras.Input(shape, dtype=dtype)
    graph_of(keras.Model(inputs, make(keras.layers)(inputs)))


@pytest.mark.parametrize("name", ["associative_scan", "map", "median", "quantile", "cumprod", "fori_loop"])
def test_operations_that_loop_or_sort_are_known(keras: Any, name: str) -> None:
    ops = keras.ops
    calls: dict[str, Callable[[Any], Any]] = {
        "associative_scan": lambda x: ops.associative_scan(lambda a, b: a + b, x, axis=1),
        "map": lambda x: ops.transpose(ops.map(lambda row: row * 2, ops.transpose(x, (1, 0, 2))), (1, 0, 2)),
        "median": lambda x: ops.median(x, axis=-1),
        "quantile": lambda x: ops.quantile(x, 0.3, axis=-1),
        "cumprod": lambda x: ops.cumprod(x, axis=1),
        "fori_loop": lambda x: ops.fori_loop(0, 3, lambda _, a: a * 2, x),
    }
    inputs = keras.Input((8, 4))
    graph_of(keras.Model(inputs, calls[name](inputs)))


def test_a_spectrogram_has_the_flops_of_its_transforms(keras: Any) -> None:
    inputs = keras.Input((1024,))
    real, _ = keras.ops.stft(inputs, 256, 128, 256)
    (graph,) = slotool.capture(keras.Model(inputs, real), progress=None).graphs
    frames = real.shape[1]
    (transform,) = [each for each in graph.operators if each.op == "keras._fft_r2c"]
    assert transform.flops == pytest.approx(frames * 2.5 * 256 * 8)
