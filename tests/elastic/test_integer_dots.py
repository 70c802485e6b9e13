"""Products of whole cache lines: the instruction against plain vector operations."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from slotool.elastic.slo_nn.kernels.int8 import ROWS, row_dots, row_dots_plain
from slotool.elastic.slo_nn.kernels.layout import LINE_BYTES


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
