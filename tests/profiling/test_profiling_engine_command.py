"""What ``slotool profile --engine`` answers where it cannot do what the options ask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotool.graphs import GraphBuilder
from slotool.graphs.store import write_graphs

Slotool = Callable[..., Any]
HOSTILE = "hostile_backend:HostileBackend"


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    builder = GraphBuilder("mlp")
    builder.add("Dense", builder.add("InputLayer", shape=[8]), units=4)
    write_graphs(tmp_path / "graphs.parquet", [builder.graph()])
    return tmp_path / "graphs.parquet"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "abacus"], "there are local, ray"),
        (["--address", "auto"], "--engine ray only"),
        (["--engine", "ray", "--address", "127.0.0.1:9"], "no ray cluster answers at 127.0.0.1:9"),
        (["--engine", "ray", "--address", "nonsense"], "no ray cluster answers at nonsense"),
    ],
)
def test_bad_choices_are_one_sentence(
    slotool: Slotool, graphs: Path, out: Path, options: list[str], sentence: str
) -> None:
    if "--address" in options and "ray" in options:
        pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
    done = slotool("profile", "solo", graphs, "-o", out, "--backend", HOSTILE, "--threads", 1, *options)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert [path.name for path in out.parent.iterdir()] == ["graphs.parquet"]


def test_without_ray_the_command_says_what_to_install(
    slotool: Slotool, graphs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = slotool("profile", "solo", graphs, "-o", out, "--backend", HOSTILE, "--threads", 1, "--engine", "ray")
    assert done.exit_code == 2
    assert "pip install 'slotool[ray]'" in done.stderr
