"""What a served request costs beyond the bare model call: HTTP and gRPC on loopback, one connection kept alive.

The same for a family of one ONNX file of equal shape, whose bare call is that of an ONNX Runtime session.

The floors are the same requests against servers of the same libraries that do nothing: parse no tensor, run no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tritonclient.grpc import service_pb2, service_pb2_grpc

import slotool
from benchmarks.http_caller import caller
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.serving.operations.server import bind

ROUNDS, REQUESTS = 20, 100
# Of each round, until caches know the server again that is asked now.
WARM_UP = 20


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mlp = Path(folder) / "mlp"
        slotool.train_mlp(mlp, data="digits", epochs=5)
        torch.set_num_threads(1)
        model, x = load_model(str(mlp)), load_dataset("digits").test.x[:1]
        session, family = _onnx_family(Path(folder), x.size)
        with (
            _process_of(_bare_http) as bare_port,
            _process_of(_bare_grpc) as bare_address,
            _slotool_server(mlp) as (port, address),
            _slotool_server(family) as (family_port, _),
        ):
            row = x.reshape(1, -1)
            calls = {
                "model call": lambda: model.forward(x, model.full),
                "ONNX session": lambda: session.run(None, {"pixels": row}),
                "ONNX family": caller(family_port, "/v2/models/family/infer", row, ("pixels", "scores")),
                "bare server": caller(int(bare_port), "/", x),
                "slotool serve": caller(port, "/v2/models/mlp/infer", x),
                "bare gRPC": _grpc_caller(bare_address, x),
                "slotool gRPC": _grpc_caller(address, x),
            }
            medians = _interleaved(calls)
    for name, value in medians.items():
        print(f"{name:14} p50 {value * 1e6:8.1f} µs")
    own = medians["slotool serve"] - medians["model call"]
    onnx = medians["ONNX family"] - medians["ONNX session"]
    print(f"overhead of an ONNX family over its bare session: {onnx * 1e6:.1f} µs, {onnx / own:.2f} x that of the MLP "
          "(target: 1.2)")  # fmt: skip
    overheads = {}
    for protocol, ours, peer in (("HTTP", "slotool serve", "bare server"), ("gRPC", "slotool gRPC", "bare gRPC")):
        overheads[protocol] = medians[ours] - medians["model call"]
        relative = overheads[protocol] / medians[peer]
        print(f"overhead of a request over {protocol} over the bare model call: {overheads[protocol] * 1e6:.1f} µs, "
              f"{relative:.2f} x the floor (the same libraries answering nothing)")  # fmt: skip
    print(json.dumps({"benchmark": "served_request", "medians_s": medians, "overhead_s": overheads["HTTP"],
                      "grpc_overhead_s": overheads["gRPC"], "onnx_overhead_s": onnx}))  # fmt: skip


def _interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for i in range(WARM_UP + REQUESTS):
                started = time.perf_counter()
                call()
                if i >= WARM_UP:
                    seconds[name].append(time.perf_counter() - started)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def _onnx_family(folder: Path, features: int) -> tuple[Any, Path]:
    """A bare session of an MLP of random weights, and a family of it alone."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    rng, sizes = np.random.default_rng(0), (features, 112, 112, 10)
    nodes, weights, at = [], [], "pixels"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes = {f"w{i}": (inputs, outputs), f"b{i}": (outputs,)}
        weights += [numpy_helper.from_array(rng.normal(size=s).astype("float32"), name) for name, s in shapes.items()]
        to = "scores" if i == len(sizes) - 2 else f"h{i}"
        nodes.append(helper.make_node("Gemm", [at, *shapes], [to]))
        if to != "scores":
            nodes.append(helper.make_node("Relu", [to], [f"r{i}"]))
        at = f"r{i}"
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])
            for name, size in (("pixels", features), ("scores", 10))]  # fmt: skip
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "mlp.onnx")
    digits = load_dataset("digits").test
    np.savez(folder / "digits.npz", x=digits.x.reshape(len(digits), -1), y=digits.y)
    family = folder / "family"
    slotool.family({"mlp": folder / "mlp.onnx"}, str(folder / "digits.npz"), out=family, split="all", repeats=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(folder / "mlp.onnx", options, providers=["CPUExecutionProvider"]), family


def _grpc_caller(address: str, x: np.ndarray, model: str = "mlp") -> Callable[[], object]:
    """The same over one gRPC channel, by tritonclient's stub."""
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[x.tobytes()])
    request.inputs.add(name="input", datatype="FP32", shape=x.shape)
    request.outputs.add(name="label")
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))
    return lambda: stub.ModelInfer(request)


@contextlib.contextmanager
def _slotool_server(artifact: Path) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "slotool", "serve", str(artifact), "--port", "0", "--grpc-port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = json.loads(server.stdout.readline())
        yield int(ready["port"]), ready["grpc"]
    finally:
        server.terminate()
        server.wait(timeout=30)


@contextlib.contextmanager
def _process_of(server: Callable[[Connection], None]) -> Iterator[str]:
    """What ``server``, in a process of its own like the one it is compared with, says that it listens on."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=server, args=(there,), daemon=True)
    process.start()
    try:
        assert here.poll(60)
        yield here.recv()
    finally:
        process.terminate()
        process.join(timeout=10)


def _bare_http(told: Connection) -> None:
    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    listener = bind("127.0.0.1", 0)
    listener.listen()
    told.send(str(listener.getsockname()[1]))
    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


def _bare_grpc(told: Connection) -> None:
    async def answer(request: bytes, context: object) -> bytes:
        return b""

    async def serve() -> None:
        server = grpc.aio.server()
        methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(answer)}
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        told.send(f"127.0.0.1:{port}")
        await server.wait_for_termination()

    asyncio.run(serve())
