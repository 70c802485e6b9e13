"""A module of torch is captured in a process that has loaded TensorFlow, where importing Triton would abort it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, x):
        return torch.einsum("bi,bj->bij", self.layer(x), self.layer(x)).sum(1)
"""
CAPTURED = """
import slotool

print(slotool.capture(Net(), input_shape=(8,)).graphs[0].counted_flops)
"""
IMPORTED = """
from slotool.elastic.slo_nn.importers import from_torch

chain = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
print(len(from_torch(chain, (8,)).layers))
"""
# What saving a program needs may import Triton; it is hidden as slotool hides it.
LOADED = """
from slotool.llvm import without_late_triton
from slotool.models.adapters.torch_program import TorchProgramModel

with without_late_triton():
    torch.export.save(torch.export.export(chain, (torch.zeros(2, 8),)), "chain.pt2")
print(TorchProgramModel("chain.pt2").signature.outputs[0].name)
"""


BUILT = """
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule

builder = GraphBuilder()
builder.add("Embedding", builder.add("InputLayer", shape=[4], dtype="int64"), vocabulary=5, units=2)
print(len(list(GraphModule(builder.graph(), device="meta").parameters())))
"""
TRAINED = """
import slotool

slotool.train_mlp("one", hidden=(8,), data="digits", epochs=1, progress=False)
print(slotool.load("one").name)
"""


def run(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [*paths, *sys.path])),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command, folder = [sys.executable, "-c", code], paths[0] if paths else None
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def aborting(tmp_path: Path) -> Path:
    """Where a Triton lies that ends the process, as the real one does, and a TensorFlow beside it."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("import os\nos.abort()\n")
    (tmp_path / "tensorflow.py").write_text("")
    return tmp_path


def test_triton_is_not_imported_after_tensorflow(aborting: Path):
    """In one process, as importing torch takes most of the time: a capture, imports, a graph with weights, training."""
    ended = run("import tensorflow" + MODULE + CAPTURED + IMPORTED + LOADED + BUILT + TRAINED, aborting)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "96\n2\noutput\n1\none\n"


def test_without_tensorflow_torch_finds_triton_as_ever(aborting: Path):
    assert run(MODULE + CAPTURED, aborting).returncode < 0


@pytest.mark.skipif(
    not all(map(find_spec, ("tensorflow", "keras", "triton"))), reason="tensorflow, keras and triton are not all there"
)
def test_a_keras_model_and_then_a_module():
    keras = "import keras, slotool\nslotool.capture(keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]))\n"
    ended = run(keras + MODULE + CAPTURED)
    assert ended.returncode == 0, ended.stderr
