"""What bounds a server of small and of large models: idle connections, overhead of a request, goodput, many labels.

``python -m benchmarks serving_limits``: the server has one core and the client in C (``load.c``) the other; each part
interleaves what it compares, in ``SLOTOOL_BENCH_ROUNDS`` rounds (5) of ``SLOTOOL_BENCH_SECONDS`` a load (3). gRPC is
asked by tritonclient's stub. ``SLOTOOL_BENCH_PARTS``: beginnings of the names of the parts to run, by commas.
llhttp on uvloop comes from the environment of ``front_ends``, Triton in one beside those of ``serving_peers``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import slotool
from benchmarks.front_ends import environment
from benchmarks.peer_servers import (
    OPEN_CONNECTIONS,
    Question,
    Running,
    client_cores,
    free_port,
    served,
    server_core,
    spread,
)
from benchmarks.served_request import _bare_grpc, _grpc_caller, _process_of
from benchmarks.serving_peers import HERE, ROOT, binary_question, installed
from slotool.artifacts.bundle import shipped_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.process import allow_connections, bound_to

MODEL = "model"
IDLE = 4_000
CLOSED_WITHIN_S = 10.0
# Requests a second while connections are idle: a tenth of what the server can do, so that none waits for another.
IDLE_RATE_PER_S = 1_000.0
IMAGE = (3, 128, 128)
# Output channels and stride of 3 x 3 convolutions: about 3.4 GFLOP an image, 10 to 30 ms on one core that is idle.
CONVOLUTIONS = ((32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 9)
# Of what the bare session can do, in Poisson arrivals.
IMAGE_LOADS = (0.3, 0.5, 0.7)
TRITON = ("nvidia-pytriton", "onnxruntime")
FEATURES, HIDDEN, LABELS, NONZERO, TOP = 10_000, 64, 50_000, 75, 5
GOALS = {"idle connections": "10 KB each", "overhead": "HTTP 1.5 x, gRPC 2 x", "image network": "0.97",
         "beside Triton": "no worse", "many labels": "400 µs"}  # fmt: skip


def main() -> None:
    parts = {"idle connections": _idle, "overhead": _overhead, "image network": _images,
             "beside Triton": _beside_triton, "many labels": _labels}  # fmt: skip
    beginnings = tuple(os.environ.get("SLOTOOL_BENCH_PARTS", "").split(","))
    figures: dict[str, Any] = {}
    for name, part in parts.items():
        if name.startswith(beginnings):
            with tempfile.TemporaryDirectory() as folder:
                figures[name] = part(Path(folder))
            print(f"{name}: {figures[name].pop('said')} (goal: {GOALS[name]})", flush=True)
    print(json.dumps({"benchmark": "serving_limits", "found": figures}))


def _rounds() -> range:
    return range(int(os.environ.get("SLOTOOL_BENCH_ROUNDS", "5")))


def _seconds() -> float:
    return float(os.environ.get("SLOTOOL_BENCH_SECONDS", "3"))


def _serving(artifact: Path, question: Question, folder: Path, *more: str) -> AbstractContextManager[Running]:
    port = free_port()
    command = [sys.executable, "-m", "slotool", "serve", str(artifact), "--name", MODEL, "--port", str(port), *more]
    return served(command, port, question, None, folder, {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})


def _idle(folder: Path) -> dict[str, Any]:
    """Memory of an idle connection that has had a request, and latency without and with ``IDLE`` of them."""
    held = allow_connections(IDLE)
    x = load_dataset("digits").test.x[:1].astype(np.float32)
    question = binary_question(x, MODEL)
    each, without, beside = [], [], []
    with _serving(shipped_artifact("mlp").path, question, folder) as server:
        server.load(32, _seconds())
        for number in _rounds():
            without.append(server.load(32, _seconds(), IDLE_RATE_PER_S, number).quantile_s(0.99))
            before = server.process.memory_info().rss
            with _idle_connections(server, held):
                each.append((server.process.memory_info().rss - before) / held)
                beside.append(server.load(32, _seconds(), IDLE_RATE_PER_S, number).quantile_s(0.99))
    # Only the first round allocates: later ones find the memory of connections that are gone.
    said = f"{each[0] / 1e3:.1f} KB each; p99 at {IDLE_RATE_PER_S:.0f}/s {np.median(without) * 1e3:.2f} ms without and "
    said += f"{np.median(beside) * 1e3:.2f} ms with {held} idle connections"
    return {"said": said, "connections": held, "bytes_each": each[0], "p99_without_s": spread(without),
            "p99_with_s": spread(beside)}  # fmt: skip


@contextlib.contextmanager
def _idle_connections(server: Running, count: int) -> Iterator[None]:
    """``count`` of them, each after an answer. When this returns the server has closed them too: that takes its time
    otherwise from requests that are timed next."""
    before = server.process.num_fds()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(server.question.sent())
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        time.sleep(0.5)
        yield
    until_s = time.monotonic() + CLOSED_WITHIN_S
    while server.process.num_fds() > before:
        assert time.monotonic() < until_s, "the server keeps connections that their clients closed"
        time.sleep(0.01)
    time.sleep(0.5)


def _overhead(folder: Path) -> dict[str, Any]:
    """Medians of a request over one connection, beyond the bare call, beside servers that only echo."""
    artifact = shipped_artifact("mlp").path
    model, x = load_model(str(artifact)), load_dataset("digits").test.x[:1].astype(np.float32)
    grpc_port, echo_port, question = free_port(), free_port(), binary_question(x, MODEL)
    echo = Question("/", question.headers, question.body, lambda body: int(json.loads(body)["label"]))
    (folder / "own").mkdir()
    command = [str(environment() / "bin" / "python"), str(HERE / "front_end.py"), "echo", str(echo_port), ""]
    medians: dict[str, list[float]] = {}
    with (
        _serving(artifact, question, folder / "own", "--grpc-port", str(grpc_port)) as own,
        served(command, echo_port, echo, None, folder) as floor,
        bound_to(server_core()),
        _process_of(_bare_grpc) as bare_grpc,
    ):
        calls = {"model call": lambda: model.forward(x, model.full)}
        stubs = {
            "grpc.aio echo": _grpc_caller(bare_grpc, x),
            "gRPC": _grpc_caller(f"127.0.0.1:{grpc_port}", x, MODEL),
        }
        for _ in _rounds():
            for name, server in {"uvloop echo": floor, "HTTP": own}.items():
                server.load(1, 0.3)
                medians.setdefault(name, []).append(server.load(1, _seconds()).quantile_s(0.5))
            for name, call in {**calls, **stubs}.items():
                with bound_to(server_core() if name in calls else client_cores()):
                    medians.setdefault(name, []).append(_median_s(call, _seconds()))
    figures: dict[str, Any] = {name: spread(values) for name, values in medians.items()}
    call_s = figures["model call"]["median"]
    ratios = {
        name: (figures[name]["median"] - call_s) / figures[echo]["median"]
        for name, echo in (("HTTP", "uvloop echo"), ("gRPC", "grpc.aio echo"))
    }
    said = ", ".join(
        f"{name} {figures[name]['median'] * 1e6:.0f} µs, {ratio:.2f} x the echo beyond the bare call"
        for name, ratio in ratios.items()
    )
    shown = ", ".join(f"{name} {figures[name]['median'] * 1e6:.0f} µs" for name in ("uvloop echo", "grpc.aio echo"))
    return {"said": f"{said}; {shown}", "p50_s": figures, "ratios": ratios}


def _median_s(call: Callable[[], object], seconds: float) -> float:
    """Of one call after the other."""
    took_s, until_s = [], time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        call()
        took_s.append(time.perf_counter() - began_s)
    return float(np.median(took_s))


def _images(folder: Path) -> dict[str, Any]:
    """Answers a second over two connections beside those of a bare session in a loop on the same core."""
    family, x, bare_per_s = _image_family(folder)
    bare, own, tails = [], [], []
    with _serving(family, _image_question(x, MODEL), folder) as server:
        server.load(2, 1.0)
        for _ in _rounds():
            bare.append(bare_per_s())
            samples = server.load(2, _seconds())
            # A closed loop ends with the answers that are on their way.
            own.append(len(samples.answered_s) / float(np.nanmax(samples.answered_s)))
            tails.append(samples.quantile_s(0.99))
    ratio = float(np.median(np.array(own) / np.array(bare)))
    said = (
        f"{np.median(own):.1f} answers a second, the bare session {np.median(bare):.1f} ({1e3 / np.median(bare):.1f} ms"
    )
    return {"said": f"{said} a call): {ratio:.3f}", "bare_per_s": spread(bare), "served_per_s": spread(own),
            "ratio": ratio, "p99_s": spread(tails)}  # fmt: skip


def _beside_triton(folder: Path) -> dict[str, Any]:
    """The tail of Poisson arrivals, at shares of what the bare session does just before, beside Triton's Python backend
    around the same session: each in a fresh process, in turn, with the same arrivals. No deadline is set."""
    family, x, bare_per_s = _image_family(folder)
    python, port = installed("Triton-images", TRITON) / "bin" / "python", free_port()
    others = [str(each) for each in (free_port(), free_port())]
    command = [str(python), str(HERE / "triton_images.py"), str(port), *others, str(folder / "images.onnx")]
    environment = {"OMP_NUM_THREADS": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    servers: dict[str, Callable[[], AbstractContextManager[Running]]] = {
        "slotool": lambda: _serving(family, _image_question(x, MODEL), folder, "--default-deadline-ms", "0"),
        "Triton": lambda: served(command, port, _image_question(x, "images"), None, folder, environment),
    }
    rates: list[float] = []
    tails: dict[str, list[list[float]]] = {name: [[] for _ in IMAGE_LOADS] for name in servers}
    for number in _rounds():
        rates.append(bare_per_s())
        for name in sorted(servers, reverse=number % 2 == 1):
            with servers[name]() as server:
                server.load(2, 1.0)
                for at, share in enumerate(IMAGE_LOADS):
                    samples = server.load(OPEN_CONNECTIONS, 2 * _seconds(), share * rates[-1], 10 * number + at)
                    tails[name][at].append(samples.quantile_s(0.99))
    ratios = [spread(list(np.divide(*pair))) for pair in zip(tails["slotool"], tails["Triton"], strict=True)]
    shown = ", ".join(
        f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f}) at {share:.0%}"
        for ratio, share in zip(ratios, IMAGE_LOADS, strict=True)
    )
    return {"said": f"p99 ÷ Triton's: {shown} of {np.median(rates):.0f} images a second", "bare_per_s": spread(rates),
            "shares": IMAGE_LOADS, "p99_ratios": ratios,
            "p99_s": {name: [spread(values) for values in rows] for name, rows in tails.items()}}  # fmt: skip


def _image_family(folder: Path) -> tuple[Path, np.ndarray, Callable[[], float]]:
    """An image network as an artifact, inputs for it, and how many of them a second its bare session answers."""
    import onnxruntime

    path = folder / "images.onnx"
    _save_image_network(path)
    x = np.random.default_rng(0).normal(size=(8, *IMAGE)).astype(np.float32)
    np.savez(folder / "images.npz", x=x, y=np.arange(8) % 10)
    family = folder / "family"
    slotool.family({"cnn": path}, str(folder / "images.npz"), out=family, split="all", repeats=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bare_per_s() -> float:
        with bound_to(server_core()):
            return _per_s(lambda: session.run(None, {"pixels": x[:1]}), _seconds())

    return family, x, bare_per_s


def _image_question(x: np.ndarray, model: str) -> Question:
    """One image, of which the answer is not looked at: weights are random."""
    question = binary_question(x[:1], model, ("pixels", "scores"))
    return Question(question.path, question.headers, question.body, lambda body: 0)


def _per_s(call: Callable[[], object], seconds: float) -> float:
    count, began_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < seconds:
        call()
        count += 1
    return count / took_s


def _save_image_network(path: Path) -> None:
    """Convolutions of random weights, a mean over pixels and a dense layer."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng, nodes, constants, at = np.random.default_rng(0), [], [], "pixels"
    channels = IMAGE[0]
    for i, (width, stride) in enumerate(CONVOLUTIONS):
        weight = rng.normal(scale=(9 * channels) ** -0.5, size=(width, channels, 3, 3)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{i}"))
        shape = {"kernel_shape": [3, 3], "strides": [stride] * 2, "pads": [1] * 4}
        nodes += [helper.make_node("Conv", [at, f"w{i}"], [f"c{i}"], **shape),
                  helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]  # fmt: skip
        at, channels = f"r{i}", width
    constants.append(numpy_helper.from_array(rng.normal(size=(channels, 10)).astype(np.float32), "dense"))
    nodes += [helper.make_node("GlobalAveragePool", [at], ["mean"]), helper.make_node("Flatten", ["mean"], ["flat"]),
              helper.make_node("MatMul", ["flat", "dense"], ["scores"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])
            for name, shape in (("pixels", IMAGE), ("scores", (10,)))]  # fmt: skip
    graph = helper.make_graph(nodes, "images", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _labels(folder: Path) -> dict[str, Any]:
    """Median of a request with one sparse example for the best of many labels."""
    from slotool.elastic.best_labels import columns_of_rows

    model, x = _labelled()
    model.save(folder / "labelled", config={}, seed=0)
    arrays = columns_of_rows(x[:1]).arrays
    tensors, raw = [], b""
    for name, datatype in (("indices", "INT32"), ("values", "FP32")):
        raw += arrays[name].tobytes()
        size = {"binary_data_size": arrays[name].nbytes}
        shape = list(arrays[name].shape)
        tensors.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
    head = json.dumps({"inputs": tensors, "parameters": {"top": TOP}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    question = Question(f"/v2/models/{MODEL}/infer", headers, head + raw, lambda body: len(json.loads(body)["outputs"]))
    medians, tails, calls = [], [], []
    with _serving(folder / "labelled", question, folder) as server:
        server.load(1, 1.0)
        for _ in _rounds():
            samples = server.load(1, _seconds())
            medians.append(samples.quantile_s(0.5))
            tails.append(samples.quantile_s(0.99))
            with bound_to(server_core()):
                calls.append(_median_s(lambda: model.top(x[:1], TOP), _seconds() / 3))
    said = f"p50 {np.median(medians) * 1e6:.0f} µs, p99 {np.median(tails) * 1e6:.0f} µs, the call itself "
    return {"said": f"{said}{np.median(calls) * 1e6:.0f} µs", "p50_s": spread(medians), "p99_s": spread(tails),
            "call_s": spread(calls)}  # fmt: skip


def _labelled() -> tuple[Any, Any]:
    """An SLO-NN of random weights, and examples of ``NONZERO`` features each."""
    from scipy.sparse import csr_matrix, random_array

    from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
    from slotool.elastic.slo_nn.mlp import MLP, DenseLayer

    rng = np.random.default_rng(0)
    layers = tuple(
        DenseLayer(f"dense_{at}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
        for at, (m, n) in enumerate(pairwise((FEATURES, HIDDEN, LABELS)))
    )
    mlp, splits = MLP((FEATURES,), layers), []
    for n in (600, 100, 50):
        x = csr_matrix(random_array((n, FEATURES), density=NONZERO / FEATURES, rng=rng, dtype=np.float32))
        best = mlp.logits(x).argmax(axis=1).astype(np.int32)
        splits.append(MultiLabelSplit(x, LabelSets(np.arange(n + 1), best)))
    data = MultiLabelDataset("labelled", *splits, classes=LABELS, source="labelled")
    return build("labelled", TableSubject(mlp, data), "clusters", TableSettings()), splits[-1].x


if __name__ == "__main__":
    main()
