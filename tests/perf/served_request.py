"""What a served request costs beyond the bare model call: HTTP on loopback, one connection kept alive.

The floor is the same request against a server of the same libraries that does nothing: parse no tensor, run no model.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.serving.server import bind

REQUESTS = 2_000
WARM_UP = 200


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mlp = Path(folder) / "mlp"
        slotool = [sys.executable, "-m", "slotool"]
        subprocess.run([*slotool, "train", "mlp", "--data", "digits", "--epochs", "5", "-o", str(mlp)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        model, x = load_model(str(mlp)), load_dataset("digits").test.x[:1]
        with _slotool_server(mlp) as port, _bare_server() as bare_port:
            served, bare = _caller(port, "/v2/models/mlp/infer", x), _caller(bare_port, "/", x)
            direct = lambda: model.forward(x, model.full)  # noqa: E731
            medians = _interleaved({"model call": direct, "bare server": bare, "slotool serve": served})
    overhead = medians["slotool serve"] - medians["model call"]
    floor = medians["bare server"]
    for name, value in medians.items():
        print(f"{name:14} p50 {value * 1e6:8.1f} µs")
    print(f"overhead of a served request over the bare model call: {overhead * 1e6:.1f} µs, "
          f"{overhead / floor:.2f} x the floor (the same libraries answering nothing)")  # fmt: skip
    print(json.dumps({"benchmark": "served_request", "medians_s": medians, "overhead_s": overhead}))


def _interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(WARM_UP + REQUESTS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if i >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def _caller(port: int, path: str, x: np.ndarray) -> Callable[[], object]:
    """A keep-alive client that sends one example as a binary tensor and reads the whole answer."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "label"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    body = head + x.tobytes()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call() -> None:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer

    return call


@contextlib.contextmanager
def _slotool_server(artifact: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "slotool", "serve", str(artifact), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(json.loads(server.stdout.readline())["port"])
    finally:
        server.terminate()
        server.wait(timeout=30)


@contextlib.contextmanager
def _bare_server() -> Iterator[int]:
    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    listener = bind("127.0.0.1", 0)
    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=10)
