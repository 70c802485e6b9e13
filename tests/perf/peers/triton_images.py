"""Triton: an ONNX network of images in its Python backend by PyTriton, one image a call.

``python triton_images.py PORT GRPC_PORT METRICS_PORT NETWORK``.
"""

from __future__ import annotations

import os
import sys
import sysconfig

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def infer(pixels: np.ndarray) -> dict[str, np.ndarray]:
    return {"scores": SESSION.run(None, {"pixels": pixels})[0]}


if __name__ == "__main__":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    SESSION = onnxruntime.InferenceSession(sys.argv[4], options, providers=["CPUExecutionProvider"])
    # Triton's own process loads libpython: it must be the one that these packages and the standard library are of.
    os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    http, grpc, metrics = map(int, sys.argv[1:4])
    config = TritonConfig(http_address="127.0.0.1", http_port=http, grpc_address="127.0.0.1", grpc_port=grpc,
                          metrics_port=metrics, log_verbose=0, allow_metrics=False)  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            "images",
            infer,
            [Tensor(name="pixels", dtype=np.float32, shape=tuple(SESSION.get_inputs()[0].shape[1:]))],
            [Tensor(name="scores", dtype=np.float32, shape=tuple(SESSION.get_outputs()[0].shape[1:]))],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
            strict=True,
        )
        triton.serve()
