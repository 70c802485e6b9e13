"""The simplest transfer: another setting's predictor times one factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.registry import from_nested_state, nested_state


class ScaledPredictor(Predictor[OperatorGraph]):
    """latency = factor × base's answer; the factor is the median of label ÷ base's answer. Dev set and seed play no
    part."""

    name = "scaled"
    fitted_to = (FROM_OTHERS,)

    def __init__(self, base: Predictor[OperatorGraph] | None = None):
        self.base, self.factor = base, 1.0

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Raises ``InputError`` also without a base."""
        train.require("training")
        graphs, latency_s = train
        if self.base is None:
            raise InputError("there is no predictor to scale")
        self.factor = float(np.median(latency_s / self.base.predict(graphs)))
        if progress:
            progress(f"{self.name}: × {self.factor:.3g}")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        assert self.base is not None
        return self.factor * self.base.predict(graphs)

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        assert self.base is not None
        found = self.base.operator_seconds(item)
        return None if found is None else self.factor * found

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        assert self.base is not None
        tensors, document = nested_state(self.base, "base.")
        return tensors, {"base": document, "factor": self.factor}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        restored = cls(from_nested_state(tensors, document["base"], "base."))
        restored.factor = float(document["factor"])
        return restored
