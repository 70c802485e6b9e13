"""Keras, ONNX Runtime and CUDA graphs on the device, where their packages can use it, beside torch's labels."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import SEED, applications, measured, medians
from slotool.tables import LatencyTable

KERAS_DEVICES = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
PROVIDER = "CUDAExecutionProvider"
# The pieces' own reference, by the same campaign settings.
TORCH = "torch"


def run(piece: Piece) -> None:
    piece.step(TORCH, lambda: campaign(piece, TORCH))
    piece.step("keras", lambda: of_keras(piece))
    piece.step("onnx", lambda: of_onnx(piece))
    piece.step("torch-cuda-graph", lambda: of_cuda_graphs(piece))


def of_keras(piece: Piece) -> Figures:
    if find_spec("tensorflow") is None:
        raise Left("tensorflow is not installed")
    # In a process of its own: TensorFlow takes the device's memory for as long as a process lives.
    if piece.on_gpu:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        asked = subprocess.run([sys.executable, "-c", KERAS_DEVICES], capture_output=True, text=True, env=environment)
        if asked.returncode or asked.stdout.strip() in ("", "0"):
            raise Left("tensorflow sees no GPU")
    return campaign(piece, "keras")


def of_onnx(piece: Piece) -> Figures:
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        raise Left("onnx or onnxruntime is not installed")
    import onnxruntime

    if piece.on_gpu and PROVIDER not in onnxruntime.get_available_providers():
        raise Left(f"this onnxruntime has no {PROVIDER}; onnxruntime-gpu has")
    return campaign(piece, "onnx")


def of_cuda_graphs(piece: Piece) -> Figures:
    if not piece.on_gpu:
        raise Left("CUDA graphs need a GPU")
    return campaign(piece, "torch-cuda-graph")


def campaign(piece: Piece, backend: str) -> Figures:
    """Labels of a few Keras applications by ``backend``, and torch's over them: above 1 the backend is faster."""
    out = piece.tables / f"applications-{backend}.parquet"
    budget_s = piece.budget_s(0.25)
    found = measured(piece, applications(piece.sizes.backend_networks), out, SEED, backend=backend, budget_s=budget_s)
    own = medians(LatencyTable.load(out))
    found["medians_s"] = own
    if backend != TORCH:
        torch_s = medians(LatencyTable.load(piece.table_of(piece.name, f"applications-{TORCH}.parquet")))
        found["times_torch"] = {name: torch_s[name] / own[name] for name in own if name in torch_s}
    return found
