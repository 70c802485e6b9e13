"""The nearest centroid of a quantized query is NumPy's to the last bit, whoever compiles it first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import pytest

from slotool.elastic.slo_nn.kernels import int8
from slotool.elastic.slo_nn.kernels.int8 import FAST
from slotool.elastic.slo_nn.kernels.layout import HEADER, LINE_BYTES, SUMS
from slotool.elastic.slo_nn.mlp import quantized_inputs

COUNT = 12


@lru_cache(maxsize=1)
def asked_first_by_a_fast_caller() -> Any:
    """Both functions compiled anew, as part of one that may reorder and fuse sums."""
    made = [
        numba.njit(**{name: value for name, value in function.targetoptions.items() if name != "nopython"})(
            function.py_func
        )
        for function in (int8.quantize_query, int8.nearest)
    ]
    quantize_query, nearest = made

    @numba.njit(fastmath=FAST)
    def ask(at: int, steps: int, count: int, width: int, numbers: Any, ints: Any, bytes_: Any) -> int:
        quantize_query(width, numbers, ints, bytes_)
        return nearest(at, steps, count, width, numbers, ints, bytes_)

    return ask


@pytest.mark.parametrize("least", [0.0, -3.0])
def test_a_caller_with_fastmath_gives_the_very_same_steps_and_values_as_numpy(least: float) -> None:
    ask, rng = asked_first_by_a_fast_caller(), np.random.default_rng(0)
    for width in (128, 20_000):
        stride = -(-width // LINE_BYTES) * LINE_BYTES
        room = np.zeros((1 + COUNT) * stride + LINE_BYTES, dtype=np.int8)
        start = -room.ctypes.data % LINE_BYTES
        bytes_ = room[start : start + (1 + COUNT) * stride]
        rows = rng.integers(-127, 128, size=(COUNT, width)).astype(np.int8)
        bytes_[stride:].reshape(COUNT, stride)[:, :width] = rows
        scale, offset = rng.random((2, COUNT), dtype=np.float32)
        sums, query_steps, steps_at = rows.sum(axis=1).astype(np.float32), width, width + SUMS + COUNT + 4
        header = np.zeros(1, dtype=HEADER)
        header["query_scale_at"], ints = query_steps, header.view(np.int64)
        for _ in range(20):
            x = (rng.random(width, dtype=np.float32) * np.float32(7) + np.float32(least))[None]
            numbers = np.zeros(steps_at + 3 * COUNT, dtype=np.float32)
            numbers[:width], numbers[steps_at:] = x[0], np.concatenate([scale, offset, sums])
            near = ask(stride, steps_at, COUNT, width, numbers, ints, bytes_)
            steps, step, lowest = quantized_inputs(x)
            np.testing.assert_array_equal(bytes_[:width].view(np.uint8), steps[0].astype(np.uint8))
            products = (steps[0].astype(np.int64) @ rows.T.astype(np.int64)).astype(np.float32)
            values = ((products * step + lowest * sums) * scale + offset)[0]
            np.testing.assert_array_equal(numbers[query_steps + SUMS : query_steps + SUMS + COUNT], values)
            assert near == values.argmax()
