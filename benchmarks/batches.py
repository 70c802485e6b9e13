"""Batches: microseconds per query when so many are answered in one call, against PyTorch on the same batch.

``python -m benchmarks batches`` reads networks and sets as ``slo_nn`` does, and builds tables by ``clusters``. One
thread. Rows: our answers one by one and in one call, at 0.3 points of validation accuracy given up (ACLO) and from all
nodes; the batch put in the order of its buckets, which is all that queries sharing a ranked list could bring to caches;
PyTorch. Beside them how many queries share a bucket, and the floor of all nodes: their products at the rate of a large
matrix product.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.slo_nn import ALLOWED_LOSS, cached_tables, load_set
from slotool.elastic.slo_nn.activator import layer_input
from slotool.elastic.slo_nn.assessment import TorchDense
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, flat, with_weight_dtype

SETS = ("tate-16k", "tibkat-35k")
BATCHES = (1, 16, 64, 256)
# Every way answers so many batches in turn, each batch of other queries.
ROUNDS = 9


def main() -> None:
    torch.set_num_threads(1)
    rate = _products_per_second()
    print(f"a large matrix product: {rate / 1e9:.0f} G multiply-adds a second")
    results = {}
    for name in os.environ.get("SLOTOOL_BENCH_SETS", ",".join(SETS)).split(","):
        subject = load_set(name)
        if subject is not None:
            results[name] = _one_set(name, *subject, rate)
    print(json.dumps({"benchmark": "batches", "gmacs": rate / 1e9, "sets": results}))


def _one_set(name: str, source: Any, data: Any, rate: float) -> list[dict[str, Any]]:
    subject = TableSubject(source.mlp, data)
    plain = cached_tables(name, "clusters", lambda: build("clusters", subject, "clusters", TableSettings()))
    model = with_weight_dtype(plain, data, "int8")
    target = model.target(ALLOWED_LOSS)
    x = flat(data.test.x)
    x = x[np.random.default_rng(0).permutation(x.shape[0])]
    rows = []
    for size in BATCHES:
        taken = _in_turns(_ways(plain, model, source, target, x, size), size)
        others = [layer.weights.size for layer in source.mlp.layers[1:]]
        active = x.nnz / x.shape[0] if model.sparse else source.mlp.layers[0].inputs
        floor = (sum(others) + active * source.mlp.layers[0].units) / rate * 1e6
        row = {"batch": size, "queries_per_bucket": _sharing(plain, x, size), "floor_us": floor, **taken}
        print(f"\n{name}, batches of {size}: {row['queries_per_bucket']:.2f} queries per bucket; floor {floor:.2f} µs")
        for what, us in taken.items():
            print(f"  {what:34} {us:9.2f} µs per query, {taken['PyTorch'] / us:7.2f} × PyTorch")
        rows.append(row)
    return rows


def _ways(
    plain: Any, model: Any, source: Any, target: float, x: Any, size: int
) -> dict[str, list[Callable[[], object]]]:
    """Per way of answering its calls, one per batch."""
    starts = [size * turn % (x.shape[0] - size + 1) for turn in range(ROUNDS)]
    parts = [x[start : start + size] for start in starts]
    aclo, full = model.compiled_session(1, accuracy=target), plain.compiled_session(1)
    ways: dict[str, list[Callable[[], object]]] = {
        "ours, 0.3 points, one by one": [_one_by_one(aclo, part) for part in parts],
        "ours, 0.3 points, one call": [partial(aclo.many, part) for part in parts],
        "the same, ordered by bucket": [partial(aclo.many, _ordered(plain, part)) for part in parts],
        "ours, all nodes float32, one by one": [_one_by_one(full, part) for part in parts],
        "ours, all nodes float32, one call": [partial(full.many, part) for part in parts],
    }
    torch_call = _torch(source)
    return {**ways, "PyTorch": [torch_call(part) for part in parts]}


def _one_by_one(session: Any, x: Any) -> Callable[[], None]:
    if isinstance(x, np.ndarray):
        queries = [(row,) for row in x]
        ask = session.dense
    else:
        queries = [(x.indices[a:b], x.data[a:b]) for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)]
        ask = session.sparse

    def call() -> None:
        for query in queries:
            ask(*query)

    return call


def _torch(source: Any) -> Callable[[Any], Callable[[], object]]:
    """The network in PyTorch on a batch."""
    dense = TorchDense(source)

    def batch(x: Any) -> Callable[[], object]:
        if not source.sparse:
            images = torch.from_numpy(x.reshape(len(x), *source.mlp.input_shape))
            return lambda: _quietly(lambda: dense(images))
        features, starts = (torch.from_numpy(part.astype(np.int64)) for part in (x.indices, x.indptr[:-1]))
        values = torch.from_numpy(x.data)
        return lambda: _quietly(lambda: dense(features, values, starts))

    return batch


def _quietly(call: Callable[[], object]) -> object:
    with torch.inference_mode():
        return call()


def _buckets(model: Any, x: Any) -> np.ndarray:
    at = model.first
    return model.activators[at].buckets(model.mlp.layers[at], layer_input(model.mlp, {}, x, 1.0, at))[:, 0]


def _ordered(model: Any, x: Any) -> Any:
    return x[np.argsort(_buckets(model, x), kind="stable")]


def _sharing(model: Any, x: Any, size: int) -> float:
    """Mean number of queries of a batch that share a bucket of the first activated layer."""
    buckets = _buckets(model, x)
    parts = [buckets[start : start + size] for start in range(0, len(buckets) - size + 1, size)]
    return float(np.mean([size / len(np.unique(part)) for part in parts]))


def _in_turns(ways: dict[str, list[Callable[[], object]]], size: int) -> dict[str, float]:
    """Median µs per query of each way; they take turns, so that drift of the machine hits all alike."""
    for calls in ways.values():
        calls[0]()
    taken: dict[str, list[float]] = {what: [] for what in ways}
    for turn in range(ROUNDS):
        for what, calls in ways.items():
            # Once for the caches, as a server that answers nothing else has them.
            calls[turn - 1]()
            started = time.perf_counter()
            calls[turn]()
            taken[what].append((time.perf_counter() - started) / size * 1e6)
    return {what: float(np.median(times)) for what, times in taken.items()}


def _products_per_second(side: int = 1024) -> float:
    a, b = torch.rand(side, side), torch.rand(side, side)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return side**3 / best


if __name__ == "__main__":
    main()
