"""Triton: its Python backend by PyTriton, with dynamic batches.

``python triton_server.py PORT GRPC_PORT METRICS_PORT``.
"""

from __future__ import annotations

import os
import sys
import sysconfig

import numpy as np
import torch
from network import Network
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def infer(input: np.ndarray) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        # Triton lends its memory, which is not to be written to.
        return {"label": NETWORK(torch.from_numpy(input.copy())).argmax(dim=1, keepdim=True).numpy()}


if __name__ == "__main__":
    NETWORK = Network().eval()
    # Triton's own process loads libpython: it must be the one that these packages and the standard library are of.
    os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    http, grpc, metrics = map(int, sys.argv[1:4])
    config = TritonConfig(http_address="127.0.0.1", http_port=http, grpc_address="127.0.0.1", grpc_port=grpc,
                          metrics_port=metrics, log_verbose=0, allow_metrics=False)  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            "digits",
            infer,
            [Tensor(name="input", dtype=np.float32, shape=(64,))],
            [Tensor(name="label", dtype=np.int64, shape=(1,))],
            # As PyTriton's documentation has it for small models: what waits shares a call, and nobody waits for it.
            config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
            strict=True,
        )
        triton.serve()
