"""Training of networks: threads where nobody names a number, and a warning for what learnt next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slotool
from tests.machines import UNKNOWN, run_as


def threads_of(data: Path, hidden: list[int], **options: Any) -> set[int]:
    """While a network is trained: torch's compute threads after each epoch."""
    seen: set[int] = set()

    def heard(text: str, done: int, total: int | None) -> None:
        if done:
            seen.add(torch.get_num_threads())

    slotool.train_mlp(data=data, hidden=hidden, epochs=1, progress=heard, **options)
    return seen


def test_only_networks_that_are_worth_it_are_trained_on_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "few.npz"
    np.savez(data, x=np.random.default_rng(0).normal(size=(100, 64)).astype(np.float32), y=np.arange(100) % 2)
    before = torch.get_num_threads()
    run_as(UNKNOWN, monkeypatch, cores_given=2)
    assert threads_of(data, [16]) == {1}
    assert threads_of(data, [16], threads=2) == {2}
    assert threads_of(data, [1024, 1024]) == {2}
    assert torch.get_num_threads() == before


def test_a_network_that_learnt_next_to_nothing_is_warned_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = rng.normal(size=(400, 6)).astype(np.float32)
    data = tmp_path / "noise.npz"
    np.savez(data, x=x, y=y)
    assert any("next to nothing" in warning for warning in slotool.train_mlp(data=data, hidden=8, epochs=1).warnings)
    x[np.arange(400), y] += 6
    np.savez(data, x=x, y=y)
    assert not slotool.train_mlp(data=data, hidden=16, epochs=30).warnings
