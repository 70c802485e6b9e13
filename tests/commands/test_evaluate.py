"""``slotool.evaluate``: an outcome table from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import slotool
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import ArgumentError
from slotool.tables import OutcomeTable

FAMILY = shipped_artifact("family").path


def test_every_point_answers_every_example_and_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    heard: list[tuple[str, int, int | None]] = []
    found = slotool.evaluate(
        FAMILY, tmp_path / "o.parquet", data="digits", limit=10, repeats=1, progress=lambda *step: heard.append(step)
    )
    assert heard[-1][1:] == (10, 10)
    assert torch.get_num_threads() == before
    assert len(found.outcomes.examples) == 10
    assert found.frame()["version"].tolist() == found.outcomes.versions
    assert OutcomeTable.load(tmp_path / "o.parquet").versions == found.outcomes.versions
    assert found.document["outcomes"] == str(tmp_path / "o.parquet")


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({"targets": [0.9]}, "targets"), ({"confidence": 2.0}, "confidence"), ({"split": "train"}, "split"),
     ({"threads": 10_000}, "threads")],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        slotool.evaluate(FAMILY, **arguments)
    assert raised.value.argument == argument
