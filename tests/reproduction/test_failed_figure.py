"""A figure whose commands fail costs itself alone, and is measured again by the next run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.papers import PAPERS
from benchmarks.reproduction.reproduce import reproduce
from benchmarks.reproduction.workspace import Workspace
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import RunError
from tests.docs.preloaded import launchers

FAMILY, TABLE = shipped_artifact("family").path, "points.parquet"


def figure(number: str, make: Callable[[Workspace], Found]) -> Figure:
    return Figure(number, "a figure", "a claim", "it is so", "another machine", make)


@pytest.mark.long
def test_the_others_are_made_and_its_measurements_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(launchers() / "python"))
    tables: list[float] = []

    def spoiled(workspace: Workspace) -> Found:
        workspace.slotool(f"profile points {FAMILY} -o {TABLE} --max-seconds-per-item 1")
        tables.append(workspace.path(TABLE).stat().st_mtime)
        if len(tables) == 1:
            raise RunError("no noise explains that")
        return plain(workspace)

    def plain(workspace: Workspace) -> Found:
        return Found("as the paper", True, ("figure",), [("1",)], "no data")

    paper = Paper("spoilt", "Spoilt", "nobody", "none", (figure("1", spoiled), figure("2", plain)), ())
    monkeypatch.setitem(PAPERS, paper.name, paper)
    with pytest.raises(RunError, match="spoilt:1 failed, and the same command tries again: no noise explains that"):
        reproduce("spoilt", tmp_path)
    assert not (tmp_path / paper.name / TABLE).exists()
    page = (tmp_path / f"{paper.name}.md").read_text()
    assert "as the paper" in page
    again = reproduce("spoilt", tmp_path)
    assert [row["agrees"] for row in again.document["figures"]] == [True, True]
    assert tables[1] > tables[0]
