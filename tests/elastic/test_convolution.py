"""Channels as nodes: convolutional layers in NumPy, compiled and in PyTorch; tables, k per input, refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.activators.build import TableSettings, TableSubject, build
from slotool.elastic.activators.convolution import ConvLayer
from slotool.elastic.activators.kernels.compiled import Compiled
from slotool.elastic.activators.mlp import MLP
from slotool.elastic.activators.pruning import prune
from slotool.elastic.activators.slo_nn import SloNN
from slotool.elastic.activators.updates import TableUpdates
from slotool.elastic.activators.weight_dtype import with_weight_dtype
from slotool.elastic.family import Version
from slotool.errors import InputError
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule
from slotool.testing.elastic import ElasticModelConformance

SHAPE, CLASSES = (2, 9, 8), 4


def network(*convolutions: dict[str, Any], shape: tuple[int, int, int] = SHAPE, hidden: int = 12) -> Version:
    """Convolutions, each with its pooling under ``pool``, and a hidden dense layer behind them."""
    torch.manual_seed(0)
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=list(shape))
    for convolution in convolutions:
        pool = convolution.get("pool", 1)
        attributes = {name: value for name, value in convolution.items() if name != "pool"}
        last = builder.add("Conv2D", last, **{"activation": "relu", **attributes})
        if pool > 1:
            last = builder.add("MaxPooling2D", last, kernel=pool)
    last = builder.add("Dense", builder.add("Flatten", last), units=hidden, activation="relu")
    builder.add("Dense", last, units=CLASSES)
    return Version("cnn", GraphModule(builder.graph()).eval().requires_grad_(False))


def usual() -> Version:
    return network(
        {"filters": 6, "kernel": 3, "padding": "same", "pool": 2}, {"filters": 8, "kernel": 3, "padding": "same"}
    )


@cache
def data() -> Dataset:
    x = np.random.default_rng(0).normal(size=(500, *SHAPE)).astype(np.float32)
    y = usual().mlp.logits(x.reshape(len(x), -1)).argmax(axis=1)
    parts = [Split(x[part], y[part]) for part in (slice(0, 300), slice(300, 400), slice(400, 500))]
    return Dataset("images", *parts, classes=CLASSES, labels=tuple("abcd"))


@cache
def model(ranker: str = "clusters") -> SloNN:
    return build("cnn", TableSubject(usual().mlp, data()), ranker, TableSettings((0.3, 0.5, 0.8)))


class TestConvolutionalModel(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> SloNN:
        return model()

    def plain(self, model: SloNN, x: np.ndarray) -> np.ndarray:
        return usual().module(torch.from_numpy(x)).numpy()


windows = st.fixed_dictionaries(
    {
        "filters": st.integers(1, 5),
        "kernel": st.sampled_from([1, 2, 3, (3, 2), 4]),
        "stride": st.sampled_from([1, 1, 2, (1, 2)]),
        "padding": st.sampled_from(["same", "valid", 1]),
        "pool": st.integers(1, 2),
    }
)


@settings(max_examples=40, deadline=None)
@given(first=windows, second=windows, seed=st.integers(0, 1000))
def test_numpy_and_compiled_compute_what_pytorch_does(first: Any, second: Any, seed: int) -> None:
    version = network(first, second, shape=(2, 29, 27))
    x = np.random.default_rng(seed).normal(size=(4, 2, 29, 27)).astype(np.float32)
    expected = version.module(torch.from_numpy(x)).numpy()
    flat = x.reshape(4, -1)
    np.testing.assert_allclose(version.mlp.logits(flat), expected, rtol=1e-4, atol=1e-4)
    out = np.empty_like(expected)
    assert Compiled(version.mlp, {}, ()).logits(flat, out, 0) == -1
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ranker", ["clusters", "centred-freehash"])
def test_chosen_channels_answer_as_in_numpy(ranker: str) -> None:
    built, x = model(ranker), data().test.x
    assert set(built.activators) == {0, 1, 2}
    for point in built.points:
        np.testing.assert_allclose(built.forward(x, point), built.forward_numpy(x, point), rtol=1e-4, atol=1e-4)
    for loss in (0.0, 0.1, 0.4):
        labels, scores = built.top(x, 2, accuracy=built.target(loss))
        plain_labels, plain_scores = built.top_numpy(x, 2, accuracy=built.target(loss))
        np.testing.assert_allclose(scores, plain_scores, rtol=1e-4, atol=1e-4)
        clear = np.diff(plain_scores, axis=1, append=-np.inf) < -1e-3
        np.testing.assert_array_equal(labels[clear], plain_labels[clear])
        assert 0 <= built.cheapest(x[:1], built.target(loss))[0] < len(built.points)


def test_a_channel_that_is_dropped_is_zero_everywhere() -> None:
    """By hand: with every channel but the chosen ones cut out of the weights, the answer is the same."""
    built, x = model(), data().test.x[:1]
    chosen = [a.computed(built.mlp.layers[at], inputs(built, x, at), a.count(built.mlp.layers[at], 0.5))[0]
              for at, a in built.activators.items()]  # fmt: skip
    layers = list(built.mlp.layers)
    for at, nodes in enumerate(chosen):
        kept = np.zeros(layers[at].units, dtype=bool)
        kept[nodes] = True
        weights, bias = layers[at].weights.copy(), layers[at].bias.copy()
        weights[~kept], bias[~kept] = 0.0, -1.0
        layers[at] = replaced(layers[at], weights, bias)
    cut = MLP(SHAPE, tuple(layers))
    np.testing.assert_allclose(built.forward(x, built.points[1]), cut.logits(x.reshape(1, -1)), rtol=1e-4, atol=1e-4)


def inputs(built: SloNN, x: np.ndarray, layer: int) -> np.ndarray:
    from slotool.elastic.activators.activator import layer_input

    return layer_input(built.mlp, built.activators, x.reshape(1, -1), 0.5, layer)


def replaced(layer: Any, weights: np.ndarray, bias: np.ndarray) -> Any:
    if isinstance(layer, ConvLayer):
        return ConvLayer.of(layer.name, weights, bias, layer.geometry())
    return type(layer)(layer.name, weights, bias)


def test_tables_are_updated_with_what_comes_in() -> None:
    built = model()
    updates = TableUpdates(built)
    updates.rank(data().test.x[::2])
    updates.count(data().test.x[1::2], data().test.y[1::2])
    x = data().test.x[:5]
    updated = updates.updated()
    np.testing.assert_allclose(updated.forward(x, updated.full), built.forward(x, built.full), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("convolution", "refusal"),
    [
        ({"filters": 4, "kernel": 3, "activation": "tanh"}, "is of activation tanh; Node Activators take"),
        ({"filters": 4, "kernel": 3, "groups": 2}, "is a grouped or dilated convolution"),
        ({"filters": 4, "kernel": 3, "dilation": 2}, "is a grouped or dilated convolution"),
    ],
)
def test_convolutions_of_other_kinds_are_refused(convolution: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        network(convolution).mlp  # noqa: B018


def test_what_is_for_dense_layers_only_is_refused_in_a_sentence() -> None:
    assert with_weight_dtype(model(), data()) is model()
    for way in (
        lambda: with_weight_dtype(model(), data(), "int8"),
        lambda: prune(usual().mlp, data()),
    ):
        with pytest.raises(InputError, match="has convolutions"):
            way()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_pixels_are_refused_wherever_they_are(value: float) -> None:
    x = data().test.x[:2].copy()
    for place in (0, 71, 143):
        x[1].flat[place] = value
        for point in model().points:
            with pytest.raises(InputError, match="input 1 cannot be answered: it holds NaN or infinite"):
                model().forward(x, point)
        x[1].flat[place] = 0.0


def test_an_overflow_in_the_first_layer_is_told() -> None:
    first, *others = usual().mlp.layers
    large = MLP(SHAPE, (replaced(first, first.weights * np.float32(1e3), first.bias), *others))
    x, out = data().test.x[:3].reshape(3, -1).copy(), np.empty((3, CLASSES), dtype=np.float32)
    x[1] = 1e37
    assert Compiled(large, {}, ()).logits(x, out, 0) == 1
