"""The scripts of ``examples/`` run as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.conftest import Slotool

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_network_of_ones_own_is_predicted_in_twenty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    script = EXAMPLES / "predict_network.py"
    assert len(script.read_text().splitlines()) <= 20
    runpy.run_path(str(script), run_name="__main__")
    assert "55,050 weights: " in capsys.readouterr().out


def test_two_models_share_the_workers_that_the_docs_plan(slotool: Slotool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    command = "slotool plan --config examples/models.toml"
    assert f"`{command}`" in Path("docs/index.md").read_text()
    plan = slotool(*command.split()[1:], "--json").document
    assert [promise["model"] for promise in plan["promises"]] == ["live", "archive"]
    assert (plan["fleets"][0]["kind"], plan["fleets"][0]["holds"]) == ("shared", True)
