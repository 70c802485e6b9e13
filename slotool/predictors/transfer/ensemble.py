"""Several predictors answering as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_arrays import Batch, once
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.registry import from_nested_state, nested_state
from slotool.predictors.transfer.from_base import SameAnswers

# Held-out errors count up to this (in log): how far beyond a contender is wrong says nothing more about the others.
MAX_LOG_ERROR = 1.0
MIN_WEIGHT = 0.02


class EnsemblePredictor(Predictor[OperatorGraph]):
    """The weighted geometric mean of what its members answer, or partly their median.

    ``median_share``: that of the median of all members in the logarithm of the answer; the mean has the rest. Members
    are fitted before they join; ``fit`` is refused. What several of them are made from, such as their base, becomes one
    and the same, and is asked once for a call.
    """

    name = "ensemble"
    fitted_to = (FROM_OTHERS,)

    def __init__(
        self,
        members: Sequence[Predictor[OperatorGraph]] = (),
        weights: Sequence[float] = (),
        median_share: float = 0.0,
    ):
        self.members = tuple(map(SameAnswers().first_like, members))
        self.weights = np.asarray(weights, dtype=np.float64)
        self.median_share = median_share

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        raise InputError("an ensemble is made of fitted predictors: adapt-predictor makes one")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        graphs = Batch.of(graphs)
        logs = np.stack([np.log(once(graphs, member.predict)) for member in self.members])
        return np.asarray(np.exp(blended(logs, self.weights, self.median_share)))

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        """The share that an operator has is the weighted mean of those that the members give it, of those that do."""
        asked = Batch([item])
        found = [
            (weight, member, member.operator_seconds(item))
            for weight, member in zip(self.weights, self.members, strict=True)
        ]
        shares = [(weight, own / once(asked, member.predict)[0]) for weight, member, own in found if own is not None]
        if not shares:
            return None
        total = sum(weight for weight, _ in shares)
        return np.asarray(sum(weight * share for weight, share in shares) / total * self.predict(asked)[0])

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors: dict[str, np.ndarray] = {}
        entries = []
        for i, member in enumerate(self.members):
            own, entry = nested_state(member, f"members.{i}.")
            tensors |= own
            entries.append(entry)
        same = _same_tensors(tensors)
        kept = {name: value for name, value in tensors.items() if name not in same}
        shares = {"weights": self.weights.tolist(), "median_share": self.median_share}
        return kept, {"members": entries, **shares, "same_tensors": same}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        tensors = {**tensors, **{name: tensors[other] for name, other in document.get("same_tensors", {}).items()}}
        members = [from_nested_state(tensors, entry, f"members.{i}.") for i, entry in enumerate(document["members"])]
        # Those that were written before there was one have no share of a median.
        return cls(members, document["weights"], float(document.get("median_share", 0.0)))


def _same_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Of each tensor that equals one before it that one's name: members hold the same base, which is stored once."""
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    same = {}
    for name, value in tensors.items():
        known = first.setdefault((str(value.dtype), value.shape, value.tobytes()), name)
        if known != name:
            same[name] = known
    return same


def blended(logs: np.ndarray, weights: np.ndarray, median_share: float) -> np.ndarray:
    """Of what m members say of n networks, float64 [m, n]: their mean by these weights [m], but for the share of their
    median."""
    found = weights @ logs
    return np.asarray(found + median_share * (np.median(logs, axis=0) - found) if median_share else found)


def inverse_errors(log_errors: np.ndarray) -> np.ndarray:
    """Weights [m], summing to 1, of m contenders whose held-out log errors are float64 [m, n].

    Inverse to the square of the mean squared error: sharper than the inverse alone, which is best only where errors are
    independent, and those of predictors of the same labels are not. Weights below ``MIN_WEIGHT`` become 0.
    """
    squares = np.mean(np.minimum(np.abs(log_errors), MAX_LOG_ERROR) ** 2, axis=1)
    weights = np.maximum(squares, 1e-12) ** -2.0
    weights = np.where(weights < MIN_WEIGHT * weights.sum(), 0.0, weights)
    return np.asarray(weights / weights.sum())
