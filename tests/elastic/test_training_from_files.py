"""Training on examples that stay in their files, a pool of slices at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import slotool
from slotool.data import dataset, load_dataset, stored
from slotool.elastic import training
from slotool.elastic.training import BATCH_SIZE, shuffled_batches, steps_of


@pytest.fixture
def path(tmp_path: Path) -> str:
    x, y = (np.random.default_rng(0).normal(size=(900, 4)) + 1.0).astype(np.float32), np.arange(900) % 3
    x[np.arange(900), y] += 6.0
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return str(tmp_path / "data.npz")


def test_each_example_comes_once_and_with_its_own_label(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "BATCH_BYTES", 16 * 50)
    split = load_dataset(path, stored=True).train
    monkeypatch.setattr(training, "POOL", 3)
    drawn = list(shuffled_batches(split, torch.Generator().manual_seed(0)))
    assert steps_of(split) >= len(drawn) > len(split) // BATCH_SIZE
    x, y = torch.cat([x for x, _ in drawn]).numpy(), torch.cat([y for _, y in drawn]).numpy()
    whole = load_dataset(path).train
    assert not np.array_equal(x, whole.x)
    order, own = np.lexsort(x.T), np.lexsort(whole.x.T)
    np.testing.assert_array_equal(x[order], whole.x[own])
    np.testing.assert_array_equal(y[order], whole.y[own])


def test_a_set_that_does_not_fit_is_trained_on_from_its_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load_dataset(path, stored=True).loaded_if_small().train.x, np.ndarray)
    monkeypatch.setattr(dataset, "usable_memory", lambda: 100)
    assert isinstance(load_dataset(path, stored=True).loaded_if_small().train.x, stored.StoredExamples)
    found = slotool.train_mlp(data=path, hidden=[16], epochs=30, progress=None)
    assert found.findings()["versions"][0]["test_accuracy"] > 0.9
