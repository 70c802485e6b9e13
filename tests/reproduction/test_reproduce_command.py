"""Figures as a person makes them: one of each paper at the small scale, and again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks.reproduction.__main__ import app
from benchmarks.reproduction.reproduce import reproduce
from slotool.atomic import alone
from slotool.errors import InputError
from tests.docs.preloaded import launchers

# The one of each paper that takes the fewest seconds; those that measure or train take half a minute or more.
ONE_OF_EACH = (
    pytest.param("inference-latency-prediction:3", marks=pytest.mark.long),
    pytest.param("slo-aware-neural-networks:1", marks=pytest.mark.long),
    pytest.param("model-switching:1", marks=pytest.mark.long),
    "tolerance-tiers:2",
    "superserve:11a",
)


@pytest.fixture(autouse=True)
def commands_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a figure as forks of a process that has imported torch."""
    monkeypatch.setattr(sys, "executable", str(launchers() / "python"))


def typed(*arguments: str, folder: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "-o", str(folder)])


@pytest.mark.parametrize("figure", ONE_OF_EACH)
def test_a_figure_is_made_by_commands_that_its_page_lists(figure: str, tmp_path: Path) -> None:
    made = typed(figure, "--json", folder=tmp_path)
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    paper, _, number = figure.partition(":")
    (row,) = document["figures"]
    assert (row["paper"], row["figure"]) == (paper, number)
    assert row["here"]
    assert document["pages"] == [str(tmp_path / f"{paper}.md")]
    page = (tmp_path / f"{paper}.md").read_text()
    assert row["here"] in page
    assert row["claim"] in page
    assert str(tmp_path) not in page
    (known,) = json.loads((tmp_path / f"{paper}.json").read_text())["figures"]
    assert known["rows"]
    assert all(len(cells) == len(known["columns"]) for cells in known["rows"])
    shown = [line for line in made.stderr.splitlines() if line.startswith("$ ")]
    assert shown == [f"$ {command['command']}" for command in known["commands"] if command["seconds"]]
    assert (known["plot"] is None) or (tmp_path / known["plot"]).stat().st_size > 5_000
    again = typed(figure, "--json", folder=tmp_path)
    assert again.exit_code == 0
    assert json.loads(again.stdout) == document
    assert "$ slotool" not in again.stderr


def test_a_command_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    first = reproduce("superserve:12", tmp_path)
    both = reproduce(["superserve:12", "tolerance-tiers:1"], tmp_path)
    assert [row["figure"] for row in both.document["figures"]] == ["12", "1"]
    assert both.document["figures"][0] == first.document["figures"][0]
    with pytest.raises(InputError, match="made with scale small, seed 0"):
        reproduce("superserve:12", tmp_path, seed=1)
    assert reproduce("superserve:12", tmp_path, seed=1, force=True).papers[0]["setting"]["seed"] == 1


def test_a_figure_without_its_data_says_which_it_needs(tmp_path: Path) -> None:
    (row,) = reproduce("superserve:10", tmp_path).document["figures"]
    assert row["not_here"] == "needs azure_functions_2019_1000.csv in the folder given as --data"
    assert "azure_functions_2019_1000.csv" in (tmp_path / "superserve.md").read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"figures": "nothing"}, "no paper 'nothing'; there are inference-latency-prediction"),
        ({"figures": "superserve:99"}, "no figure '99' of superserve; there are 1, 1b, 2,"),
        ({"figures": "superserve:"}, "no figure '' of superserve; there are 1, 1b, 2,"),
        ({"figures": "all:2"}, "no paper 'all'; .* all stands for all of them"),
        ({"figures": "superserve", "data": "no-such-folder"}, "no-such-folder is not a folder of data sets"),
        (
            {"figures": "superserve", "data": str(Path(__file__).parents[1] / "rules")},
            "holds nothing that a figure needs; it may hold",
        ),
    ],
)
def test_what_there_is_not_is_named(given: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        reproduce(out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_two_at_once_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with alone(tmp_path / ".superserve.lock"), pytest.raises(InputError, match="another process writes there now"):
        reproduce("superserve:12", tmp_path)
    assert reproduce("superserve:12", tmp_path).pages == (tmp_path / "superserve.md",)
