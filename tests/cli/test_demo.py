"""The demo, run: every command on the output of the ones before it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from slotool.artifacts import open_artifact
from slotool.cli.app import command as command_line
from slotool.elastic import load_model
from slotool.graphs.store import read_graphs
from slotool.rules.ruleset.rules import RuleSet
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads.requests import RequestLog
from tests.docs.preloaded import launchers
from tests.docs.test_examples import unknown_options

DEMO: Any = import_module("slotool.demo")
# Steps that need neither training nor a server; `make test-long` takes all.
FIRST = (
    "look at the machine", "capture a network of your own", "predict it by its operators", "measure it, to compare",
)  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder and document of a demo of the first steps."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    steps = [step for step in DEMO._steps(True, 0) if step.title in FIRST]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DEMO, "_steps", lambda quick, seed: steps)
        patch.setattr(sys, "executable", str(launchers() / "python"))
        return folder, DEMO.demo(out=folder, quick=True, progress=None).document


def test_first_steps_state_what_they_found(begun: tuple[Path, dict[str, Any]]) -> None:
    folder, document = begun
    assert tuple(document["steps_s"]) == FIRST
    assert {figure.split(":")[0] for figure in document["figures"]} == set(FIRST) - {"capture a network of your own"}
    (wanted,) = read_graphs(folder / "wanted.jsonl")
    measured = LatencyTable.load(folder / "wanted.parquet").rows
    assert measured[["subject", "status"]].to_numpy().tolist() == [[wanted.id, "ok"]]


@pytest.mark.parametrize("quick", [True, False])
def test_every_step_is_a_command_that_has_its_options(quick: bool) -> None:
    root, steps = command_line(), DEMO._steps(quick, 0)
    commands = [
        f"serve {DEMO.SERVED}",
        f"serve {DEMO.SERVED_UNPLANNED}",
        *(part for step in steps for part in step.command.split(" & ")),
    ]
    for command in commands:
        if not command.startswith("python "):
            assert unknown_options(root, shlex.split(command)) == [], command


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo") / "run"
    arguments = ["demo", "--out", str(folder), "--quick", "--json"]
    finished = subprocess.run([sys.executable, "-m", "slotool", *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    # The killed worker was another process than the server.
    assert "kill -KILL" in finished.stderr
    return folder, json.loads(finished.stdout)


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_few_of_many_labels_are_answered_sooner_and_as_well(walked: tuple[Path, dict]) -> None:
    folder, _ = walked
    rows = OutcomeTable.load(folder / "slo-nn-outcomes.parquet").rows
    by_point = rows.groupby("version").agg(error=("error", "mean"), latency_s=("latency_s", "median"))
    full = by_point.loc["full"]
    few = by_point[by_point["error"] <= full["error"] + 0.01]["latency_s"].min()
    assert full["latency_s"] > 5 * few


def test_a_demo_replaces_only_what_a_demo_made(slotool, begun: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = begun
    again = slotool("demo", "--out", folder)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    (tmp_path / "diary.txt").write_text("mine")
    foreign = slotool("demo", "--out", tmp_path, "--force")
    assert foreign.exit_code == 2
    assert "not a demo's folder" in foreign.stderr
    assert (tmp_path / "diary.txt").read_text() == "mine"
