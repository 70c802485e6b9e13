"""``slotool.evaluate``: an outcome table from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import slotool
from slotool.artifacts.bundle import shipped_artifact
from slotool.data import load_dataset
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


def test_all_rows_of_a_users_file_are_evaluated_and_the_training_data_is_not(tmp_path: Path) -> None:
    digits = load_dataset("digits").test
    np.savez(tmp_path / "own.npz", x=digits.x[:40], y=digits.y[:40])
    found = slotool.evaluate(FAMILY, data=str(tmp_path / "own.npz"), split="all", repeats=1, progress=None)
    assert len(found.outcomes.examples) == 40
    assert found.outcomes.provenance["split"] == "all"
    for data in (None, "digits"):
        with pytest.raises(ArgumentError) as raised:
            slotool.evaluate(FAMILY, data=data, split="all", progress=None)
        assert raised.value.argument == "split"


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({"targets": [0.9]}, "targets"), ({"confidence": 2.0}, "confidence"), ({"split": "train"}, "split"),
     ({"threads": 10_000}, "threads")],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        slotool.evaluate(FAMILY, **arguments)
    assert raised.value.argument == argument
