"""Whole-network latency of SLO-aware networks, one thread, one query at a time, beside the peers of ``slo_nn_peers``.

``python -m tests.perf slo_nn`` reads networks from the folders in ``$SLOTOOL_NETWORKS`` (made by ``slotool train xmc``
and ``slotool train mlp``, each named after its data set) and the sets from ``$SLOTOOL_DATA_DIR``; a 112-112 network for
Fashion-MNIST is trained here if there is none. What is missing is left out with its reason; ``$SLOTOOL_BENCH_SETS``
names some of the sets only. Every row: accuracy lost against the full network on the test split with its paired
standard error, median and mean latency, and measured ÷ bound, the bound being the bytes the answer must read over the
bandwidth of reading as many. k is chosen on the validation split alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from slotool.elastic.activators.layer_kernels import FAST, confidence, find_buckets, hash_nodes, pick
from slotool.elastic.activators.layout import (
    COUNTS_AT,
    FIELDS,
    HASHED,
    HEADER,
    INPUT_AT,
    INPUTS,
    SHARES,
)
from tests.perf.slo_nn_peers import add_hnsw, add_ivf, add_onnx, add_torch
from tests.perf.slo_nn_rows import Bench

FASHION = "fashion-mnist"
SETS = (FASHION, "tate-16k", "tibkat-35k", "tibkat-words-196k")
# Accuracy that may be lost. On validation data one standard error is added to what is lost there: the least k that just
# meets the promise on one sample breaks it on every second other.
ALLOWED_LOSS = 0.003
FASHION_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
RANKERS = ("clusters", "centred-freehash")
PER_INPUT_LOSSES = (0.005, 0.003, 0.002, 0.001)
CHOOSING_INPUTS, CHOOSING_ROUNDS = 2_000, 5


def main() -> None:
    import torch

    torch.set_num_threads(1)
    results = {}
    for name in os.environ.get("SLOTOOL_BENCH_SETS", ",".join(SETS)).split(","):
        subject = _load(name)
        if subject is not None:
            results[name] = _one_set(name, *subject)
    print(json.dumps({"benchmark": "slo_nn", "sets": results}))


def _load(name: str) -> tuple[Any, Any] | None:
    """The trained network and its data, or None with the reason printed."""
    from slotool.artifacts import open_artifact
    from slotool.data import load_dataset, load_multilabel
    from slotool.elastic.family import Family

    folder = Path(os.environ.get("SLOTOOL_NETWORKS", "networks")) / name
    if "SLOTOOL_DATA_DIR" not in os.environ or not (folder.is_dir() or name == FASHION):
        print(f"{name}: left out, no network {folder} or no $SLOTOOL_DATA_DIR")
        return None
    data: Any = load_dataset(name) if name == FASHION else load_multilabel(name)
    if folder.is_dir():
        return Family.load(open_artifact(folder)).versions[0], data
    from slotool.elastic.training import mlp, train_version

    began = time.perf_counter()
    source = train_version("mlp", mlp(data), data)
    print(f"\n{name}: no {folder}; trained a 112-112 network in {time.perf_counter() - began:.0f} s")
    return source, data


def _one_set(name: str, source: Any, data: Any) -> dict[str, Any]:
    from slotool.elastic.activators.build import Settings, Subject, build

    began = time.perf_counter()
    subject, settings = Subject(source.mlp, data), Settings(FASHION_SHARES if name == FASHION else None)
    models = {ranker: build(ranker, subject, ranker, settings) for ranker in RANKERS}
    print(f"\n{name}: tables of {len(RANKERS)} rankers in {time.perf_counter() - began:.0f} s")
    bench = Bench(source, data)
    for model in models.values():
        add_model(bench, model)
    add_static(bench, models["clusters"])
    bench.add_answerer("k = 100 %", models["clusters"], models["clusters"].answerer(1), dense=True)
    bench.add_plain("our fused dense kernel, without tables")
    if not bench.sparse:
        bench.add_rounded("our int8 network, all nodes", models["clusters"])
    add_torch(bench)
    add_onnx(bench)
    if bench.sparse:
        add_hnsw(bench)
        add_ivf(bench)
    rows = bench.report()
    per_input = [found for model in models.values() for found in _per_input(model, data)]
    return {"rows": rows, "per_input": per_input, "choosing": [_choosing(model, data) for model in models.values()]}


def add_model(bench: Bench, model: Any) -> None:
    """At the allowed loss: k per input, and the best k fixed beforehand; output rows in float32 and int8."""
    at, error = _least_k(bench, model.activators, model.shares)
    fixed, target = model.points[at], float(model.calibration.by_point[-1]) - ALLOWED_LOSS + error
    large = len(model.mlp.layers) - 1 in model.activators
    for int8 in (False, True) if large else (False,):
        rows = "int8" if int8 else "float32"
        chosen = model.at_int8(int8)
        dense = at == len(model.shares)
        bench.add_answerer(f"{model.ranker}, fixed k, {rows}", chosen, chosen.answerer(1, point=fixed), dense=dense)
        if (int8 or not large) and model.measure != "none":
            bench.add_answerer(f"{model.ranker}, ACLO, {rows}", chosen, chosen.answerer(1, accuracy=target))
    if not large:
        # What sparing nodes buys where the allowed loss spares none.
        middle = len(model.shares) // 2
        bench.add_answerer(
            f"{model.ranker}, {model.points[middle].key}", model, model.answerer(1, point=model.points[middle])
        )


def add_static(bench: Bench, model: Any) -> None:
    """As many of the most popular labels, for every input, as the allowed loss asks for on validation data."""
    from slotool.elastic.activators.activator import Activator

    last = len(model.mlp.layers) - 1
    if last not in model.activators:
        return
    lists = {last: Activator(model.activators[last].ranker, model.activators[last].lists.popular())}
    share = [*model.shares, 1.0][_least_k(bench, lists, model.shares)[0]]
    count = round(share * bench.mlp.classes)
    if count == bench.mlp.classes:
        print("static popularity list: no k of the grid is enough")
        return
    layer, nodes = bench.mlp.layers[last], model.activators[last].lists.overall[:count].astype(np.int64)
    weights, bias = layer.weights[nodes], layer.bias[nodes]

    def answer(*query: np.ndarray) -> int:
        return int(nodes[(weights @ bench.hidden(*query) + bias).argmax()])

    bench.add("static popularity list, NumPy", answer, weights.nbytes, nodes=count)


def _least_k(bench: Bench, activators: Any, shares: Sequence[float]) -> tuple[int, float]:
    """The least k whose loss on validation data, and a standard error more, is allowed; and that error."""
    from slotool.elastic.activators.build import flat, right
    from slotool.elastic.activators.expectation import Expectation
    from slotool.elastic.activators.trying import try_all

    split = bench.data.validation
    trials = try_all(bench.mlp, activators, shares, flat(split.x))
    correct = right(trials.labels, split.y).astype(float)
    expected = Expectation.learn(trials, correct).of(trials)
    lost, hoped = (answers[:, -1:] - answers for answers in (correct, expected))
    errors = lost.std(axis=0) / np.sqrt(len(lost))
    at = int((np.maximum(lost.mean(axis=0), hoped.mean(axis=0)) + errors <= ALLOWED_LOSS).argmax())
    return at, float(errors[at])


def _per_input(model: Any, data: Any) -> list[dict[str, Any]]:
    """ACLO on the test split beside the k that, fixed beforehand, would have reached as much there, in hindsight.

    Between two k of the grid accuracy is taken for a straight line.
    """
    from slotool.elastic.activators.assessment import Answers, aclo_sweep, ideal_k

    answers = Answers.of(model, data.test)
    by_point, shares = np.maximum.accumulate(answers.correct.mean(axis=0)), np.array([*model.shares, 1.0])
    ideal, found = ideal_k(model, answers.correct), []
    for row in aclo_sweep(model, data.test.x, answers.correct, PER_INPUT_LOSSES):
        alike = float(np.interp(row["accuracy"], by_point, shares))
        print(
            f"{model.ranker}, ACLO at {100 * row['loss']:.1f} points: mean k {row['mean_k']:.4g}, lost "
            f"{-100 * row['difference']:.2f} ± {100 * row['standard_error']:.2f}; a fixed k as accurate: {alike:.4g}"
        )
        found.append({"ranker": model.ranker, **row, "as_accurate_k": alike, "ideal_k": ideal})
    print(f"{model.ranker}: the ideal per input is a mean k of {ideal:.4g}")
    return found


def _choosing(model: Any, data: Any) -> list[dict[str, Any]]:
    """µs per input and activated layer for choosing k and nodes, without the call: key, look-ups, the list.

    The dot products of a hash are counted too, though they are reused as outputs.
    """
    from slotool.elastic.activators.activator import layer_input
    from slotool.elastic.activators.build import flat

    found = []
    for layer in model.activators:
        inputs = layer_input(model.mlp, {}, flat(data.test.x)[:CHOOSING_INPUTS], 1.0, layer)
        x = np.ascontiguousarray(inputs if isinstance(inputs, np.ndarray) else inputs.toarray(), dtype=np.float32)
        state = model._compiled.state
        took = []
        for share in (0, len(model.shares) - 1):
            best = float("inf")
            for _ in range(CHOOSING_ROUNDS):
                started = time.perf_counter()
                _choose(x, layer, share, *state)
                best = min(best, time.perf_counter() - started)
            took.append(best / len(x) * 1e6)
        name = model.mlp.layers[layer].name
        print(f"choosing by {model.ranker} in {name}: {took[0]:.2f} µs at the least k, {took[1]:.2f} µs at the largest")
        found.append({"ranker": model.ranker, "layer": name, "least_us": took[0], "largest_us": took[1]})
    return found


@njit(fastmath=FAST)
def _choose(x: Any, layer: int, share: int, numbers: Any, ints: Any, ids: Any, bytes_: Any) -> float:
    row = ints[HEADER + layer * FIELDS : HEADER + (layer + 1) * FIELDS]
    inputs, total = numbers[ints[INPUT_AT] : ints[INPUT_AT] + row[INPUTS]], 0.0
    for query in range(len(x)):
        inputs[:] = x[query]
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        for other in range(ints[SHARES]):
            total += confidence(row, other, numbers, ints)
        pick(row, row[HASHED], ints[row[COUNTS_AT] + share], ints, ids, bytes_)
    return total


if __name__ == "__main__":
    main()
