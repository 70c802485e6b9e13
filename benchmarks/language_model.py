"""The output embedding of a decoder network as an SLO-NN's last layer, beside other ways to choose the next word.

``python -m benchmarks language_model`` trains a decoder of 32,768 words (``$SLOTOOL_BENCH_WORDS``) on Python source for
``$SLOTOOL_BENCH_TRAIN_S`` seconds, the standard library and the packages installed here, and writes it as an ONNX file.
ONNX Runtime runs it up to the output embedding in every row, so that rows differ by the last layer alone; except those
that say that they run the whole network. One thread, one query at a time, ways in turns of random order; every
statistic is of all samples. k is chosen on the validation split, with 90 % confidence of losing at most 0.3 points
against the full network; points lost are of the test split, with their paired standard error. Files, not lines, are
split. ``$SLOTOOL_NETWORKS`` names a folder for the trained decoder, ``$SLOTOOL_TABLES_CACHE`` one for its tables: with
both kept from a run before, what is left is timing, some two minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS, TRAIN_S = 32_768, 900.0
TEXT_WORDS = 6_000_000
EXAMPLES = {"train": 60_000, "validation": 10_000, "test": 10_000}
ALLOWED_LOSS = 0.003
POPULAR = 1_024
ROUNDS, BLOCK, WARM_UP = 15, 60, 3
FRONT, INT8_FRONT = "up to the output embedding only", "up to the output embedding only, int8"
FLOAT32 = "whole network, ONNX Runtime, float32"
INT8_BEFORE = ", int8 up to there"
IVF_LISTS, IVF_PROBES = 512, (8, 32)


def main() -> None:
    import torch

    from slotool.elastic.slo_nn.importers.onnx import cut_onnx
    from slotool.elastic.slo_nn.last_layer.build import LastLayerSource

    count = int(os.environ.get("SLOTOOL_BENCH_WORDS", WORDS))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(os.environ.get("SLOTOOL_NETWORKS", place)) / f"decoder-{count}"
        if not (folder / "data.npz").is_file():
            _train(folder, count)
        data = _data(folder, count)
        torch.set_num_threads(1)
        source = LastLayerSource(cut_onnx(folder / "decoder.onnx", Path(place)), data)
        print(f"{count:,} words; {source.share()}")
        rows = _rows(source, data, folder, Path(place))
    print(
        json.dumps({"benchmark": "language_model", "words": count, "context": int(data.input_shape[0]), "rows": rows})
    )


def split_text(count: int, max_words: int = TEXT_WORDS) -> dict[str, list[np.ndarray]]:
    """Per split the files, as numbers of ``count`` words."""
    from benchmarks import language_network as network

    began = time.perf_counter()
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    files = network.numbered(list(network.texts(folders, max_words, seed=0)), count)
    bounds = [int(share * len(files)) for share in (0.8, 0.9)]
    parts = dict(zip(EXAMPLES, (files[: bounds[0]], files[bounds[0] : bounds[1]], files[bounds[1] :]), strict=True))
    words = {name: sum(map(len, part)) for name, part in parts.items()}
    print(f"{len(files):,} files, words {words}, read in {time.perf_counter() - began:.0f} s")
    return parts


def _train(folder: Path, count: int) -> None:
    """``decoder.onnx``, its scores [n, CONTEXT, words], and the examples of three splits."""
    import torch

    from benchmarks import language_network as network

    parts = split_text(count)
    seconds = float(os.environ.get("SLOTOOL_BENCH_TRAIN_S", TRAIN_S))
    decoder = network.trained(parts["train"], count, seconds, seed=0)
    folder.mkdir(parents=True)
    example = torch.zeros(1, network.CONTEXT, dtype=torch.int64)
    names: dict[str, Any] = {"input_names": ["words"], "output_names": ["scores"]}
    free = {"dynamic_axes": {"words": {0: "n"}, "scores": {0: "n"}}}
    torch.onnx.export(decoder, (example,), folder / "decoder.onnx", **names, **free, dynamo=False)
    drawn = {name: network.examples(parts[name], size, seed=at) for at, (name, size) in enumerate(EXAMPLES.items())}
    np.savez(
        folder / "data.npz",
        **{f"{name}_{of}": array for name, xy in drawn.items() for of, array in zip("xy", xy, strict=True)},
    )


def _data(folder: Path, count: int) -> Any:
    from slotool.data.dataset import Dataset, Split

    arrays = np.load(folder / "data.npz")
    splits = {name: Split(arrays[f"{name}_x"], arrays[f"{name}_y"]) for name in EXAMPLES}
    return Dataset("python-source", **splits, classes=count, labels=tuple(map(str, range(count))))


def _rows(source: Any, data: Any, folder: Path, place: Path) -> list[dict[str, Any]]:
    from benchmarks.slo_nn import cached_tables
    from slotool.elastic.slo_nn.build import TableSettings, build, with_weight_dtype

    began = time.perf_counter()
    settings = TableSettings(allowed_loss=ALLOWED_LOSS)
    head = cached_tables(folder.name, "clusters", lambda: build("next-word", source.subject, "clusters", settings))
    print(f"tables in {time.perf_counter() - began:.0f} s, {head.table_bytes / 2**20:.1f} MiB")
    quantized = with_weight_dtype(head, source.data, "int8", ALLOWED_LOSS)
    features, small = source.features, _int8_features(source, place)
    ways: dict[str, Callable[[np.ndarray], int]] = {FRONT: lambda one: int(features(one)[0, 0])}
    ways |= _whole_networks(folder, place)
    ways[INT8_FRONT] = lambda one: int(small(one)[0, 0])
    for model, rows in ((head, ""), (quantized, ", int8 rows")):
        fixed, target = model.fixed_for(ALLOWED_LOSS), model.target(ALLOWED_LOSS)
        if not model.int8:
            ways["slotool, all nodes"] = _top(model, features, point=model.full)
        if fixed != model.full:
            ways[f"slotool, fixed {fixed.key}{rows}"] = _top(model, features, point=fixed)
        ways[f"slotool, k per input{rows}"] = _top(model, features, accuracy=target)
        ways[f"slotool, k per input{rows}{INT8_BEFORE}"] = _top(model, small, accuracy=target)
    ways |= _fixed_lists(head, source.data, features, small)
    ways |= _searches(source.cut.layer, features)
    return _measured(ways, data.test.x, data.test.y)


def _top(model: Any, before: Any, **how: Any) -> Callable[[np.ndarray], int]:
    return lambda one: int(model.top(before(one), 1, **how)[0][0, 0])


def _fixed_lists(head: Any, data: Any, features: Any, small: Any) -> dict[str, Callable[[np.ndarray], int]]:
    """The same words for every input by the compiled call: the most popular ones, and all of them as int8."""
    from slotool.elastic.slo_nn.assessment import FixedList, shortest_popularity_list

    popular = np.argsort(-np.bincount(data.train.y, minlength=data.classes), kind="stable")
    counts, promised = [POPULAR], shortest_popularity_list(head, data.validation, ALLOWED_LOSS)
    if promised is None:
        print("popularity list: no k of the grid promises the allowed loss")
    elif len(promised) != POPULAR:
        counts.append(len(promised))
    ways = {}
    for count, int8 in [*((count, int8) for count in counts for int8 in (False, True)), (head.classes, True)]:
        listed = FixedList.of(head, popular[:count], int8=int8)
        what = "all words" if count == head.classes else f"the {count:,} most popular words"
        for before, end in ((features, ""), (small, INT8_BEFORE)) if int8 else ((features, ""),):
            ways[f"{what}{', int8 rows' if int8 else ''}{end}"] = _listed(listed, before)
    return ways


def _listed(listed: Any, before: Any) -> Callable[[np.ndarray], int]:
    return lambda one: int(listed.labels(before(one))[0])


def _whole_networks(folder: Path, place: Path) -> dict[str, Callable[[np.ndarray], int]]:
    """The ONNX file that scores the last position only, in float32, and as int8 by its dynamic quantisation."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    plain, quantized = place / "last-position.onnx", place / "int8.onnx"
    quantize_dynamic(plain, quantized, weight_type=QuantType.QInt8)
    files = {"all positions scored": folder / "decoder.onnx", "float32": plain, "int8": quantized}
    ways = {}
    for what, path in files.items():
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def way(one: np.ndarray, session: Any = session) -> int:
            scores = session.run(None, {"words": one.astype(np.int64)})[0]
            return int(scores.reshape(-1, scores.shape[-1])[-1].argmax())

        ways[f"whole network, ONNX Runtime, {what}"] = way
    return ways


def _int8_features(source: Any, place: Path) -> Any:
    """The network up to its output embedding, quantised dynamically by ONNX Runtime."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from slotool.elastic.slo_nn.importers.cutting import Features
    from slotool.models.loading import load

    path = place / "int8-front.onnx"
    quantize_dynamic(source.cut.front, path, weight_type=QuantType.QInt8)
    return Features(load(path, threads=1), source.original.input_shape)


def _searches(layer: Any, features: Any) -> dict[str, Callable[[np.ndarray], int]]:
    """FAISS's inverted lists over the rows of the output embedding, by inner product."""
    if importlib.util.find_spec("faiss") is None:
        print("FAISS: left out, faiss-cpu is not installed")
        return {}
    import faiss

    rows = np.ascontiguousarray(np.column_stack([layer.weights, layer.bias]), dtype=np.float32)
    ways = {}
    for probes in IVF_PROBES:
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(rows.shape[1]), rows.shape[1], IVF_LISTS, faiss.METRIC_INNER_PRODUCT
        )
        index.train(rows)
        index.add(rows)
        index.nprobe = probes

        def way(one: np.ndarray, index: Any = index) -> int:
            query = np.append(features(one)[0], np.float32(1))[None]
            return int(index.search(query, 1)[1][0, 0])

        ways[f"FAISS IVF {IVF_LISTS}, nprobe {probes}"] = way
    faiss.omp_set_num_threads(1)
    return ways


def _measured(ways: dict[str, Callable[[np.ndarray], int]], x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    """Accuracy of every way on all test examples, and its time in turns of random order."""
    from slotool.process import collector_off

    slow = "all positions"
    correct = {}
    for what, way in ways.items():
        if slow not in what:
            correct[what] = np.array([way(x[at : at + 1]) for at in range(len(x))]) == y
    taken: dict[str, list[float]] = {what: [] for what in ways}
    random = np.random.default_rng(0)
    with collector_off():
        for turn in range(ROUNDS):
            for what in random.permutation(list(ways)):
                block = BLOCK // 10 if slow in what else BLOCK
                for at in range(turn * block - WARM_UP, (turn + 1) * block):
                    one = x[at % len(x)][None]
                    began = time.perf_counter()
                    ways[what](one)
                    took = time.perf_counter() - began
                    if at >= turn * block:
                        taken[what].append(1e6 * took)
    rows = []
    for what in ways:
        row: dict[str, Any] = {"what": what, "samples": len(taken[what])}
        row |= {"median_us": float(np.median(taken[what])), "p99_us": float(np.quantile(taken[what], 0.99))}
        row |= {"mean_us": float(np.mean(taken[what])), "accuracy": None, "lost": None, "standard_error": None}
        if what in correct and what not in (FRONT, INT8_FRONT):
            lost = correct[FLOAT32].astype(float) - correct[what]
            error = float(lost.std() / np.sqrt(len(lost)))
            row |= {"accuracy": float(correct[what].mean()), "lost": float(lost.mean()), "standard_error": error}
        rows.append(row)
    median_us = {row["what"]: row["median_us"] for row in rows}
    for row in rows:
        front = INT8_FRONT if row["what"].endswith((INT8_BEFORE, "ONNX Runtime, int8")) else FRONT
        row |= {"layer_us": row["median_us"] - median_us[front], "speedup": median_us[FLOAT32] / row["median_us"]}
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return rows


if __name__ == "__main__":
    main()
