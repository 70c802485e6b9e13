"""Whole networks in int8: the compiled call against NumPy, and the instruction against plain vector operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from slotool.artifacts import open_artifact
from slotool.data import load_dataset
from slotool.elastic.activators.build import TableSettings, TableSubject, build
from slotool.elastic.activators.kernels.integer_dots import (
    LANES,
    LINE_BYTES,
    ROWS,
    dots_few,
    dots_few_plain,
    row_dots,
    row_dots_plain,
)
from slotool.elastic.activators.kernels.quantized import QuantizedMLP, top_quantized
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.activators.slo_nn import SloNN
from slotool.elastic.activators.weight_dtype import with_weight_dtype
from slotool.elastic.family import Family, Version
from slotool.errors import InputError
from slotool.testing.elastic import ElasticModelConformance
from tests.elastic.activator_subjects import trained


def network(widths: tuple[int, ...], seed: int = 0) -> MLP:
    rng = np.random.default_rng(seed)
    layers = [
        DenseLayer(f"dense_{i}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
        for i, (m, n) in enumerate(pairwise(widths))
    ]
    return MLP((widths[0],), tuple(layers))


def answered(quantized: QuantizedMLP, x: np.ndarray) -> np.ndarray:
    out = np.empty((len(x), quantized.mlp.classes), dtype=np.float32)
    assert not quantized.logits(x, out).any()
    return out


@given(
    seed=st.integers(0, 1_000),
    widths=st.sampled_from([(12, 24, 5), (7, 17, 130, 3), (64, 112, 112, 10), (3, 1, 300)]),
    zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_compiled_and_numpy_are_the_same_and_come_close_to_the_network(
    seed: int, widths: tuple[int, ...], zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    own = network(widths, seed)
    quantized = QuantizedMLP(own)
    x = rng.random((3, widths[0])).astype(np.float32) * 7
    x[rng.random(x.shape) < zeros] = 0
    logits, plain, exact = answered(quantized, x), np.empty((3, widths[-1]), np.float32), own.logits(x)
    assert not quantized.logits_numpy(x, plain).any()
    close = {"rtol": 1e-5, "atol": 1e-6 * max(1.0, float(np.abs(plain).max()))}  # sums alike, scaled in another order
    np.testing.assert_allclose(logits, plain, **close)
    np.testing.assert_allclose(logits, exact, atol=0.1 * max(1.0, float(np.abs(exact).max())))
    p = min(3, own.classes)
    labels, scores = np.empty(p, np.int32), np.empty(p, np.float32)
    assert top_quantized(x[0], quantized.handle(labels, scores)) == 0
    np.testing.assert_array_equal(labels, np.argsort(-logits[0], kind="stable")[:p])
    np.testing.assert_allclose(scores, logits[0][labels], **close)


def test_what_the_query_before_left_does_not_count() -> None:
    quantized, rng = QuantizedMLP(network((12, 24, 5))), np.random.default_rng(0)
    x = rng.random((20, 12)).astype(np.float32)
    alone = [answered(QuantizedMLP(quantized.mlp), row[None])[0] for row in x]
    np.testing.assert_array_equal(answered(quantized, x), alone)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf, -np.inf])
def test_what_cannot_be_rounded_is_refused(bad: float) -> None:
    quantized = QuantizedMLP(network((12, 24, 5)))
    x = np.ones((3, 12), np.float32)
    x[1, 3] = bad
    for way in (quantized.logits, quantized.logits_numpy):
        out = np.empty((3, 5), np.float32)
        np.testing.assert_array_equal(way(x, out), [False, True, False])
        np.testing.assert_array_equal(out[0], out[2])
    x[1, 3] = -0.0
    np.testing.assert_array_equal(answered(quantized, x), answered(quantized, np.abs(x)))


@lru_cache(maxsize=1)
def built() -> SloNN:
    """A network of digits, its tables, all layers in int8 at 100 %."""
    data = load_dataset("digits")
    model = build("slo-nn", TableSubject(trained(48, 32).mlp, data), "clusters", TableSettings((0.25, 0.5, 0.75)))
    assert with_weight_dtype(model, data) is model  # too small to be worth it by itself
    quantized = with_weight_dtype(model, data, "int8")
    assert quantized.all_int8
    return quantized


class TestModelInInt8(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> SloNN:
        return built()

    def inputs(self, model: SloNN, n: int) -> np.ndarray:
        return load_dataset("digits").test.x[:n]

    def plain(self, model: SloNN, x: np.ndarray) -> np.ndarray:
        out = np.empty((len(x), model.classes), dtype=np.float32)
        QuantizedMLP(model.mlp).logits_numpy(x.reshape(len(x), -1), out)
        return out


def test_a_model_in_int8_answers_like_plain_numpy_and_like_the_network() -> None:
    model, x = built(), load_dataset("digits").test.x
    for point in model.points:
        logits = model.forward(x, point)
        np.testing.assert_allclose(logits, model.forward_numpy(x, point), rtol=1e-4, atol=1e-4)
        labels, scores = model.top(x, 3, point=point)
        np.testing.assert_array_equal(labels, np.argsort(-logits, axis=1, kind="stable")[:, :3])
        np.testing.assert_allclose(scores, np.take_along_axis(logits, labels, axis=1), rtol=1e-5)
    exact = model.at_int8(False).forward(x, model.full)
    logits = model.forward(x, model.full)
    assert 0 < np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()
    assert (logits.argmax(axis=1) == exact.argmax(axis=1)).mean() > 0.98


def test_accuracy_targets_are_met_in_full_and_what_is_expected_there_was_measured() -> None:
    model, data = built(), load_dataset("digits")
    validation = (model.forward(data.validation.x, model.full).argmax(axis=1) == data.validation.y).mean()
    assert model.calibration.by_point[-1] == validation
    session = model.compiled_session(2, accuracy=model.target(0.05))
    for at in range(20):
        session.dense(data.test.x[at].ravel())
        assert session.taken == model.full
    assert (model.cheapest(data.test.x[:20], model.target(0.05)) == len(model.shares)).all()
    labels, scores = model.top(data.test.x[:20], 2, accuracy=model.target(0.05))
    plain_labels, plain_scores = model.top_numpy(data.test.x[:20], 2, accuracy=model.target(0.05))
    np.testing.assert_array_equal(labels, plain_labels)
    np.testing.assert_allclose(scores, plain_scores, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="cannot be met"):
        model.compiled_session(1, accuracy=1.01)


def test_negative_inputs_are_answered_in_float32_and_bad_ones_refused() -> None:
    model, x = built(), load_dataset("digits").test.x[:4].copy()
    assert not model.negative_inputs
    assert model.at_int8(False).negative_inputs
    x[2].flat[5] = -1.0
    logits, exact = model.forward(x, model.full), model.at_int8(False).forward(x, model.full)
    np.testing.assert_array_equal(logits[2], exact[2])
    assert (logits[[0, 1, 3]] != exact[[0, 1, 3]]).any(axis=1).all()
    np.testing.assert_allclose(model.forward_numpy(x, model.full), logits, rtol=1e-4, atol=1e-4)
    labels, scores = model.top(x, 1)
    np.testing.assert_allclose(scores[:, 0], logits.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(labels[:, 0], logits.argmax(axis=1))
    x[3].flat[0] = np.nan
    for way in (lambda: model.forward(x, model.full), lambda: model.top(x)):
        with pytest.raises(InputError, match="NaN or infinite"):
            way()


def test_build_tables_makes_it_and_evaluate_scores_it(slotool: Callable[..., Any], tmp_path: Path) -> None:
    model = built()
    Family("mlp", [Version.of_mlp("mlp", model.mlp)]).save(tmp_path / "mlp", config={"data": "digits"}, seed=0)
    command = ["build-tables", tmp_path / "mlp", "-o", tmp_path / "slo-nn", "--ranker", "clusters", "--k", "0.5"]
    done = slotool(*command, "--weight-dtype", "int8")
    assert done.exit_code == 0, done.stderr
    assert "at 100 % all layers are int8" in " ".join(done.stdout.split())
    assert open_artifact(tmp_path / "slo-nn").manifest["config"]["weight_dtype"] == "int8"
    done = slotool("evaluate", tmp_path / "slo-nn", "-o", tmp_path / "outcomes.parquet", "--json")
    assert done.exit_code == 0, done.stderr


def test_int8_in_all_layers_refuses_negative_inputs_when_built() -> None:
    data = load_dataset("digits")
    shifted = replace(data, validation=replace(data.validation, x=data.validation.x - 0.5))
    model = built().at_int8(False)
    with pytest.raises(InputError, match="not negative"):
        with_weight_dtype(model, shifted, "int8")
    assert with_weight_dtype(model, shifted) is model


@njit
def _both(weights, groups, listed, count, own, plain):
    dots_few(weights, 0, 4 * LANES, groups, listed, count, own, 0)
    dots_few_plain(weights, 0, 4 * LANES, groups, listed, count, plain, 0)


@given(seed=st.integers(0, 1_000), count=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_the_instruction_and_plain_vectors_give_the_same_sums(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-128, 128, size=(9, LANES, 4)).astype(np.int8)
    inputs = rng.integers(0, 256, size=(9, 4)).astype(np.uint8)
    listed = rng.permutation(9)[:count].astype(np.int64)
    own, plain = np.zeros(LANES, np.int32), np.zeros(LANES, np.int32)
    _both(weights.ravel(), inputs.view(np.int32).ravel(), listed, count, own, plain)
    expected = np.einsum("gni,gi->n", weights[listed].astype(int), inputs[listed].astype(int))
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(plain, expected)


@njit
def _both_rows(bytes_, at, lines, own, plain):
    row_dots(bytes_, 0, at[0], at[1], at[2], at[3], lines, own, 0)
    row_dots_plain(bytes_, 0, at[0], at[1], at[2], at[3], lines, plain, 0)


@given(seed=st.integers(0, 1_000), lines=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_four_rows_have_the_same_products_by_the_instruction_and_by_plain_vectors(seed: int, lines: int) -> None:
    rng = np.random.default_rng(seed)
    query = rng.integers(0, 256, size=lines * LINE_BYTES).astype(np.uint8)
    rows = rng.integers(-128, 128, size=(6, len(query))).astype(np.int8)
    chosen = rng.integers(6, size=ROWS)
    own, plain = np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32)
    _both_rows(np.concatenate([query.view(np.int8), rows.ravel()]), (1 + chosen) * len(query), lines, own, plain)
    expected = rows[chosen].astype(int) @ query.astype(int)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(plain, expected)
