"""A model whose code crashes, hangs or eats memory costs its own capture: one sentence, an exit code, no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotool.errors import GraphError, RunError, TimedOut, WorkerError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import load_torch
from slotool.graphs.capture.sources import Source
from slotool.graphs.capture.subprocess_capture import Limits, all_captured_apart

FILES = {
    "crashes": "import ctypes; ctypes.string_at(0)",
    "leaves": "import os; os._exit(0)",
    "hangs": "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)",
    "hoards": "import time; kept = []\nwhile True: kept.append(b'x' * (20 << 20)); time.sleep(0.01)",
    "raises": "raise KeyboardInterrupt",
    "surrogate": "raise RuntimeError('half of \\ud800 a character')",
    "nets": """
import ctypes
from torch import nn
print("about to build")
class Crashing(nn.Module):
    def forward(self, x):
        return x if ctypes.string_at(0) else x
def small():
    return nn.Linear(4, 2)
def large():
    return nn.Linear(6, 2)
""",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / f"apart_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "limits", "kind", "sentence"),
    [
        ("crashes", Limits(), WorkerError, "apart_crashes:net: the model's code crashed (SIGSEGV)"),
        ("leaves", Limits(), WorkerError, "the model's code ended the process with exit code 0"),
        ("hangs", Limits(timeout_s=3), TimedOut, "apart_hangs:net took longer than 3 s and was stopped"),
        ("hoards", Limits(memory_bytes=400 << 20), RunError, "GB of memory and was stopped at the limit of 0.4 GB"),
        ("surrogate", Limits(), GraphError, r"RuntimeError: half of \ud800 a character"),
        ("raises", Limits(), RunError, "capturing apart_raises:net failed: KeyboardInterrupt"),
    ],
)
def test_what_ends_a_capture_is_one_sentence(
    request: pytest.FixtureRequest, name: str, limits: Limits, kind: type[Exception], sentence: str
) -> None:
    if name == "hoards":
        # A fork's memory is not counted as that of a child.
        request.getfixturevalue("real_processes")
    (error,) = all_captured_apart([Source("torch", f"apart_{name}:net", (4,))], limits)
    assert type(error) is kind
    assert sentence in str(error)
    assert "\n" not in str(error)


def test_after_a_crash_the_others_are_captured(capfd: pytest.CaptureFixture[str]) -> None:
    names = ["small", "Crashing", "large", "none"]
    shapes = [(4,), (4,), (6,), (4,)]
    sources = [Source("torch", f"apart_nets:{name}", shape) for name, shape in zip(names, shapes, strict=True)]
    small, crashed, large, missing = all_captured_apart(sources)
    assert isinstance(small, OperatorGraph)
    assert isinstance(large, OperatorGraph)
    assert (small.name, small.weights, large.weights) == ("apart_nets:small", 10, 14)
    assert isinstance(crashed, WorkerError)
    assert isinstance(missing, GraphError)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("about to build") == 2


@pytest.mark.parametrize(("name", "code"), [("crashes", 3), ("hangs", 124)])
def test_the_command_ends_with_a_sentence_and_its_exit_code(slotool, real_processes, name: str, code: int) -> None:
    arguments = ["capture", "--torch", f"apart_{name}:net", "--input-shape", "4", "--timeout", 4 if code == 124 else 60]
    finished = slotool(*arguments)
    assert finished.exit_code == code
    assert finished.stdout == ""
    assert finished.stderr.startswith(f"slotool: capturing apart_{name}:net")
    assert finished.stderr.count("\n") == 1


def test_modules_of_one_name_in_two_folders_are_both_used(slotool, files: Path) -> None:
    for file, units in (("first/apart_twin", 3), ("second one/apart twin", 5)):
        module = files / f"{file}.py"
        module.parent.mkdir()
        module.write_text("from apart_size import units\nfrom torch import nn\ndef net(): return nn.Linear(4, units)")
        module.with_name("apart_size.py").write_text(f"units = {units}")
    sources = ["--torch", "first/apart_twin:net", "--torch", "./second one/apart twin.py:net"]
    finished = slotool("capture", *sources, "--input-shape", "4", "-o", "twins.jsonl", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert [entry["weights"] for entry in finished.document["graphs"]] == [15, 25]
    assert [entry["name"] for entry in finished.document["graphs"]] == sources[1::2]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("../nowhere/nets:base", "../nowhere/nets.py: no such file"),
        ("./no.name.py:base", "Python cannot import a name with a point, 'no.name'"),
        ("..:base", "no module .. in the current directory or installed"),
    ],
)
def test_a_path_that_names_no_module_is_explained(files: Path, name: str, sentence: str) -> None:
    (files / "no.name.py").write_text("")
    with pytest.raises(GraphError) as caught:
        load_torch(name)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--torch", "a:b", "--torch", "c:d", "--torch", "e:f", "--input-shape", "3", "--input-shape", "4"],
         "2 shapes for 3 of --torch; give one for all, or one for each"),
        (["--keras", "VGG16", "--input-dtype", "int64"], "it belongs to --torch, or --keras module:factory"),
        (["--torch", "apart_nets:small", "--input-shape", "4", "--input-dtype", "int3"], "'int3' is none of float32"),
        (["--torch", "apart_nets:small", "--input-shape", "4", "--force"], "it has no effect without --out"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(slotool, arguments: list[str], sentence: str) -> None:
    finished = slotool("capture", *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
