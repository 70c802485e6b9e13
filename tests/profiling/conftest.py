"""Subjects for a backend that does what their names say, loaded in workers too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotool.profiling.subjects import Subject

MakeSubject = Callable[..., Subject]


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(here)


@pytest.fixture
def subject(tmp_path: Path) -> MakeSubject:
    def make(name: str, does: str = "run", **more: Any) -> Subject:
        request = {"name": name, "does": does, "log": str(tmp_path / "log"), "mark": str(tmp_path / "mark")}
        return Subject(name=name, content=name, request=request, **more)

    return make


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "latency.parquet"
