"""Which branch of a choice counts as what runs, whichever framework wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Branch = TypeVar("Branch")


def costliest(branches: Sequence[Branch], flops: Callable[[Branch], int], operators: Callable[[Branch], int]) -> Branch:
    """The branch with the most FLOPs; of several the one with the most operators, and of these the first.

    Nobody knows which will run: a latency that is promised must hold for the slowest.
    """
    return max(branches, key=lambda branch: (flops(branch), operators(branch)))
