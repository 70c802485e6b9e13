"""The least that networks take: each of their operators as much as in no label less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import OperatorGraph

# An answer below this share of what the operators take at least is raised to that; what is less clearly below may be an
# error like any other.
CLEARLY_BELOW = 0.5


def operator_counts(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Operators of each network, float64 [n]."""
    return np.array([len(graph.operators) for graph in graphs], dtype=np.float64)


def min_operator_seconds(operators: np.ndarray, latency_s: np.ndarray) -> float:
    """Seconds per operator as in no label less; both float64 [n]."""
    return float(np.min(latency_s / operators))


def raised(latency_s: np.ndarray, operators: np.ndarray, min_operator_s: float) -> tuple[np.ndarray, np.ndarray]:
    """``latency_s``, those clearly below ``min_operator_s`` times their operators as that; and which, bool [n]."""
    min_s = min_operator_s * operators
    below = latency_s < CLEARLY_BELOW * min_s
    return np.where(below, min_s, latency_s), below


def raised_in_words(where: str, min_operator_s: float) -> str:
    """Why there is no interval. ``where``: nothing less was measured, such as "on this device"."""
    return (
        f"it is below anything measured {where}, where no network took less than {1e6 * min_operator_s:.3g} µs an "
        "operator: it is given as that"
    )
