"""The least that networks take: each of their operators as much as in no label less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.features.domain import inputs_of

# An answer below this share of what the operators take at least is raised to that; what is less clearly below may be an
# error like any other.
CLEARLY_BELOW = 0.5


def min_operator_seconds(operators: np.ndarray, latency_s: np.ndarray) -> float:
    """Seconds per operator as in no label less; both float64 [n]."""
    return float(np.min(latency_s / operators))


def raised(
    latency_s: np.ndarray, operators: np.ndarray, min_operator_s: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """``latency_s``, those clearly below ``min_operator_s`` times their operators as that; and which, bool [n]."""
    min_s = min_operator_s * operators
    below = latency_s < CLEARLY_BELOW * min_s
    return np.where(below, min_s, latency_s), below


def raised_in_words(where: str, min_operator_s: float) -> str:
    """Why there is no interval. ``where``: nothing less was measured, such as "on this device"."""
    return (
        f"predicted faster than any network measured {where}, and raised to the least measured, "
        f"{1e6 * min_operator_s:.3g} µs for each operator"
    )


@dataclass(frozen=True)
class Floor:
    """``min_operator_s``: by what networks take (``inputs_of``), seconds per operator as in no label less.

    Networks that take anything else have no floor: operators of image networks take twice as long, at the least, as
    those of networks of vectors on the same machine."""

    min_operator_s: Mapping[str, float]

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> Self:
        """What labels say, ``latency_s`` float64 [n]."""
        found: dict[str, float] = {}
        for graph, seconds in zip(graphs, (latency_s / _counts(graphs)).tolist(), strict=True):
            found |= {taken: min(seconds, found.get(taken, seconds)) for taken in inputs_of([graph])}
        return cls(found)

    def adapted(self, labels: Examples[OperatorGraph]) -> Floor:
        """With labels of a new setting. The least of all counts for whatever networks take, since the setting may be
        faster; alone they show too few networks of the smallest operators."""
        own = min_operator_seconds(_counts(labels.items), labels.latency_s)
        return Floor({taken: min(seconds, own) for taken, seconds in self.min_operator_s.items()})

    def raised(self, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """``latency_s``, those clearly below what their operators take as that; and why there is no interval, in words,
        None of all others."""
        own = np.array([min((self._of(taken) for taken in inputs_of([graph])), default=0.0) for graph in graphs])
        raised_s, below = raised(latency_s, _counts(graphs), own)
        where = "among the labels it rests on"
        pairs = zip(own.tolist(), below.tolist(), strict=True)
        return raised_s, [raised_in_words(where, seconds) if is_below else None for seconds, is_below in pairs]

    def _of(self, taken: str) -> float:
        return self.min_operator_s.get(taken, 0.0)

    def document(self) -> dict[str, float]:
        return dict(self.min_operator_s)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Raises ``InputError`` for what is no time."""
        found = strict_json.convert(document, dict[str, float])
        if not all(np.isfinite(seconds) and seconds > 0 for seconds in found.values()):
            raise InputError("the least seconds per operator are not numbers greater than 0")
        return cls(found)


def _counts(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Operators of each network, float64 [n]."""
    return np.array([len(graph.operators) for graph in graphs], dtype=np.float64)
