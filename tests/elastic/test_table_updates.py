"""Tables that follow a real shift: built where only some digits were seen, then served the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slotool as library
from slotool.artifacts import open_artifact
from slotool.data import Dataset, load_dataset
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.updates import TableUpdates
from slotool.errors import InputError
from slotool.tables import OperatingPoint
from tests.elastic.activator_subjects import trained

Slotool = Callable[..., Any]
SHARES = (0.2, 0.4)


def only(data: Dataset, digits: range) -> Dataset:
    """The examples of those digits in every split."""
    splits = (data.train, data.validation, data.test)
    parts = [split.take(np.flatnonzero(np.isin(split.y, list(digits)))) for split in splits]
    return replace(data, train=parts[0], validation=parts[1], test=parts[2])


@lru_cache(maxsize=1)
def stale() -> SloNN:
    """All digits are known to the network, but its tables have seen 0 to 4 alone."""
    early = only(load_dataset("digits"), range(5))
    return build("digits", TableSubject(trained().mlp, early), "clusters", TableSettings(SHARES))


def accuracy(model: SloNN, data: Dataset, share: float) -> float:
    logits = model.forward(data.test.x, OperatingPoint.of(k=share))
    return float((logits.argmax(axis=1) == data.test.y).mean())


def followed(model: SloNN, data: Dataset, *, labels: bool = True) -> SloNN:
    updates, train = TableUpdates(model, half_life=100), data.train
    for start in range(0, len(train), 64):
        ranked, counted = (slice(start + first, start + 64, 2) for first in (0, 1))
        updates.rank(train.x[ranked])
        updates.count(train.x[counted], train.y[counted] if labels else None)
    return updates.updated()


@pytest.mark.parametrize("labels", [True, False])
def test_updated_tables_recover_what_stale_ones_lose(labels: bool) -> None:
    late = only(load_dataset("digits"), range(5, 10))
    now = followed(stale(), late, labels=labels)
    for share in SHARES:
        assert accuracy(now, late, share) > accuracy(stale(), late, share) + 0.05
    assert now.table_bytes <= stale().table_bytes + 64
    assert now.mlp is stale().mlp


def test_what_was_learnt_long_ago_is_forgotten_and_learnt_again() -> None:
    early, late = (only(load_dataset("digits"), digits) for digits in (range(5), range(5, 10)))
    back = followed(followed(stale(), late), early)
    assert accuracy(back, early, 0.4) > accuracy(followed(stale(), late), early, 0.4)


def test_without_labels_no_more_is_promised_than_the_full_network_kept() -> None:
    late = only(load_dataset("digits"), range(5, 10))
    now, full = followed(stale(), late, labels=False), float(stale().calibration.by_point[-1])
    assert now.calibration.by_point[-1] == pytest.approx(full)
    assert (now.calibration.accuracy <= full + 1e-12).all()
    with pytest.raises(InputError, match="cannot be met"):
        now.top(late.test.x[:1], accuracy=full + 1e-6)


def test_what_updates_the_lists_has_no_part_in_the_evidence_and_the_other_way_round() -> None:
    data, model = load_dataset("digits"), stale()

    def updated(ranked: np.ndarray, y: np.ndarray) -> SloNN:
        updates = TableUpdates(model, half_life=10_000)
        updates.rank(ranked)
        updates.count(data.validation.x, y)
        return updates.updated()

    found = updated(data.train.x, data.validation.y)
    other = updated(data.train.x, np.zeros_like(data.validation.y))
    for at, activator in other.activators.items():
        np.testing.assert_array_equal(activator.lists.lists, found.activators[at].lists.lists)
    # The full network's answers do not depend on the lists, so neither does how many of them are counted as right.
    again = updated(16 - data.train.x, data.validation.y)
    assert again.calibration.by_point[-1] == found.calibration.by_point[-1]
    evidence = found.calibration.evidence_by_point
    assert evidence is not None
    assert evidence.examples == len(data.validation)


def test_bad_streams_are_refused() -> None:
    updates = TableUpdates(stale())
    with pytest.raises(InputError, match="0 inputs are too few to calibrate by"):
        updates.updated()
    x = load_dataset("digits").train.x[:4].copy()
    updates.count(x)
    with pytest.raises(InputError, match="labels must come with all batches or with none"):
        updates.count(x, np.zeros(4, dtype=np.int64))
    x[0, 0, 0, 0] = np.nan
    for way in (updates.rank, updates.count):
        with pytest.raises(InputError, match="hold NaN"):
            way(x)
    with pytest.raises(InputError, match="a half-life of 3 inputs is too short"):
        TableUpdates(stale(), half_life=3)


def test_update_tables_end_to_end(slotool: Slotool, tmp_path: Path) -> None:
    stale().save(tmp_path / "stale", config={}, seed=0)
    done = slotool("update-tables", tmp_path / "stale", "--data", "digits", "-o", tmp_path / "now", "--json")
    assert done.exit_code == 0, done.stderr
    assert library.update_tables(tmp_path / "stale", "digits").document == {**done.document, "artifact": None}
    points = done.document["points"]
    assert [row["point"] for row in points] == ["k=0.2", "k=0.4", "full"]
    assert points[-1]["before"] == points[-1]["after"]
    assert points[1]["after"] > points[1]["before"]
    assert done.document["promised_by"] == len(load_dataset("digits").validation)
    assert open_artifact(tmp_path / "now", "slo-nn").manifest["parents"]
    refused = slotool("update-tables", tmp_path / "now", "--data", "digits", "-o", tmp_path / "x", "--half-life", "3")
    assert refused.exit_code == 2
    assert "too short" in refused.stderr
