"""What checking a query costs: a session's compiled entry against the same without checks; and ``top`` on a CSR row."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from slotool.elastic.slo_nn.kernels import single
from slotool.elastic.slo_nn.kernels.int8 import FAST

ROUNDS, CALLS = 400, 200


@njit(single.DENSE, cache=True, fastmath=FAST)
def unchecked_dense(x: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    numbers, ints, ids, bytes_ = single._arrays(handle)
    labels, scores = single._last_answer(handle)
    active = single.load_dense(x, numbers, ints)
    return single._top(active, labels, scores, handle, threshold, numbers, ints, ids, bytes_)


@njit(single.SPARSE, cache=True, fastmath=FAST)
def unchecked_sparse(indices: np.ndarray, values: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    numbers, ints, ids, bytes_ = single._arrays(handle)
    active = single.load_sparse(indices, values, numbers, ints)
    labels, scores = single._last_answer(handle)
    point = single._top(active, labels, scores, handle, threshold, numbers, ints, ids, bytes_)
    single.unload_sparse(indices, numbers, ints)
    return point


def nanoseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, np.ndarray]:
    """Means of ``CALLS`` calls in a row, ``ROUNDS`` of them, taking turns in random order: all of them, in ns."""
    rng, samples = np.random.default_rng(0), {name: np.empty(ROUNDS) for name in calls}
    for turn in range(ROUNDS):
        for name in rng.permutation(list(calls)):
            call = calls[name]
            started = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            samples[name][turn] = (time.perf_counter_ns() - started) / CALLS
    return samples


def main() -> None:
    from tests.elastic.tiny_slo_nns import dense_model, examples, sparse_model

    x, row = examples(False, 1, 1)[0], examples(True, 1, 1)
    dense, sparse = (model.compiled_session(1, point=model.points[0]) for model in (dense_model(), sparse_model()))
    dense.dense(x)
    sparse.sparse(row.indices, row.data)
    own, its = (dense._handle, dense._threshold), (sparse._handle, sparse._threshold)
    entry, sparse_entry, indices, values = single.top_dense, single.top_sparse, row.indices, row.data
    model = sparse_model()
    calls: dict[str, Callable[[], Any]] = {
        "dense, unchecked": lambda: unchecked_dense(x, *own),
        "dense, checked": lambda: entry(x, *own),
        "dense, session": lambda: dense.dense(x),
        "sparse, unchecked": lambda: unchecked_sparse(indices, values, *its),
        "sparse, checked": lambda: sparse_entry(indices, values, *its),
        "sparse, session": lambda: sparse.sparse(indices, values),
        "SloNN.top, a CSR row": lambda: model.top(row, point=model.points[0]),
    }
    for call in calls.values():
        call()
    figures = nanoseconds(calls)
    for name, values_ns in figures.items():
        low, middle, high = np.percentile(values_ns, [10, 50, 90])
        print(f"{name:22} {middle:8.0f} ns   10 % {low:8.0f}   90 % {high:8.0f}   mean {values_ns.mean():8.0f}")
    differences = {}
    for kind in ("dense", "sparse"):
        each = figures[f"{kind}, checked"] - figures[f"{kind}, unchecked"]
        differences[kind] = float(np.median(each))
        print(f"what the check of a {kind} query costs: {differences[kind]:.0f} ns, median of {ROUNDS} pairs")
    medians = {name: float(np.median(values_ns)) for name, values_ns in figures.items()}
    print(json.dumps({"benchmark": "kernel_checks", "medians_ns": medians, "check_ns": differences}))


if __name__ == "__main__":
    main()
