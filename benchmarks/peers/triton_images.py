"""Triton: an ONNX network of images in its Python backend by PyTriton, on one thread.

``python triton_images.py PORT GRPC_PORT METRICS_PORT NETWORK``.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton_front import serve


@batch
def infer(pixels: np.ndarray) -> dict[str, np.ndarray]:
    return {"scores": SESSION.run(None, {"pixels": pixels})[0]}


if __name__ == "__main__":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    SESSION = onnxruntime.InferenceSession(sys.argv[4], options, providers=["CPUExecutionProvider"])
    ends = SESSION.get_inputs()[0], SESSION.get_outputs()[0]
    pixels, scores = (Tensor(name=end.name, dtype=np.float32, shape=tuple(end.shape[1:])) for end in ends)
    serve("images", infer, (pixels, scores), 8, sys.argv[1:4])
