"""``make gpu``: what was finished is not done again, what failed is, and the page of results holds every piece."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_carry
from benchmarks import gpu_pieces as pieces
from benchmarks.gpu_pieces.piece import DONE, FAILED, UNFINISHED, Left, NotYet, Piece, Spec, ran
from benchmarks.gpu_pieces.solo import applications
from docs.generate import gpu as pages
from slotool import transfers
from slotool.graphs.store import write_graphs

PAGE = gpu.PAGE.read_text()


def test_every_piece_has_its_place_on_the_page_and_each_window_fits_into_thirteen_minutes() -> None:
    assert sorted(pages.marks(PAGE)) == sorted([*gpu.PIECES, pages.GOALS_MARK])
    assert list(pages.TABLES) == list(gpu.PIECES)
    assert {goal.piece for goal in pages.GOALS} <= set(gpu.PIECES)
    assert {spec.window for spec in gpu.PIECES.values()} == set(range(1, 8))
    for window in range(1, 8):
        planned_s = [gpu.PIECES[name].allowance_s for name in gpu.chosen(window, "cuda:0")]
        assert sum(planned_s) + gpu.START_S < 13 * 60, window
        assert max(planned_s) <= gpu.LIMIT_S <= 9 * 60, window


def test_every_piece_is_there() -> None:
    for path in Path(pieces.__file__).parent.glob("*.py"):
        import_module(f"benchmarks.gpu_pieces.{path.stem}")
    for where in gpu.FUNCTIONS.values():
        module, _, function = where.partition(":")
        assert callable(getattr(import_module(f"benchmarks.gpu_pieces.{module}"), function)), where


def test_a_window_is_rehearsed_and_leaves_one_archive(tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path), "REHEARSAL": str(tmp_path / "gpu-rehearsal"), "WINDOW_S": "240",
                   "GPU_PYTHON": sys.executable}  # fmt: skip
    command = ["bash", str(gpu.ROOT / "benchmarks" / "gpu_window.sh"), "5", "--rehearse"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # A lent machine gives back so much of the output.
    assert len(ended.stdout + ended.stderr) < 12_000
    with tarfile.open(tmp_path / "gpu-window-5.tar.gz") as archive:
        names = archive.getnames()
        document = archive.extractfile("gpu-rehearsal/large-outputs.json")
        assert document is not None
        assert json.load(document)["status"] == DONE
    assert all(re.fullmatch(r"[A-Za-z0-9._/-]+", name) for name in names)
    assert subprocess.run([*command[:2], "8"], capture_output=True, check=False).returncode == gpu.USAGE


@pytest.mark.parametrize("kind", ["checkout", "archive"])
def test_what_is_carried_is_weighed_in_a_checkout_and_in_an_archive(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    carry = tmp_path / "gpu-carry"
    (carry / "wheels").mkdir(parents=True)
    for package in gpu_carry.PACKAGES:
        (carry / "wheels" / f"{package.replace('-', '_')}-1-py3-none-any.whl").write_bytes(bytes(1_000_000))
    graph = applications(1)[0]
    write_graphs(carry / "timm-graphs.parquet", [replace(graph, name=name) for name in gpu_carry.NETWORKS])
    (tmp_path / "kept").write_bytes(bytes(2_000_000))
    if kind == "checkout":
        (tmp_path / "ignored").write_bytes(bytes(9_000_000))
        for command in (["init", "--quiet"], ["add", "kept"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
    places = {"ROOT": tmp_path, "FOLDER": carry, "WHEELS": carry / "wheels", "GRAPHS": carry / "timm-graphs.parquet"}
    for name, place in places.items():
        monkeypatch.setattr(gpu_carry, name, place)
    assert gpu_carry.main() == 0
    assert re.fullmatch(
        r"gpu-carry/ 14\.\d MB and the checkout 2\.0 MB; 67\.1 MB may travel\n", capsys.readouterr().out
    )
    (tmp_path / "kept").write_bytes(bytes(60_000_000))
    assert gpu_carry.main() == 1


def run(out: Path, steps: dict[str, Callable[[], dict[str, Any]]], limit_s: float = 60.0) -> tuple[str, dict[str, Any]]:
    """How a piece of these steps ended, and its document."""

    def each(piece: Piece) -> None:
        for name, make in steps.items():
            piece.step(name, make)

    status = ran(Spec(1, "made-up", "Made up", each, 1.0), out, "cpu", limit_s, full=False)
    return status, json.loads((out / "made-up.json").read_text())


def test_a_piece_goes_on_with_the_step_that_was_cut_off(tmp_path: Path) -> None:
    made = []

    def quick() -> dict[str, Any]:
        made.append("quick")
        return {"figure": 1.5, "nothing": float("nan")}

    def slow() -> dict[str, Any]:
        time.sleep(60)
        return {}

    status, document = run(tmp_path, {"quick": quick, "slow": slow}, limit_s=0.3)
    assert (status, document["status"], list(document["steps"])) == (UNFINISHED, UNFINISHED, ["quick"])
    status, document = run(tmp_path, {"quick": quick, "slow": lambda: {"figure": 2}})
    assert (status, made) == (DONE, ["quick"])
    assert document["steps"]["quick"] | {"seconds": 0} == {"figure": 1.5, "nothing": None, "seconds": 0}
    assert document["steps"]["slow"]["figure"] == 2
    assert document["rehearsal"]


def test_ctrl_c_leaves_a_document_and_what_was_finished(tmp_path: Path) -> None:
    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"quick": lambda: {"figure": 1}, "slow": interrupted})
    document = json.loads((tmp_path / "made-up.json").read_text())
    assert (document["status"], list(document["steps"])) == (UNFINISHED, ["quick"])
    assert run(tmp_path, {"quick": interrupted, "slow": lambda: {}})[0] == DONE


def test_a_failed_step_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    def absent() -> dict[str, Any]:
        raise Left("faiss is not installed")

    status, document = run(tmp_path, {"bad": lambda: {"ratio": 1 / 0}, "absent": absent, "good": lambda: {"figure": 3}})
    steps = document["steps"]
    assert (status, steps["bad"]["error"]) == (FAILED, "ZeroDivisionError: division by zero")
    assert steps["absent"] == {"skipped": "faiss is not installed"}
    assert steps["good"]["figure"] == 3
    assert pages._left_out(steps) == [
        "*absent*: left out, faiss is not installed.", "*bad*: failed, `ZeroDivisionError: division by zero`.",
    ]  # fmt: skip
    # What is left out for good does not make a piece unfinished.
    assert run(tmp_path, {"bad": lambda: {"ratio": 1}, "absent": absent, "good": absent})[0] == DONE


def test_a_piece_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    def absent(piece: Piece) -> None:
        raise ModuleNotFoundError("No module named 'scipy'")

    assert ran(Spec(1, "made-up", "Made up", absent, 1.0), tmp_path, "cpu", 60.0, full=False) == FAILED
    document = json.loads((tmp_path / "made-up.json").read_text())
    assert document["steps"]["made-up"]["error"] == "ModuleNotFoundError: No module named 'scipy'"


def test_a_step_that_came_too_early_is_tried_again(tmp_path: Path) -> None:
    def early() -> dict[str, Any]:
        raise NotYet("labels.parquet is not there yet")

    status, document = run(tmp_path, {"predictors": early})
    assert (status, document["steps"]["predictors"]["error"]) == (FAILED, "labels.parquet is not there yet")
    assert run(tmp_path, {"predictors": lambda: {"mape": 0.1}})[0] == DONE


def test_a_rehearsed_piece_is_on_the_page_once_and_never_among_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--rehearse", "--piece", "actuation", "--out", str(tmp_path)]
    assert gpu.main(command) == 0
    capsys.readouterr()
    assert gpu.main(command) == 0
    assert capsys.readouterr().out == "actuation: done before\n"
    gpu.write_page(tmp_path)
    page = (tmp_path / "gpu.md").read_text()
    assert "| small residual network | " in page
    assert "| switching to another subnet | ≤\u00a050\u00a0µs | " in page
    assert page.count(pages.NOT_RUN) == len(gpu.PIECES) - 1
    with pytest.raises(ValueError, match=r"actuation\.json is of a rehearsal; its figures mean nothing"):
        pages.record(tmp_path, tmp_path / "kept")
    known = tmp_path / gpu.DEVICE_FILE
    known.write_text(known.read_text().replace('"name": "cpu"', '"name": "H200"'))
    assert gpu.main(command) == gpu.USAGE
    assert "holds results of H200, torch" in capsys.readouterr().err
    assert gpu.main([*command, "--list"]) == 0
    assert "3 actuation      done" in capsys.readouterr().out


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no document of `make gpu`"):
        pages.record(tmp_path, tmp_path / "results")
    (tmp_path / "served.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"served\.json is no document of `make gpu`"):
        pages.record(tmp_path, tmp_path / "results")


def test_eager_serving_has_its_switch() -> None:
    # Window 3 serves without CUDA graphs by emptying it.
    assert transfers.CAPTURED_SIZES


def test_requests_without_an_answer_have_no_time_on_the_page() -> None:
    load = {"per_s": 3.0, "p50_s": 0.25, "p99_s": None}
    steps = {"supernet, slotool": dict.fromkeys(("closed 1", "closed 32", "open 60%", "open 90%"), load)}
    (table,) = pages.TABLES["serving"](steps)
    assert [cell == "–" for cell in table.rows[0][3:]] == [False, True, False, True]
    goal = next(goal for goal in pages.GOALS if goal.piece == "serving")
    assert goal.row({"serving": {"steps": {"supernet, slotool": {"closed 1": {"p50_s": None}}}}})[3] == "–"


def test_results_of_two_cards_are_not_mixed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        document = {"schema": pages.SCHEMA, "piece": "timm", "rehearsal": False, "device": {"name": f"{name} card"}}
        (tmp_path / name / "timm.json").write_text(json.dumps(document))
    pages.record(tmp_path / "one", tmp_path / "kept")
    pages.record(tmp_path / "one", tmp_path / "kept")
    with pytest.raises(ValueError, match=r"is of other card, and .* holds results of one card"):
        pages.record(tmp_path / "other", tmp_path / "kept")


def test_goals_say_what_was_reached() -> None:
    def of(figure: float) -> dict[str, Any]:
        return {"actuation": {"steps": {"small": {"switch_s": 1e-5}, "large": {"switch_s": figure}}}}

    goal = next(goal for goal in pages.GOALS if goal.piece == "actuation")
    assert [goal.row(of(figure))[3] for figure in (4e-5, 6e-5)] == ["yes", "**no**"]
    assert goal.row({})[2:] == ["not measured", "–"]
