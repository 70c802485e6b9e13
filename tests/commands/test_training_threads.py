"""How many threads training takes where nobody says."""

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
