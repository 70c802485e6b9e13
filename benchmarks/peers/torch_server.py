"""A network in eager PyTorch on a device behind a usual server: ``torch_server.py KIND PORT GRAPH DEVICE``.

Kinds: ``litserve``, LitServe with batches of up to 32 and the input as base64 in JSON, for it reads no raw bytes;
``fastapi``, a route of FastAPI that takes the input's bytes and answers one request after the other. GRAPH: a file
of one operator graph; the weights are random.
"""

import base64
import sys
from typing import Any

import numpy as np
import torch

try:
    from litserve import LitAPI
except ImportError:
    LitAPI = object

MAX_BATCH, TIMEOUT_S = 32, 0.002


class Network:
    """Classes of a batch of float32 inputs, by bytes."""

    def __init__(self, graph: str, device: str):
        from slotool.elastic.supernets.layers import LAYERS
        from slotool.graphs.store import read_graphs
        from slotool.graphs.torch_module import GraphModule

        (read,) = read_graphs(graph)
        torch.set_num_threads(1)
        self._device, self._shape = device, read.input_shape
        self._module = GraphModule(read, layers=LAYERS).eval().requires_grad_(False).to(device)

    @torch.inference_mode()
    def labels(self, inputs: list[bytes]) -> list[int]:
        x = np.frombuffer(b"".join(inputs), dtype=np.float32).reshape(len(inputs), *self._shape)
        classes: list[int] = self._module(torch.from_numpy(x.copy()).to(self._device)).argmax(dim=1).tolist()
        return classes


class Served(LitAPI):
    """The network for LitServe, which pickles it for a process of its own."""

    graph: str

    def setup(self, device: str) -> None:
        self.network = Network(self.graph, device)

    def decode_request(self, request: dict[str, str]) -> bytes:
        return base64.b64decode(request["input"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, x: list[bytes]) -> list[int]:
        return self.network.labels(x)

    def unbatch(self, output: list[int]) -> list[int]:
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        return {"label": output}


def litserve(port: int, graph: str, device: str) -> None:
    from litserve import LitServer

    api = Served(max_batch_size=MAX_BATCH, batch_timeout=TIMEOUT_S)
    api.graph = graph
    server = LitServer(api, accelerator="cpu" if device == "cpu" else "cuda", devices=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error")


def fastapi(port: int, graph: str, device: str) -> None:
    from fastapi import FastAPI, Request
    from uvicorn import run

    application, network = FastAPI(), Network(graph, device)

    async def predict(request: Request) -> dict[str, int]:
        return {"label": network.labels([await request.body()])[0]}

    predict.__annotations__["request"] = Request
    application.post("/predict")(predict)
    run(application, port=port, http="httptools", log_level="error", access_log=False)


if __name__ == "__main__":
    kinds: dict[str, Any] = {"litserve": litserve, "fastapi": fastapi}
    kinds[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
