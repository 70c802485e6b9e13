"""Whole-network latency of SLO-NNs, one thread, one query at a time, against those of ``slo_nn_baselines``.

``python -m benchmarks slo_nn`` reads networks from the folders in ``$SLOTOOL_NETWORKS`` (made by ``slotool train xmc``
and ``slotool train mlp``, each named after its data set) and the sets from ``$SLOTOOL_DATA_DIR``; a 112-112 network for
Fashion-MNIST is trained here if there is none. What is missing is left out with its reason; ``$SLOTOOL_BENCH_SETS``
names some of the sets only. Every row: accuracy lost against the full network on the test split with its paired
standard error, latency, and measured ÷ bound, the bound being the bytes the answer must read over the
bandwidth of reading as many. k is chosen on the validation split alone, with the loss promised by it. Means, medians
and 99th percentiles are of all samples, cold ones of calls whose weights no cache held. ``$SLOTOOL_TABLES_CACHE`` names
a folder for tables built before (a build takes minutes, and timing may come in a run of its own); rows of a set that
were measured before on this machine at this commit are kept there too, and printed again: so each set may be timed by
itself, and all recorded by a last run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.slo_nn_baselines import add_hnsw, add_ivf, add_onnx, add_torch
from benchmarks.slo_nn_rows import Bench, caches, print_rows
from slotool.elastic.family_files import load_family
from slotool.elastic.slo_nn.kernels.int8 import FAST
from slotool.elastic.slo_nn.kernels.intrinsics import header_of, layer_of
from slotool.elastic.slo_nn.kernels.layer import confidence, find_buckets, hash_nodes, pick

FASHION = "fashion-mnist"
SETS = (FASHION, "tate-16k", "tibkat-35k", "tibkat-words-196k")
# Accuracy that may be lost against the full network, promised with 90 % confidence by the validation split.
ALLOWED_LOSS = 0.003
POPULAR = 1_024
FASHION_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
RANKERS = ("clusters", "centred-freehash")
PER_INPUT_LOSSES = (0.005, 0.003, 0.002, 0.001)
CHOOSING_INPUTS, CHOOSING_ROUNDS = 2_000, 5


def main() -> None:
    import torch

    torch.set_num_threads(1)
    results = {}
    print(f"caches: {caches()}")
    for name in os.environ.get("SLOTOOL_BENCH_SETS", ",".join(SETS)).split(","):
        kept = _kept_rows(name)
        if kept is not None and kept.is_file():
            print(f"\n{name}: as measured before, {kept.name}")
            results[name] = json.loads(kept.read_text())
            print_rows(results[name]["rows"])
            continue
        subject = load_set(name)
        if subject is not None:
            results[name] = _one_set(name, *subject)
            if kept is not None:
                kept.write_text(json.dumps(results[name]))
    print(json.dumps({"benchmark": "slo_nn", "sets": results}))


def _kept_rows(name: str) -> Path | None:
    """Where the rows of a set are kept; nowhere without a place, or with changes that no commit names."""
    from benchmarks.record import commit
    from slotool.machine import machine_id

    place, made_at = os.environ.get("SLOTOOL_TABLES_CACHE"), commit()
    if place is None or not made_at or made_at.endswith("+"):
        return None
    return Path(place) / f"{name}-rows-{machine_id()}-{made_at}.json"


def load_set(name: str) -> tuple[Any, Any] | None:
    """The trained network and its data, or None with the reason printed."""
    from slotool.artifacts import open_artifact
    from slotool.data import load_dataset, load_multilabel

    folder = Path(os.environ.get("SLOTOOL_NETWORKS", "networks")) / name
    here = name in (FASHION, "digits")
    if ("SLOTOOL_DATA_DIR" not in os.environ and name != "digits") or not (folder.is_dir() or here):
        print(f"{name}: left out, no network {folder} or no $SLOTOOL_DATA_DIR")
        return None
    data: Any = load_dataset(name) if here else load_multilabel(name)
    if folder.is_dir():
        return load_family(open_artifact(folder)).networks[0], data
    from slotool.elastic.training import mlp, train_version

    began = time.perf_counter()
    source = train_version("mlp", mlp(data), data)
    print(f"\n{name}: no {folder}; trained a 112-112 network in {time.perf_counter() - began:.0f} s")
    return source, data


def _one_set(name: str, source: Any, data: Any) -> dict[str, Any]:
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build

    began = time.perf_counter()
    subject, settings = TableSubject(source.mlp, data), TableSettings(FASHION_SHARES if name == FASHION else None)
    models = {
        ranker: cached_tables(name, ranker, lambda r=ranker: build(r, subject, r, settings)) for ranker in RANKERS
    }
    print(f"\n{name}: tables of {len(RANKERS)} rankers in {time.perf_counter() - began:.0f} s")
    bench = Bench(source, data)
    for model in models.values():
        add_model(bench, model)
    add_popular(bench, models["clusters"])
    bench.add_session("k = 100 %", models["clusters"], models["clusters"].compiled_session(1), dense=True)
    bench.add_plain("our fused dense kernel, without tables")
    add_torch(bench)
    add_onnx(bench)
    if bench.sparse:
        add_hnsw(bench)
        add_ivf(bench, ALLOWED_LOSS)
    rows = bench.report()
    per_input = [row for model in models.values() for row in _per_input(model, data)]
    return {"rows": rows, "per_input": per_input, "choosing": [_choosing(model, data) for model in models.values()]}


def cached_tables(name: str, ranker: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives; or the same from a run before, where there is a place for it."""
    place = os.environ.get("SLOTOOL_TABLES_CACHE")
    if place is None:
        return make()
    from slotool.artifacts import open_artifact
    from slotool.elastic.slo_nn.model import SloNN

    folder = Path(place) / f"{name}-{ranker}"
    if folder.is_dir():
        model = SloNN.load(open_artifact(folder))
        estimates = np.load(folder.with_suffix(".npy"))
        model.calibration = replace(model.calibration, estimates=estimates)
        return model
    model = make()
    model.save(folder, config={}, seed=0)
    np.save(folder.with_suffix(".npy"), model.calibration.estimates)
    return model


def add_model(bench: Bench, model: Any) -> None:
    """At the allowed loss, as promised: k per input, and the least k fixed beforehand; rows in float32 and int8."""
    from slotool.elastic.slo_nn.build import with_weight_dtype

    large = len(model.mlp.layers) - 1 in model.activators
    for rows in ("float32", "int8") if large else ("float32",):
        chosen = with_weight_dtype(model, bench.data, rows)
        fixed, target = chosen.fixed_for(ALLOWED_LOSS), chosen.target(ALLOWED_LOSS)
        dense = fixed == chosen.full
        bench.add_session(
            f"{model.ranker}, fixed k, {rows}", chosen, chosen.compiled_session(1, point=fixed), dense=dense
        )
        if model.measure != "none":
            bench.add_session(f"{model.ranker}, ACLO, {rows}", chosen, chosen.compiled_session(1, accuracy=target))
    if not large:
        # What sparing nodes buys where the allowed loss spares none.
        middle = len(model.shares) // 2
        bench.add_session(
            f"{model.ranker}, {model.points[middle].key}", model, model.compiled_session(1, point=model.points[middle])
        )


def add_popular(bench: Bench, model: Any) -> None:
    """The most popular labels for every input, without tables or look-ups, by the same kernels in float32 and int8:
    ``POPULAR`` of them, and the fewest of the grid that promise the allowed loss."""
    from slotool.elastic.slo_nn.assessment import FixedList, shortest_popularity_list

    last = len(model.mlp.layers) - 1
    if last not in model.activators:
        return
    overall, row_bytes = model.activators[last].lists.overall.astype(np.int64), model.mlp.layers[last].inputs
    counts, promised = [POPULAR], shortest_popularity_list(model, bench.data.validation, ALLOWED_LOSS)
    if promised is None:
        print("popularity list: no k of the grid promises the allowed loss")
    elif len(promised) != POPULAR:
        counts.append(len(promised))
    for count in counts:
        for dtype, weight_bytes in (("float32", 4), ("int8", 1)):
            listed = FixedList.of(model, overall[:count], int8=dtype == "int8")
            session = listed.model.compiled_session(1, point=listed.model.points[listed.point])
            call = session.sparse if bench.sparse else session.dense
            answer = lambda *query, call=call, names=listed.names: int(names[call(*query)[0]])  # noqa: E731
            what, read = f"{count:,} most popular labels, {dtype}", float(count * row_bytes * weight_bytes)
            bench.add(what, answer, read, nodes=float(count), call=call)


def _per_input(model: Any, data: Any) -> list[dict[str, Any]]:
    """ACLO on the test split, and the k that, fixed beforehand, would have reached as much there, in hindsight.

    Between two k of the grid accuracy is taken for a straight line.
    """
    from slotool.elastic.slo_nn.assessment import PointPredictions, aclo_sweep, ideal_k

    answers = PointPredictions.of(model, data.test)
    by_point, shares = np.maximum.accumulate(answers.correct.mean(axis=0)), np.array([*model.shares, 1.0])
    ideal, rows = ideal_k(model, answers.correct), []
    for row in aclo_sweep(model, data.test.x, answers.correct, PER_INPUT_LOSSES):
        alike = float(np.interp(row["accuracy"], by_point, shares))
        print(
            f"{model.ranker}, ACLO at {100 * row['loss']:.1f} points: mean k {row['mean_k']:.4g}, lost "
            f"{-100 * row['difference']:.2f} ± {100 * row['standard_error']:.2f}; a fixed k as accurate: {alike:.4g}"
        )
        rows.append({"ranker": model.ranker, **row, "as_accurate_k": alike, "ideal_k": ideal})
    print(f"{model.ranker}: the ideal per input is a mean k of {ideal:.4g}")
    return rows


def _choosing(model: Any, data: Any) -> list[dict[str, Any]]:
    """µs per input and activated layer for choosing k and nodes, without the call: key, look-ups, the list.

    The dot products of a hash are counted too, though they are reused as outputs.
    """
    from slotool.elastic.slo_nn.activator import layer_input
    from slotool.elastic.slo_nn.build import flat

    rows = []
    for layer in model.activators:
        inputs = layer_input(model.mlp, {}, flat(data.test.x)[:CHOOSING_INPUTS], 1.0, layer)
        x = np.ascontiguousarray(inputs if isinstance(inputs, np.ndarray) else inputs.toarray(), dtype=np.float32)
        state = model.compiled.state
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
        rows.append({"ranker": model.ranker, "layer": name, "least_us": took[0], "largest_us": took[1]})
    return rows


@njit(fastmath=FAST)
def _choose(x: Any, layer: int, share: int, numbers: Any, ints: Any, ids: Any, bytes_: Any) -> float:
    header, row = header_of(ints), layer_of(ints, layer)
    inputs, total = numbers[header.input_at : header.input_at + row.inputs], 0.0
    for query in range(len(x)):
        inputs[:] = x[query]
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        for other in range(header.shares):
            total += confidence(row, other, numbers, ints)
        pick(row, row.hashed, ints[row.counts_at + share], ints, ids, bytes_)
    return total


if __name__ == "__main__":
    main()
