"""Whole-network latency of SLO-aware networks on extreme-classification sets, one thread, one query at a time.

``python -m tests.perf slo_nn`` reads networks from the folders in ``$SLOTOOL_XMC_NETWORKS`` (made by ``slotool train
xmc``, each named after its data set) and the sets from ``$SLOTOOL_DATA_DIR``; a set that is missing is left out, and so
is a peer that is not installed, each with its reason. Every row: accuracy lost against the full network on the test
split with its paired standard error, median and mean latency, and measured ÷ bound, the bound being the bytes the
answer must read over the bandwidth of reading as many. k is chosen on the validation split alone.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("tate-16k", "tibkat-35k", "tibkat-words-196k")
# P@1 that may be lost. On validation data one standard error is added to what is lost there: the least k that just
# meets the promise on one sample breaks it on every second other.
ALLOWED_LOSS = 0.003
TIMED, TIMED_DENSE, WARM_UP = 3_000, 200, 50
HNSW_LINKS, HNSW_BREADTHS = 32, (64, 256)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    results = {}
    for name in SETS:
        folder = Path(os.environ.get("SLOTOOL_XMC_NETWORKS", "networks")) / name
        if "SLOTOOL_DATA_DIR" not in os.environ or not folder.is_dir():
            print(f"{name}: left out, no network {folder} or no $SLOTOOL_DATA_DIR")
            continue
        results[name] = _one_set(name, folder)
    print(json.dumps({"benchmark": "slo_nn", "sets": results}))


def _one_set(name: str, folder: Path) -> list[dict[str, Any]]:
    from slotool.artifacts import open_artifact
    from slotool.data import load_multilabel
    from slotool.elastic.activators.build import Settings, Subject, build
    from slotool.elastic.family import Family

    data, source = load_multilabel(name), Family.load(open_artifact(folder)).versions[0]
    began = time.perf_counter()
    subject = Subject(source.mlp, data)
    models = {ranker: build(ranker, subject, ranker, Settings()) for ranker in ("clusters", "centred-freehash")}
    print(f"\n{name}: tables of two rankers in {time.perf_counter() - began:.0f} s")
    bench = _Bench(source, data)
    for model in models.values():
        bench.add_model(model)
    bench.add_static(models["clusters"])
    bench.add_kernel(models["clusters"])
    bench.add_torch()
    bench.add_onnx()
    bench.add_hnsw()
    return bench.report()


class _Bench:
    """Rows of one set: each a call per query, the labels it answers on the test split, and the bytes it reads."""

    def __init__(self, source: Any, data: Any):
        self.source, self.data, self.mlp = source, data, source.mlp
        x = data.test.x
        self.queries = [(x.indices[a:b], x.data[a:b]) for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)]
        self.full = self._truth(self._labels_of_full())
        width = 4 * self.mlp.layers[0].units
        self.input_bytes = x.nnz / len(self.queries) * width
        self.dense_bytes = self.mlp.layers[-1].weights.nbytes
        self.rows: list[dict[str, Any]] = []

    def add_model(self, model: Any) -> None:
        """At the allowed loss: k per input, and the best k fixed beforehand; rows in float32 and int8."""
        at, error = self._least_k(model.activators, model.shares)
        fixed, target = model.points[at], float(model.calibration.by_point[-1]) - ALLOWED_LOSS + error
        for int8 in (False, True):
            rows = "int8" if int8 else "float32"
            chosen = model.at_int8(int8)
            self._add_answerer(f"{model.ranker}, fixed k, {rows}", chosen, chosen.answerer(1, point=fixed))
            if int8 and model.measure != "none":
                self._add_answerer(f"{model.ranker}, ACLO, {rows}", chosen, chosen.answerer(1, accuracy=target))

    def add_static(self, model: Any) -> None:
        """As many of the most popular labels, for every input, as the allowed loss asks for on validation data."""
        from slotool.elastic.activators.activator import Activator

        activator = model.activators[1]
        lists = {1: Activator(activator.ranker, activator.lists.popular())}
        share = [*model.shares, 1.0][self._least_k(lists, model.shares)[0]]
        count = round(share * self.mlp.classes)
        if count == self.mlp.classes:
            print("static popularity list: no k of the grid is enough")
            return
        nodes = activator.lists.overall[:count].astype(np.int64)
        weights, bias = self.mlp.layers[1].weights[nodes], self.mlp.layers[1].bias[nodes]
        columns = np.ascontiguousarray(self.mlp.layers[0].weights.T)

        def answer(indices: np.ndarray, values: np.ndarray) -> int:
            hidden = np.maximum(values @ columns[indices] + self.mlp.layers[0].bias, 0)
            return int(nodes[(weights @ hidden + bias).argmax()])

        self._add("static popularity list, NumPy", answer, weights.nbytes, nodes=count)

    def _least_k(self, activators: Any, shares: Sequence[float]) -> tuple[int, float]:
        """The least k whose loss on validation data, and a standard error more, is allowed; and that error."""
        from slotool.elastic.activators.build import right
        from slotool.elastic.activators.trying import try_all

        split = self.data.validation
        correct = right(try_all(self.mlp, activators, shares, split.x).labels, split.y).astype(float)
        lost = correct[:, -1:] - correct
        errors = lost.std(axis=0) / np.sqrt(len(lost))
        at = int((lost.mean(axis=0) + errors <= ALLOWED_LOSS).argmax())
        return at, float(errors[at])

    def add_kernel(self, model: Any) -> None:
        self._add_answerer("our dense kernel", model.at_int8(False), model.answerer(1), TIMED_DENSE)

    def add_torch(self) -> None:
        import torch

        from slotool.elastic.activators.assessment import TorchDense

        dense = TorchDense(self.source)
        prepared = {id(i): (torch.from_numpy(i.astype(np.int64)), torch.from_numpy(v)) for i, v in self.queries}

        def answer(indices: np.ndarray, values: np.ndarray) -> int:
            return int(dense(*prepared[id(indices)]))

        with torch.inference_mode():
            self._add("PyTorch, embedding_bag + linear", answer, self.dense_bytes, TIMED_DENSE)

    def add_onnx(self) -> None:
        """The output layer in ONNX Runtime behind our own sparse first layer: to its advantage."""
        if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
            print("ONNX Runtime: left out, onnx or onnxruntime is not installed")
            return
        import tempfile

        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        columns, bias = np.ascontiguousarray(self.mlp.layers[0].weights.T), self.mlp.layers[0].bias
        with tempfile.TemporaryDirectory() as folder:
            plain, rounded = f"{folder}/plain.onnx", f"{folder}/int8.onnx"
            _write_onnx(self.mlp.layers[-1], plain)
            quantize_dynamic(plain, rounded, weight_type=QuantType.QInt8, per_channel=False)
            for what, path, share in (("fp32", plain, 1.0), ("int8 dynamic", rounded, 0.25)):
                session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

                def answer(indices: np.ndarray, values: np.ndarray, session: Any = session) -> int:
                    hidden = np.maximum(values @ columns[indices] + bias, 0)[None]
                    return int(session.run(None, {"x": hidden})[0][0])

                self._add(f"ONNX Runtime {what}", answer, share * self.dense_bytes, TIMED_DENSE)

    def add_hnsw(self) -> None:
        """FAISS HNSW over rows augmented so that inner products become distances, behind our sparse first layer."""
        if importlib.util.find_spec("faiss") is None:
            print("FAISS HNSW: left out, faiss-cpu is not installed")
            return
        import faiss

        last = self.mlp.layers[-1]
        rows = np.column_stack([last.weights, last.bias])
        norms = (rows**2).sum(axis=1)
        index = faiss.IndexHNSWFlat(rows.shape[1] + 1, HNSW_LINKS)
        # Built with all threads, searched with one.
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        index.add(np.ascontiguousarray(np.column_stack([rows, np.sqrt(norms.max() - norms)]), dtype=np.float32))
        faiss.omp_set_num_threads(1)
        columns, bias = np.ascontiguousarray(self.mlp.layers[0].weights.T), self.mlp.layers[0].bias
        for breadth in HNSW_BREADTHS:
            query = np.zeros((1, rows.shape[1] + 1), dtype=np.float32)
            query[0, -2] = 1.0

            def answer(indices: np.ndarray, values: np.ndarray, breadth: int = breadth, query: Any = query) -> int:
                np.maximum(values @ columns[indices] + bias, 0, out=query[0, :-2])
                index.hnsw.efSearch = breadth
                return int(index.search(query, 1)[1][0, 0])

            self._add(f"FAISS HNSW, L2-augmented, ef {breadth}", answer, 0.0)

    def report(self) -> list[dict[str, Any]]:
        # The median of the peer over the mean of each row: what stalls the machine for a moment stalls the peer longer.
        reference = next(row["median_us"] for row in self.rows if row["what"].startswith("PyTorch"))
        heads = ("P@1 lost", "± SE", "nodes", "median", "mean µs", "÷ bound", "× torch")
        print(" " * 40 + " ".join(f"{head:>8}" for head in heads))
        for row in self.rows:
            row["speedup"] = reference / row["mean_us"]
            bound = f"{row['over_bound']:.1f}" if row["over_bound"] else ""
            print(
                f"{row['what']:40}{100 * row['lost']:8.2f} {100 * row['standard_error']:8.2f} {row['nodes']:8.0f} "
                f"{row['median_us']:8.2f} {row['mean_us']:8.2f} {bound:>8} {row['speedup']:8.1f}"
            )
        return self.rows

    def _add_answerer(self, what: str, model: Any, answerer: Any, timed: int = TIMED) -> None:
        shares = [*model.shares, 1.0]
        taken = []
        for indices, values in self.queries[:TIMED]:
            answerer.sparse(indices, values)
            taken.append(shares[model.points.index(answerer.taken)])
        nodes = float(np.mean(taken)) * self.mlp.classes
        per_row = self.mlp.layers[-1].inputs * (1 if model.int8 and nodes < self.mlp.classes else 4)
        self._add(what, lambda i, v: answerer.sparse(i, v)[0], nodes * per_row, timed, nodes, answerer.sparse)

    def _add(
        self,
        what: str,
        answer: Callable[[np.ndarray, np.ndarray], int],
        read_bytes: float,
        timed: int = TIMED,
        nodes: float | None = None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        dense = timed == TIMED_DENSE
        queries = self.queries if not dense or "int8" in what else self.queries[:timed]
        right = self._truth(np.array([answer(*query) for query in queries]))
        lost = self.full[: len(right)].astype(float) - right
        taken_us = _timed_us(call or answer, self.queries[:timed])
        bound_us = (read_bytes + self.input_bytes) / _bandwidth(read_bytes + self.input_bytes) * 1e6
        self.rows.append(
            {
                "what": what,
                "lost": float(lost.mean()),
                "standard_error": float(lost.std() / np.sqrt(len(lost))),
                "examples": len(lost),
                "nodes": float(nodes or self.mlp.classes),
                "median_us": float(np.median(taken_us)),
                "mean_us": float(np.mean(np.sort(taken_us)[: int(0.99 * len(taken_us))])),
                "over_bound": float(np.median(taken_us) / bound_us) if read_bytes else None,
            }
        )

    def _labels_of_full(self) -> np.ndarray:
        from slotool.elastic.precision import top_labels

        return top_labels(self.mlp, self.data.test.x, 1)[:, 0]

    def _truth(self, labels: np.ndarray) -> np.ndarray:
        found = self.data.test.y.take(np.arange(len(labels)))
        return found.contain(labels[:, None])[:, 0]


def _timed_us(call: Callable[..., Any], queries: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    for query in queries[:WARM_UP]:
        call(*query)
    taken = np.empty(len(queries))
    gc.collect()
    gc.disable()
    try:
        for i, query in enumerate(queries):
            started = time.perf_counter()
            call(*query)
            taken[i] = time.perf_counter() - started
    finally:
        gc.enable()
    return taken * 1e6


_MEASURED: dict[int, float] = {}


def _bandwidth(size: float) -> float:
    """Bytes a second when so many are read one after the other, in this process now."""
    floats = 1 << max(12, int(np.log2(max(size, 1) / 4)))
    if floats not in _MEASURED:
        data, best = np.ones(floats, dtype=np.float32), float("inf")
        for _ in range(20):
            started = time.perf_counter()
            data.dot(data)
            best = min(best, time.perf_counter() - started)
        # A dot product of a vector with itself reads it once.
        _MEASURED[floats] = data.nbytes / best
    return _MEASURED[floats]


def _write_onnx(layer: Any, path: str) -> None:
    """x → the label that scores highest: MatMul, Add, ArgMax."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(layer.weights.T), "weights"),
        numpy_helper.from_array(layer.bias, "bias"),
    ]
    graph = helper.make_graph(
        nodes,
        "output",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, layer.inputs])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, [1])],
        constants,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


if __name__ == "__main__":
    main()
