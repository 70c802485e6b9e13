"""The demo, run: every command on the output of the ones before it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from slotool.artifacts import open_artifact
from slotool.elastic import load_model
from slotool.graphs.store import read_graphs
from slotool.rules.ruleset.rules import RuleSet
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads.requests import RequestLog
from tests.docs.preloaded import launchers


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    arguments = ["demo", "--out", str(folder), "--quick", "--json"]
    finished = subprocess.run([launchers() / "slotool", *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    # The killed worker was another process than the server.
    assert "kill -KILL" in finished.stderr
    return folder, json.loads(finished.stdout)


def test_every_step_said_what_it_found(walked: tuple[Path, dict]) -> None:
    _, document = walked
    assert {figure.split(":")[0] for figure in document["figures"]} >= {
        "learn which labels an input needs",
        "predict it by its operators",
        "measure it, to compare",
        "certify routing rules",
        "plan workers for 50 ms",
        "serve it, and kill a worker",
    }
    assert document["cores_busy_with_others"].keys() == document["steps_s"].keys()
    assert all(line.startswith("slotool ") for line in document["next"])


def test_its_artifacts_are_whole_and_its_tables_hold_what_they_should(walked: tuple[Path, dict]) -> None:
    folder, _ = walked
    kinds = {name: open_artifact(folder / name).kind for name in ("tate", "family", "slo-nn")}
    assert kinds == {"tate": "network", "family": "model-family", "slo-nn": "slo-nn"}
    # What was predicted by its operators is what was then measured as a whole.
    (wanted,) = read_graphs(folder / "wanted.jsonl")
    measured = LatencyTable.load(folder / "wanted.parquet").rows
    assert measured[["subject", "status"]].to_numpy().tolist() == [[wanted.id, "ok"]]
    slo_nn = load_model(str(folder / "slo-nn"))
    assert OutcomeTable.load(folder / "slo-nn-outcomes.parquet").versions == [point.key for point in slo_nn.points]
    assert RuleSet.load(folder / "rules.json").table_sha256 == OutcomeTable.load(folder / "outcomes.parquet").sha256
    assert (folder / "report.html").stat().st_size > 500_000
    log = RequestLog.load(folder / "requests.parquet")
    # A crowded machine may let a deadline pass while a request waits: then it is answered so, and nothing is lost.
    assert log.rows["status"].isin([200, 503, 504]).all()
    assert log.answered.mean() > 0.5


def test_few_of_many_labels_are_answered_sooner_and_as_well(walked: tuple[Path, dict]) -> None:
    folder, _ = walked
    rows = OutcomeTable.load(folder / "slo-nn-outcomes.parquet").rows
    by_point = rows.groupby("version").agg(error=("error", "mean"), latency_s=("latency_s", "median"))
    full = by_point.loc["full"]
    few = by_point[by_point["error"] <= full["error"] + 0.01]["latency_s"].min()
    assert full["latency_s"] > 5 * few


def test_a_demo_replaces_only_what_a_demo_made(slotool, walked: tuple[Path, dict], tmp_path: Path) -> None:
    folder, _ = walked
    again = slotool("demo", "--out", folder)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    (tmp_path / "diary.txt").write_text("mine")
    foreign = slotool("demo", "--out", tmp_path, "--force")
    assert foreign.exit_code == 2
    assert "not a demo's folder" in foreign.stderr
    assert (tmp_path / "diary.txt").read_text() == "mine"
