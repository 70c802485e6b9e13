"""Labels of a few Keras applications by each backend that can use the device, beside those of CUDA graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import BACKENDS, SEED, applications, compiled, measured, medians
from slotool.tables import LatencyTable

KERAS_DEVICES = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
PROVIDER = "CUDAExecutionProvider"
# Every fifth of the applications by size; of those the first ones for what compiles each network anew.
NETWORKS, STRIDE, COMPILED = 8, 5, 3
SHARES = {"torch-cuda-graph": 0.2, "torch": 0.2, "torch-compile": 0.4, "onnx": 0.1, "keras": 0.1}


def run(piece: Piece) -> None:
    for backend in SHARES:
        piece.step(backend, lambda backend=backend: labels(piece, backend))


def labels(piece: Piece, backend: str) -> Figures:
    """Labels by ``backend``, and how many times those of the reference they are: above 1 it is slower."""
    if backend == "torch-cuda-graph" and not piece.on_gpu:
        raise Left("CUDA graphs need a GPU")
    if missing := _missing(backend, piece.on_gpu):
        raise Left(missing)
    stride = piece.sized(STRIDE, 1)
    graphs = applications(stride * piece.sized(NETWORKS, 2))[::stride]
    if backend == "torch-compile":
        graphs = compiled(piece, graphs[:COMPILED])
    out, reference = table(piece, backend), BACKENDS[piece.on_gpu]
    labelled = measured(piece, graphs, out, SEED, backend=backend, budget_s=piece.budget_s(SHARES[backend]),
                     timeout_s=piece.sized(120.0, 400.0))  # fmt: skip
    labelled["medians_s"] = own = medians(LatencyTable.load(out))
    if backend != reference and table(piece, reference).is_file():
        graph_s = medians(LatencyTable.load(table(piece, reference)))
        labelled["times_graph"] = {name: own[name] / graph_s[name] for name in own if name in graph_s}
    return labelled


def table(piece: Piece, backend: str) -> Path:
    return piece.tables / f"applications-{backend}.parquet"


def _missing(backend: str, on_gpu: bool) -> str | None:
    """Return what a backend lacks here."""
    if backend == "keras" and find_spec("tensorflow") is None:
        return "tensorflow is not installed"
    if backend == "keras" and on_gpu:
        # In a process of its own: TensorFlow takes the device's memory for as long as a process lives.
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        asked = subprocess.run([sys.executable, "-c", KERAS_DEVICES], capture_output=True, text=True, env=environment)
        return "tensorflow sees no GPU" if asked.returncode or asked.stdout.strip() in ("", "0") else None
    if backend == "onnx":
        if find_spec("onnxruntime") is None or find_spec("onnx") is None:
            return "onnx or onnxruntime is not installed"
        import onnxruntime

        if on_gpu and PROVIDER not in onnxruntime.get_available_providers():
            return f"this onnxruntime has no {PROVIDER}; onnxruntime-gpu has"
    return None
