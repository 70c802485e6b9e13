"""Triton: its Python backend by PyTriton, with dynamic batches.

``python triton_server.py PORT GRPC_PORT METRICS_PORT``.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from network import Network
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton_front import serve


@batch
def infer(input: np.ndarray) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        # Triton lends its memory, which is not to be written to.
        return {"label": NETWORK(torch.from_numpy(input.copy())).argmax(dim=1, keepdim=True).numpy()}


if __name__ == "__main__":
    NETWORK = Network().eval()
    tensors = Tensor(name="input", dtype=np.float32, shape=(64,)), Tensor(name="label", dtype=np.int64, shape=(1,))
    serve("digits", infer, tensors, 64, sys.argv[1:4])
