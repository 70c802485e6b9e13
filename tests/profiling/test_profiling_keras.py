"""What people run beside convolutions, built in Keras: the values that torch computes, and refusals by name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from slotool.errors import GraphError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.architectures import ARCHITECTURES
from slotool.graphs.keras_model import channels_last, functional_model
from slotool.graphs.operators.keras_values import Value, reshaped
from slotool.graphs.torch_module import GraphModule
from slotool.profiling.backends.keras_backend import KerasBackend

# Looked for and not imported: every worker collects this file, and one of them runs it.
pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="the Keras backend needs TensorFlow")


def weights(shape: tuple[int, ...], dtype: Any = None) -> Any:
    """The same for the same shape, so that torch gets them too."""
    import tensorflow as tf

    values = np.random.default_rng(sum(shape)).standard_normal(tuple(shape), dtype=np.float32)
    return tf.constant(0.2 * values, dtype=dtype)


def compared(graph: OperatorGraph, batch_size: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """What Keras and torch compute from the same weights."""
    model, module = functional_model(graph, weights), GraphModule(graph).eval()
    for operator in graph.operators:
        layer = module.of.get(operator.name)
        if operator.op == "Rescaling":
            # A factor of one, which torch takes for that of the graph, TensorFlow would leave out.
            layer._function = lambda x: x / 255
        if operator.op == "Constant" and layer is not None and "weight" in layer._parameters:
            layer.weight.data = torch.from_numpy(weights((1, *operator.shape)).numpy())
    for layer in model.layers:
        target = module.of.get(layer.name.removesuffix("_"))
        if not layer.get_weights() or target is None or "normalization" in layer.name.lower():
            continue
        kernel, *bias = layer.get_weights()
        turned = {"Embedding": (0, 1), "DepthwiseConv2D": (2, 3, 0, 1), "LayerScale": (0,)}
        order = turned.get(type(layer).__name__, (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0))
        target = target[-1] if isinstance(target, torch.nn.Sequential) else target
        value = torch.from_numpy(np.ascontiguousarray(kernel.transpose(order)))
        target.weight.data = value.reshape(target.weight.shape)
        if bias:
            target.bias.data = torch.from_numpy(bias[0])
    feeds = KerasBackend().feeds(graph, batch_size)
    with torch.inference_mode():
        wanted = module(*map(torch.from_numpy, feeds)).numpy()
    inputs = [channels_last(values) for values in feeds]
    found = np.asarray(model(inputs if len(inputs) > 1 else inputs[0]))
    return np.moveaxis(found, -1, 1) if found.ndim == 4 else found, wanted


@pytest.mark.parametrize("kind", ["vit", "swin", "mixer", "hybrid", "bert", "gpt", "llama"])
def test_keras_and_torch_compute_the_same_of_attention_and_tokens(kind: str) -> None:
    found, wanted = compared(ARCHITECTURES[kind].graph((0,) * len(ARCHITECTURES[kind].sizes)))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4 * float(np.abs(wanted).max()))


def test_moving_reducing_and_masking_give_the_values_of_torch() -> None:
    builder = GraphBuilder()
    x = builder.add("InputLayer", shape=[4, 6, 5])
    mask = builder.add("InputLayer", shape=[6, 6], dtype="bool")
    turned = builder.add("Transpose", x, axes=[2, 0, 1])
    last = builder.add("Roll", turned, shifts=[1, -2], axes=[0, 2])
    last = builder.add("Concatenate", [last, builder.add("Flip", turned, axes=[1])], axis=1)
    last = builder.add("Slice", last, axis=1, start=1, size=4, step=2)
    last = builder.add("Pad", last, pads=[1, 0, 0, 0, 2, 0])
    last = builder.add("Stack", [last, builder.add("Elementwise", last, function="square")], axis=1)
    last = builder.add("Slice", last, axis=1, start=1, size=1, keepdims=False)
    query = builder.add("Dense", builder.add("Transpose", last, axes=[1, 2, 0]), units=3)
    last = builder.add("ScaledDotProductAttention", [query, query, query, mask])
    last = builder.add("GroupNormalization", last, groups=2)
    last = builder.add("Multiply", [last, builder.add("Max", last, axes=[1], keepdims=True)])
    last = builder.add("Softmax", builder.add("Repeat", last, repeats=[1, 2, 1]), axis=1)
    builder.add("Variance", builder.add("Where", [last, last, last]), axes=[0, 2])
    found, wanted = compared(builder.graph())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("before", "after"), [((4, 6, 5), (4, 30)), ((4, 6, 5), (2, 2, 30)), ((4, 6, 5), (24, 5))])
def test_axes_of_an_image_are_merged_and_split_as_stated(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal((2, *before)).astype(np.float32)
    image = Value(channels_last(values), (1, 2, 0))
    assert np.array_equal(np.asarray(reshaped(image, before, after).stated()), values.reshape(2, *after))


def test_a_transposed_image_is_not_written_anew() -> None:
    image = Value(np.zeros((2, 6, 5, 4), dtype=np.float32), (1, 2, 0))
    tokens = reshaped(image, (4, 6, 5), (4, 30))
    assert tokens.order == (1, 0)
    assert np.asarray(tokens.in_order((1, 0))).shape == (2, 30, 4)


def test_an_operator_may_have_a_name_that_keras_gives_by_itself() -> None:
    import keras

    keras.utils.clear_session()
    builder = GraphBuilder()
    x = builder.add("InputLayer", shape=[4, 6])
    # A product with a constant is an operation, whose second Keras calls multiply_1.
    constant = builder.add("Constant", shape=[4, 6])
    last = builder.add("Multiply", [builder.add("Multiply", [x, constant]), constant], name="twice")
    builder.add("Multiply", [last, last], name="multiply_1")
    found, wanted = compared(builder.graph())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_lookups_of_computed_places_are_refused_by_name() -> None:
    builder = GraphBuilder()
    data = builder.add("InputLayer", shape=[4])
    places = builder.add("TopK", builder.add("InputLayer", shape=[4]), k=2, axis=0, indices=True)
    builder.add("Gather", [data, places], axis=0)
    with pytest.raises(GraphError, match="cannot be built in Keras"):
        functional_model(builder.graph(), weights)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_a_sequence_read_backwards_has_the_other_direction_of_it_read_forwards(kind: str) -> None:
    """Both directions have the same weights here, as they have the same shapes."""
    builder = GraphBuilder()
    builder.add(kind, builder.add("InputLayer", shape=[7, 5]), units=6, bidirectional=True)
    model = functional_model(builder.graph(), weights)
    x = np.random.default_rng(1).standard_normal((2, 7, 5), dtype=np.float32)
    forwards, backwards = (np.asarray(model(values)) for values in (x, x[:, ::-1]))
    assert forwards.shape == (2, 7, 12)
    np.testing.assert_allclose(forwards[:, ::-1, 6:], backwards[..., :6], rtol=1e-5)
    assert np.abs(forwards[..., :6] - forwards[..., 6:]).max() > 1e-3


def test_a_recurrent_layer_takes_a_first_state_for_each_layer_and_direction() -> None:
    builder = GraphBuilder()
    x, state = builder.add("InputLayer", shape=[7, 5]), builder.add("InputLayer", shape=[4, 6])
    builder.add("GRU", [x, state], units=6, layers=2, bidirectional=True)
    model = functional_model(builder.graph(), weights)
    random = np.random.default_rng(2)
    values, states = (random.standard_normal(shape, dtype=np.float32) for shape in ((2, 7, 5), (2, 4, 6)))
    plain = np.asarray(model([values, states]))
    for row in range(4):
        other = states.copy()
        other[:, row] += 1
        changed = np.abs(np.asarray(model([values, other])) - plain).max(axis=(0, 1))
        assert changed.max() > 1e-3
        if row >= 2:  # of the last layer, whose directions do not see each other
            assert (changed[:6].max() > 1e-3, changed[6:].max() > 1e-3) == (row == 2, row == 3)
