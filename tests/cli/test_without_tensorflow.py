"""TensorFlow is installed with slotool, yet only what needs it may ask for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "keras")))
sys.argv[0] = "slotool"
from slotool.cli import main
main()
"""


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command in an interpreter where importing TensorFlow or Keras fails as if neither were installed."""
    arguments = [sys.executable, "-c", BLOCKED, *command.split()]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "command",
    [
        "generate mlp -o mlps.parquet --count 3 --units 0:4",
        "train mlp -o mlp --data digits --epochs 1 --hidden 8",
        "capture --torch torch.nn:ReLU --input-shape 8 -o graph.jsonl",
    ],
)
def test_a_command_that_does_not_need_it_works(tmp_path: Path, command: str) -> None:
    finished = run(tmp_path, command)
    assert finished.returncode == 0, finished.stderr


def test_a_command_that_needs_it_says_so(tmp_path: Path) -> None:
    finished = run(tmp_path, "capture --keras VGG16 -o graph.jsonl")
    assert finished.returncode in (2, 3)
    assert "tensorflow" in finished.stderr.lower()
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == []
