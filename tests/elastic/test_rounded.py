"""Whole networks in int8: the compiled call against NumPy, and the instruction against plain vector operations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from slotool.elastic.activators.integer_dots import LANES, dots_few, dots_few_plain
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.activators.rounded import RoundedMLP
from slotool.errors import InputError


def network(widths: tuple[int, ...], seed: int = 0) -> MLP:
    rng = np.random.default_rng(seed)
    layers = [
        DenseLayer(f"dense_{i}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
        for i, (m, n) in enumerate(pairwise(widths))
    ]
    return MLP((widths[0],), tuple(layers))


@given(
    seed=st.integers(0, 1_000),
    widths=st.sampled_from([(12, 24, 5), (7, 17, 130, 3), (64, 112, 112, 10), (3, 1, 300)]),
    zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_compiled_and_numpy_agree_and_come_close_to_the_network(
    seed: int, widths: tuple[int, ...], zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    own = network(widths, seed)
    rounded = RoundedMLP(own)
    x = rng.random(widths[0]).astype(np.float32) * 7
    x[rng.random(len(x)) < zeros] = 0
    logits, plain, exact = rounded.logits(x), rounded.logits_numpy(x), own.logits(x[None])[0]
    spread = max(1.0, float(np.abs(exact).max()))
    # One input a step apart, where a product is rounded once or twice, is all they may differ by.
    np.testing.assert_allclose(logits, plain, atol=0.01 * spread)
    np.testing.assert_allclose(logits, exact, atol=0.1 * spread)
    assert rounded.label(x) == logits.argmax()


def test_what_the_query_before_left_does_not_count() -> None:
    rounded, rng = RoundedMLP(network((12, 24, 5))), np.random.default_rng(0)
    x = rng.random((20, 12)).astype(np.float32)
    alone = [RoundedMLP(rounded.mlp).logits(row) for row in x]
    np.testing.assert_array_equal([rounded.logits(row) for row in x], alone)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf, -np.inf])
def test_what_cannot_be_rounded_is_refused(bad: float) -> None:
    rounded = RoundedMLP(network((12, 24, 5)))
    x = np.ones(12, np.float32)
    good = rounded.label(x)
    x[3] = bad
    with pytest.raises(InputError, match="negative, NaN or infinite"):
        rounded.label(x)
    x[3] = 1.0
    assert rounded.label(x) == good
    x[3] = -0.0
    np.testing.assert_array_equal(rounded.logits(x), RoundedMLP(rounded.mlp).logits(np.abs(x)))


@njit
def _both(weights, groups, listed, count, own, plain):  # type: ignore[no-untyped-def]
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
