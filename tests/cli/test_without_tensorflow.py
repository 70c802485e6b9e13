"""TensorFlow is installed with slotool, yet only what needs it may ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules that stand before TensorFlow and Keras, in the worker processes of a command too."""
    folder = tmp_path_factory.mktemp("without")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text(MISSING)
    return folder


def run(folder: Path, without: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command where importing TensorFlow or Keras fails as if neither were installed."""
    search = os.pathsep.join(filter(None, (str(without), os.environ.get("PYTHONPATH"))))
    arguments = [sys.executable, "-m", "slotool", *command.split()]
    return subprocess.run(
        arguments, cwd=folder, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "command",
    [
        "generate mlp -o mlps.parquet --count 3 --units 0:4",
        "train mlp -o mlp --data digits --epochs 1 --hidden 8",
        "capture --torch torch.nn:ReLU --input-shape 8 -o graph.jsonl",
    ],
)
def test_a_command_that_does_not_need_it_works(tmp_path: Path, without: Path, command: str) -> None:
    finished = run(tmp_path, without, command)
    assert finished.returncode == 0, finished.stderr


def test_a_command_that_needs_it_says_so(tmp_path: Path, without: Path) -> None:
    finished = run(tmp_path, without, "capture --keras VGG16 -o graph.jsonl")
    assert finished.returncode in (2, 3)
    assert "tensorflow" in finished.stderr.lower()
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == []
