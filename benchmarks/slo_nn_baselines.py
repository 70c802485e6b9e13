"""What else would answer the ``slo_nn`` benchmark's queries: PyTorch, ONNX Runtime, FAISS on the output layer."""

from __future__ import annotations

import importlib.util
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.machine import usable_cores

if TYPE_CHECKING:
    from benchmarks.slo_nn_rows import Bench

HNSW_LINKS, HNSW_BREADTHS = 32, (64, 256)
# Lists per square root of the number of labels; and how many of them are searched.
IVF_LISTS_FACTOR, IVF_PROBES = 4, (16, 64)
TRIED_PROBES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def add_torch(bench: Bench) -> None:
    """The network as its module; sparse inputs enter by an embedding bag."""
    import torch

    from slotool.elastic.slo_nn.assessment import TorchDense

    dense = TorchDense(bench.source)
    if bench.sparse:
        prepared = [(torch.from_numpy(i.astype(np.int64)), torch.from_numpy(v)) for i, v in bench.queries]
    else:
        prepared = [(torch.from_numpy(row.reshape(1, *bench.mlp.input_shape)),) for (row,) in bench.queries]
    places = {id(query[0]): at for at, query in enumerate(bench.queries)}

    def call(*query: Any) -> Any:
        with torch.inference_mode():
            return dense(*query)

    def answer(*query: np.ndarray) -> int:
        return int(call(*prepared[places[id(query[0])]]))

    what = "PyTorch, embedding_bag + linear" if bench.sparse else "PyTorch"
    bench.add(what, answer, bench.exact_bytes, dense=bench.sparse, call=call, queries=prepared)


def add_onnx(bench: Bench) -> None:
    """The whole network in ONNX Runtime, sparse inputs as gathered columns; and with its dynamic int8 products."""
    if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
        print("ONNX Runtime: left out, onnx or onnxruntime is not installed")
        return
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        plain, quantized = f"{folder}/plain.onnx", f"{folder}/int8.onnx"
        _write_onnx(bench, plain)
        quantize_dynamic(plain, quantized, weight_type=QuantType.QInt8, per_channel=False)
        for what, path, share in (("fp32", plain, 1.0), ("int8 dynamic", quantized, 0.25)):
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

            def answer(*query: np.ndarray, session: Any = session) -> int:
                if bench.sparse:
                    feed = {"indices": query[0].astype(np.int64), "values": query[1][None]}
                else:
                    feed = {"x": query[0][None]}
                return int(session.run(None, feed)[0][0])

            exact = what == "fp32"
            bench.add(f"ONNX Runtime {what}", answer, share * bench.exact_bytes, dense=bench.sparse, exact=exact)


def _write_onnx(bench: Bench, path: str) -> None:
    """Inputs → the label that scores highest: Gather for sparse inputs, then MatMul, Add, Relu, …, ArgMax."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes, constants = [], []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, bench.mlp.layers[0].inputs])]
    current = "x"
    if bench.sparse:
        inputs = [
            helper.make_tensor_value_info("indices", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("values", TensorProto.FLOAT, [1, "n"]),
        ]
        current = "values"
        nodes.append(helper.make_node("Gather", ["weights0", "indices"], ["gathered"], axis=0))
    for at, layer in enumerate(bench.mlp.layers):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(layer.weights.T), f"weights{at}"))
        constants.append(numpy_helper.from_array(layer.bias, f"bias{at}"))
        weights = "gathered" if bench.sparse and at == 0 else f"weights{at}"
        nodes.append(helper.make_node("MatMul", [current, weights], [f"products{at}"]))
        nodes.append(helper.make_node("Add", [f"products{at}", f"bias{at}"], [f"scores{at}"]))
        current = f"scores{at}"
        if at < len(bench.mlp.layers) - 1:
            nodes.append(helper.make_node("Relu", [current], [f"hidden{at}"]))
            current = f"hidden{at}"
    nodes.append(helper.make_node("ArgMax", [current], ["label"], axis=1, keepdims=0))
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [1])
    graph = helper.make_graph(nodes, "network", inputs, [label], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def _augmented(bench: Bench) -> np.ndarray | None:
    """float32 [labels, inputs + 2]: rows augmented so that inner products become distances; None without FAISS."""
    if importlib.util.find_spec("faiss") is None:
        print("FAISS: left out, faiss-cpu is not installed")
        return None
    last = bench.mlp.layers[-1]
    rows = np.column_stack([last.weights, last.bias])
    norms = (rows**2).sum(axis=1)
    return np.ascontiguousarray(np.column_stack([rows, np.sqrt(norms.max() - norms)]), dtype=np.float32)


def add_hnsw(bench: Bench) -> None:
    """FAISS HNSW over augmented rows, behind our compiled first layer."""
    rows = _augmented(bench)
    if rows is None:
        return
    import faiss

    index = faiss.IndexHNSWFlat(rows.shape[1], HNSW_LINKS)
    _fill(faiss, index, rows)
    for breadth in HNSW_BREADTHS:
        _add_search(bench, f"FAISS HNSW, L2-augmented, ef {breadth}", index, index.hnsw, "efSearch", breadth)


def add_ivf(bench: Bench, allowed_loss: float) -> None:
    """FAISS inverted lists over augmented rows, behind our compiled first layer: also by the fewest lists searched that
    validation examples promise to lose at most ``allowed_loss``."""
    rows = _augmented(bench)
    if rows is None:
        return
    import faiss

    lists = round(IVF_LISTS_FACTOR * np.sqrt(len(rows)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(rows.shape[1]), rows.shape[1], lists)
    # Few examples a list give a warning and good lists all the same.
    index.cp.min_points_per_centroid = 1
    index.train(rows)
    _fill(faiss, index, rows)
    promised = _least_probes(bench, index, allowed_loss)
    for probes in sorted({*IVF_PROBES, *([] if promised is None else [promised])}):
        _add_search(bench, f"FAISS IVF {lists}, L2-augmented, nprobe {probes}", index, index, "nprobe", probes)


def _least_probes(bench: Bench, index: Any, allowed_loss: float) -> int | None:
    from slotool.elastic.multilabel_training import top_labels
    from slotool.elastic.slo_nn.activator import layer_input
    from slotool.elastic.slo_nn.assessment import promised_loss
    from slotool.elastic.slo_nn.build import flat, right
    from slotool.elastic.slo_nn.calibration import CONFIDENCE

    split, last = bench.data.validation, len(bench.mlp.layers) - 1
    x = flat(split.x)
    hidden = layer_input(bench.mlp, {}, x, 1.0, last)
    queries = np.zeros((len(hidden), index.d), dtype=np.float32)
    queries[:, :-2], queries[:, -2] = hidden, 1.0
    full = right(top_labels(bench.mlp, x, 1), split.y)[:, 0]
    for probes in TRIED_PROBES:
        index.nprobe = probes
        correct = right(index.search(queries, 1)[1].astype(np.int32), split.y)[:, 0]
        if promised_loss(correct, full, CONFIDENCE) <= allowed_loss:
            print(f"IVF: {probes} of {index.nlist} lists searched promise the allowed loss")
            return probes
    print("IVF: no number of lists tried promises the allowed loss")
    return None


def _fill(faiss: Any, index: Any, rows: np.ndarray) -> None:
    """Filled with all threads, searched with one."""
    faiss.omp_set_num_threads(usable_cores())
    index.add(rows)
    faiss.omp_set_num_threads(1)


def _add_search(bench: Bench, what: str, index: Any, tuned: Any, name: str, value: int) -> None:
    query = np.zeros((1, index.d), dtype=np.float32)
    query[0, -2] = 1.0

    def answer(*arguments: np.ndarray) -> int:
        query[0, :-2] = bench.hidden(*arguments)
        setattr(tuned, name, value)
        return int(index.search(query, 1)[1][0, 0])

    bench.add(what, answer)
