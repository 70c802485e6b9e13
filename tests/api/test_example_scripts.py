"""The scripts of ``examples/`` run as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import slotool

EXAMPLES = Path(slotool.__file__).parents[1] / "examples"


def test_a_network_of_ones_own_is_predicted_in_twenty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    script = EXAMPLES / "predict_network.py"
    assert len(script.read_text().splitlines()) <= 20
    runpy.run_path(str(script), run_name="__main__")
    assert "55,050 weights: " in capsys.readouterr().out
