"""An installation without extras: what needs none works, and what needs one names the command that installs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slotool.extras import EXTRA_OF

# Python runs it at its start, in the worker processes of a command too.
HIDE = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = {sorted(EXTRA_OF)}


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find(name, path, target)


PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process in which no package of any extra can be found."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "sitecustomize.py").write_text(HIDE)
    search = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": search}


def run(folder: Path, environment: dict[str, str], command: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "slotool", *command.split()]
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)


NEED_NONE = (
    "generate mlp -o mlps.parquet --count 3 --units 0:4",
    "train mlp -o mlp --data digits --epochs 1 --hidden 8",
    "capture --torch torch.nn:ReLU --input-shape 8 -o graph.jsonl",
    "predict --graph graph.jsonl --backend torch",
)
# In one process, which imports torch once.
IN_TURN = """
import sys
from slotool.cli import main

for command in sys.argv[1:]:
    sys.argv = ["slotool", *command.split()]
    try:
        main()
    except SystemExit as end:
        print(command, "ended with", end.code, flush=True)
"""


def test_commands_that_need_none_work(tmp_path: Path, environment: dict[str, str]) -> None:
    arguments = [sys.executable, "-c", IN_TURN, *NEED_NONE]
    finished = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    ended = [line for line in finished.stdout.splitlines() if " ended with " in line]
    assert ended == [f"{command} ended with 0" for command in NEED_NONE], finished.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"mlps.parquet", "mlp", "graph.jsonl"}


def test_doctor_lists_extras_that_are_not_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    finished = run(tmp_path, environment, "doctor --json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["extras"] == dict.fromkeys(EXTRA_OF.values(), False)


NEED_ONE = {
    "capture --keras VGG16 -o graph.jsonl": ("keras", "keras"),
    "capture --onnx model.onnx -o graph.jsonl": ("onnx", "onnx"),
    "profile solo mlps.parquet --backend keras -o latency.parquet": ("tensorflow", "keras"),
    "profile solo mlps.parquet --backend onnx -o latency.parquet": ("onnxruntime", "onnx"),
    "loadtest http://127.0.0.1:9 --data digits --protocol grpc -o log.parquet": ("tritonclient", "grpc"),
    "report . -o report.html": ("matplotlib", "report"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> dict[str, str]:
    """What each command printed on stderr, in a folder with the files that it opens before it needs a package."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("model.onnx", "profile.csv", "arrivals.parquet"):
        (folder / name).touch()
    commands = ["generate mlp -o mlps.parquet --count 3 --units 0:4", *NEED_ONE]
    arguments = [sys.executable, "-c", IN_TURN, *commands]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    finished = subprocess.run(arguments, cwd=folder, env=environment, text=True, check=True, **both)
    parts = re.split(r"^(.*) ended with (\d+)\n", finished.stdout, flags=re.MULTILINE)
    assert parts[1::3] == commands
    assert parts[2::3] == ["0", *["2"] * len(NEED_ONE)]
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "profile.csv", "arrivals.parquet", "mlps.parquet"}
    return dict(zip(parts[1::3], parts[0::3], strict=False))


@pytest.mark.parametrize("command", NEED_ONE)
def test_a_command_that_needs_one_says_how_to_install_it(refusals: dict[str, str], command: str) -> None:
    package, extra = NEED_ONE[command]
    sentence = refusals[command].strip().splitlines()[-1]
    assert "Traceback" not in refusals[command]
    assert package in sentence
    assert sentence.endswith(f"pip install 'slotool[{extra}]'")
