"""A machine whose clock only calls move on, and on which other processes take time at a share of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from slotool.timing.turns import Watch


class SimulatedMachine:
    """``busy``: share of the calls' seconds after which another process has had a slice of ``SLICE_S``."""

    SLICE_S = 3e-3

    def __init__(self, busy: float = 0.0, seed: int = 0):
        self.now_s = self.lost_s = 0.0
        self._busy, self._rng = busy, np.random.default_rng(seed)

    def call(self, seconds: float) -> Callable[..., float]:
        """A call of so many seconds of this machine; it returns them."""

        def run(*_: Any) -> float:
            self.spend(seconds)
            return seconds

        return run

    def spend(self, seconds: float) -> None:
        slices = int(self._rng.poisson(self._busy * seconds / self.SLICE_S)) if self._busy else 0
        self.now_s += seconds + slices * self.SLICE_S
        self.lost_s += slices * self.SLICE_S

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have slotool time by this machine."""

        @contextmanager
        def opened() -> Iterator[Watch]:
            yield Watch(lambda: self.now_s, self._lost)

        monkeypatch.setattr(Watch, "opened", staticmethod(opened))

    def _lost(self) -> float:
        lost, self.lost_s = self.lost_s, 0.0
        return lost
