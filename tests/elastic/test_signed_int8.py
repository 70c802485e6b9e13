"""int8 weights of a layer whose inputs may be negative: the compiled call against NumPy, and against float32."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.data.dataset import Dataset, Split
from slotool.elastic.slo_nn.activator import Activator, NodeLists
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, with_weight_dtype
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer, Int8Weights
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder
from slotool.errors import InputError
from tests.elastic import numpy_slo_nn

CLASSES, WIDTH = 300, 40


def data() -> Dataset:
    """Examples near prototypes, of either sign."""
    rng = np.random.default_rng(1)
    y = rng.integers(CLASSES, size=2_000)
    x = (last_layer().weights[y] + 0.3 * rng.normal(size=(len(y), WIDTH))).astype(np.float32)
    parts = [Split(x[part], y[part]) for part in (slice(0, 1_400), slice(1_400, 1_700), slice(1_700, 2_000))]
    return Dataset("near", *parts, classes=CLASSES, labels=tuple(map(str, range(CLASSES))))


@cache
def last_layer(units: int = CLASSES, width: int = WIDTH) -> DenseLayer:
    weights = np.random.default_rng(0).normal(size=(units, width)).astype(np.float32)
    return DenseLayer("last", weights, (-0.5 * (weights**2).sum(axis=1)).astype(np.float32))


@cache
def built(ranker: str) -> tuple[SloNN, SloNN]:
    """In float32 and in int8."""
    subject = TableSubject(MLP((WIDTH,), (last_layer(),), partial=True), data())
    model = build("near", subject, ranker, TableSettings((0.05, 0.5), bits=4))
    return model, with_weight_dtype(model, subject.data, "int8")


@pytest.mark.parametrize("ranker", ["clusters", "centred-freehash", "mongoose"])
def test_compiled_and_numpy_give_the_same_answers_close_to_float32(ranker: str) -> None:
    exact, quantized = built(ranker)
    assert quantized.int8
    x = data().test.x[:60]
    assert x.min() < 0
    for point in quantized.points:
        logits, plain, float32 = (
            quantized.forward(x, point),
            numpy_slo_nn.forward(quantized, x, point),
            exact.forward(x, point),
        )
        np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(np.isfinite(logits), np.isfinite(float32))
        computed = np.isfinite(float32)
        np.testing.assert_allclose(logits[computed], float32[computed], atol=0.02 * np.abs(float32[computed]).max())
        assert (logits[computed] != float32[computed]).any() == (point != quantized.full)
        labels, scores = quantized.top(x, 3, point=point)
        plain_labels, plain_scores = numpy_slo_nn.top(quantized, x, 3, point=point)
        np.testing.assert_array_equal(labels, plain_labels)
        np.testing.assert_allclose(scores, plain_scores, rtol=1e-5, atol=1e-4)
    assert (quantized.top(x)[0] == exact.top(x)[0]).all()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    _, model = built("clusters")
    x = data().test.x[:3].copy()
    x[1, 7] = bad
    for way in (model.top, model.forward, partial(numpy_slo_nn.top, model)):
        with pytest.raises(InputError, match="NaN or infinite"):
            way(x, point=model.points[0])
    np.testing.assert_array_equal(model.top(x[[0, 2]])[0], model.top(data().test.x[[0, 2]])[0])


@given(
    seed=st.integers(0, 1_000),
    width=st.sampled_from([1, 40, 128, 200]),
    low=st.sampled_from([-3.0, -1e-3, 0.0, 5.0]),
    high=st.sampled_from([-2.0, 0.0, 1.0, 700.0]),
)
@settings(max_examples=25, deadline=None)
def test_inputs_of_any_range(seed: int, width: int, low: float, high: float) -> None:
    rng = np.random.default_rng(seed)
    layer = last_layer(30, width)
    x = rng.uniform(min(low, high), max(low, high), size=(3, width)).astype(np.float32)
    listed = NodeLists(np.zeros((1, 1), np.uint16), np.arange(20, dtype=np.uint8)[None], np.arange(30, dtype=np.uint8))
    model = SloNN(
        "any",
        MLP((width,), (layer,), partial=True),
        (20 / 30,),
        {0: Activator(RandomOrder(), listed)},
        built("clusters")[0].confidence,
        built("clusters")[0].calibration,
        {},
        int8=True,
    )
    plain = numpy_slo_nn.QuantizedLayer(
        layer.name, layer.weights, layer.bias, Int8Weights.of(layer), np.empty(0, np.int64)
    )
    wanted = plain.pre_activations(x)
    close = {"rtol": 1e-5, "atol": 1e-5 * float(np.abs(wanted).max())}
    np.testing.assert_allclose(model.forward(x, model.points[0])[:, :20], wanted[:, :20], **close)
    spread = max(x.max(), 0) - min(x.min(), 0)
    steps = (
        np.abs(layer.weights).sum(axis=1) * spread / 255
        + layer.weights.shape[1] * np.abs(x).max() * np.abs(layer.weights).max(axis=1) / 127
    )
    assert (np.abs(wanted - layer.pre_activations(x)) <= steps + 1e-3).all()
