"""The simplest transfer: another setting's predictor times one factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Examples, Tensors
from slotool.predictors.transfer.from_base import FromBase


class ScaledPredictor(FromBase):
    """latency = factor × base's answer; the factor is the median of label ÷ base's answer."""

    name = "scaled"

    factor = 1.0

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        self.factor = float(np.median(train.latency_s / self.source.predict(train.items)))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.asarray(self.factor * self.base_s(graphs))

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {}, {"factor": self.factor}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self.factor = float(document["factor"])
