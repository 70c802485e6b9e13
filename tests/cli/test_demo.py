"""The demo, run: every subcommand on the output of the ones before it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slotool.artifacts import open_artifact
from slotool.cli.demo import walkthrough
from slotool.elastic import load_model
from slotool.rules.ruleset import RuleSet
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads.requests import RequestLog

NETWORKS = 240


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    arguments = ["demo", "--out", str(folder), "--data", "digits", "--networks", str(NETWORKS), "--json"]
    finished = subprocess.run([sys.executable, "-m", "slotool", *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return folder, json.loads(finished.stdout)


def test_every_step_ran_and_said_what_it_found(walked: tuple[Path, dict]) -> None:
    _, document = walked
    titles = [step.title for step in walkthrough("digits", NETWORKS, 0)]
    assert list(document["steps_s"]) == titles
    assert {figure.split(":")[0] for figure in document["figures"]} >= {
        "train a family",
        "train latency predictors",
        "certify routing rules",
        "serve the SLO-NN",
    }


def test_its_artifacts_are_whole_and_its_tables_hold_what_they_should(walked: tuple[Path, dict]) -> None:
    folder, _ = walked
    kinds = {name: open_artifact(folder / name).kind for name in ("mlp", "family", "slo-nn", "predictor")}
    assert kinds == {"mlp": "network", "family": "family", "slo-nn": "slo-nn", "predictor": "predictor"}
    assert len(LatencyTable.load(folder / "latency.parquet")) == NETWORKS
    slo_nn = load_model(str(folder / "slo-nn"))
    assert OutcomeTable.load(folder / "slo-nn-outcomes.parquet").versions == [point.key for point in slo_nn.points]
    evidence = OutcomeTable.load(folder / "family-evidence.parquet")
    assert RuleSet.load(folder / "rules.json").table_sha256 == evidence.sha256
    assert (folder / "report.html").stat().st_size > 1_000_000
    for name in ("family", "slo-nn"):
        log = RequestLog.load(folder / f"{name}-requests.parquet")
        # A crowded machine may let a deadline pass while a request waits: then it was told so, and nothing is lost.
        assert log.rows["status"].isin([200, 503, 504]).all()
        assert log.answered.mean() > 0.8
        assert log.correct[log.answered].mean() > 0.7


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
