"""No function writes over what it reads, and none works first to find that it cannot write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.data import DataSource
from slotool.errors import ArgumentError

# Parameters that name outputs wherever they are.
OUTPUTS = {"out", "log"}
FUNCTIONS = [name for name in slotool.__all__ if inspect.isfunction(getattr(slotool, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_writes(name: str) -> None:
    function = getattr(slotool, name)
    named = OUTPUTS & set(inspect.signature(function).parameters)
    assert named <= set(getattr(function, "writes", ())), f"{name} does not state by @writes what it writes"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("read.csv").write_text("measured")
    Path("nets.py").write_text("measured")
    Path("linked.csv").symlink_to("read.csv")
    Path("fam").mkdir()
    Path("fam/manifest.json").write_text("measured")
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("outcomes", lambda: slotool.family({"a": "m.onnx"}, "read.csv:kind", outcomes="read.csv", force=True)),
        ("latency", lambda: slotool.family({"a": "m.onnx"}, "csv:read.csv:kind", latency="linked.csv", force=True)),
        ("latency", lambda: slotool.family({"a": "nets:small"}, "d.csv:kind", latency=Path("nets.py"), force=True)),
        ("outcomes", lambda: slotool.family({"a": "nets.py:small"}, "d.csv", outcomes="nets.py", force=True)),
        ("out", lambda: slotool.gen_rules("read.csv", "read.csv", force=True)),
        ("out", lambda: slotool.evaluate("fam", "read.csv", data=DataSource("read.csv", "kind"), force=True)),
        ("out", lambda: slotool.train_predictor(["o.csv"], graphs="read.csv", out="read.csv", force=True)),
        ("log", lambda: slotool.serve("fam", rules="read.csv", log="read.csv")),
    ],
)  # fmt: skip
def test_no_function_writes_over_its_input(here: Path, argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match="is also an input; name another output") as raised:
        call()
    assert raised.value.argument == argument
    assert {Path(name).read_text() for name in ("read.csv", "nets.py", "fam/manifest.json")} == {"measured"}


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ({"out": "read.csv"}, "out: read.csv is a file; a folder is written, choose another name"),
        ({"outcomes": "fam"}, "outcomes: fam is a folder; a file is written, choose another name"),
        ({"outcomes": "made", "latency": "made"}, "made is given as two outputs"),
        ({"out": "nets.py/made"}, r"out: nets\.py/made cannot be written: .*nets\.py: Not a directory"),
        ({"out": "/proc/made"}, "out: /proc/made cannot be written: /proc: "),
    ],
)
def test_what_cannot_be_written_is_found_before_the_work(here: Path, outputs: dict[str, str], sentence: str) -> None:
    """The model does not exist, which would be found next."""
    with pytest.raises(ArgumentError, match=sentence):
        slotool.family({"a": "none.onnx"}, "d.csv:kind", force=True, **outputs)
    assert sorted(path.name for path in here.iterdir()) == ["fam", "linked.csv", "nets.py", "read.csv"]
