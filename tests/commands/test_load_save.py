"""``slotool.load`` knows what slotool writes, and ``save`` writes it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import slotool
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import AlreadyExistsError, InputError, TableError
from slotool.rules import RuleSet
from slotool.tables import LatencyTable, OutcomeTable
from slotool.testing.predictors import random_networks
from slotool.workloads import ArrivalTable

LATENCY = LatencyTable.of([{"subject": "a", "samples_s": [0.1, 0.2]}])
OUTCOMES = OutcomeTable.of(
    {
        "example": str(i),
        "version": version,
        "error": i % every == 0,
        "confidence": 0.5 + i % 3 / 10,
        "latency_s": seconds,
    }
    for i in range(40)
    for version, every, seconds in (("fast", 2, 0.1), ("slow", 4, 0.2))
)
VALUES: list[tuple[str, Any]] = [
    ("latency.parquet", LATENCY),
    ("latency.csv", LATENCY),
    ("outcomes.parquet", OUTCOMES),
    ("outcomes.csv", OUTCOMES),
    ("arrivals.parquet", ArrivalTable.of([{"arrival_s": 0.5}])),
    ("arrivals.csv", ArrivalTable.of([{"arrival_s": 0.5}])),
    ("rules.json", slotool.gen_rules(OUTCOMES, method="naive", tolerances=[0.1], policies="osfa").rules),
    ("nets.parquet", random_networks(2, seed=0)),
    ("nets.jsonl", random_networks(2, seed=0)),
]


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_what_is_saved_is_loaded(tmp_path: Path, name: str, value: Any) -> None:
    assert slotool.save(value, tmp_path / name) == tmp_path / name
    found = slotool.load(tmp_path / name)
    assert type(found) is type(value)
    if isinstance(value, RuleSet | list):
        assert found == value
    else:
        pd.testing.assert_frame_equal(found.rows, value.rows, check_dtype=False, check_exact=True)
    with pytest.raises(AlreadyExistsError):
        slotool.save(value, tmp_path / name)
    slotool.save(value, tmp_path / name, force=True)


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_a_pipe_or_socket_is_never_replaced_and_a_link_stays(
    tmp_path: Path, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    pipe, bound, link, loop = Path(f"pipe-{name}"), Path(f"bound-{name}"), Path(f"link-{name}"), Path(f"loop-{name}")
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
        before = {path: path.lstat() for path in Path().iterdir()}
        for path in before:
            with pytest.raises(InputError):
                slotool.save(value, path, force=True)
        after = {path: path.lstat() for path in Path().iterdir()}
    assert {path: (s.st_ino, s.st_mode) for path, s in after.items()} == {
        path: (s.st_ino, s.st_mode) for path, s in before.items()
    }
    link.unlink()
    link.symlink_to(Path("elsewhere", name))
    slotool.save(value, link)
    slotool.save(value, link, force=True)
    assert link.is_symlink()
    assert not Path("elsewhere", name).is_symlink()
    slotool.load(Path("elsewhere", name))


def test_artifacts_are_opened_as_what_they_are() -> None:
    assert [point.key for point in slotool.load(shipped_artifact("mlp").path).points] == ["full"]
    assert slotool.load(shipped_artifact("predictor-torch").path).setting.backend == "torch"


def test_a_csv_is_known_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("example,version,error,confidence,latency_s\n0,v,0,0.5,0.1\n")
    assert isinstance(slotool.load(tmp_path / "o.csv"), OutcomeTable)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no table that slotool knows"):
        slotool.load(tmp_path / "x.csv")


def test_anything_else_is_refused(tmp_path: Path) -> None:
    import pandas as pd

    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "x.json").write_text("{}")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "x.parquet")
    (tmp_path / "torn.parquet").write_text("PAR1")
    (tmp_path / "folder").mkdir()
    said = {
        "nowhere": "no such file", "x.txt": "not .json", "x.json": "neither rules nor", "folder": "without a manifest",
        "x.parquet": "no table that slotool knows",
    }  # fmt: skip
    for name, sentence in said.items():
        with pytest.raises(InputError, match=sentence):
            slotool.load(tmp_path / name)
    with pytest.raises(TableError, match="not a readable Parquet file"):
        slotool.load(tmp_path / "torn.parquet")
    with pytest.raises(InputError, match="an int cannot be saved"):
        slotool.save(3, tmp_path / "x.json", force=True)


def test_a_report_is_a_page_and_what_it_drew(tmp_path: Path) -> None:
    slotool.save(OUTCOMES, tmp_path / "outcomes.parquet")
    slotool.save(ArrivalTable.of([{"arrival_s": 0.5}]), tmp_path / "arrivals.parquet")
    found = slotool.report(tmp_path, tmp_path / "page.html")
    assert found.out.stat().st_size == found.size_bytes
    assert len(found.frame()) == len(found.figures) > 0
    assert all(Path(png).is_file() for png in found.frame()["png"])
    assert repr(found).splitlines()[-1].startswith(f"not drawn: {tmp_path / 'arrivals.parquet'} (")
