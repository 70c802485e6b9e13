"""What the paper's two predictors share: the flattened encoding, scaled columns, and a floor under the answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.base import Document, Predictor, Tensors, require_labels

# How a number of weights may enter. Small networks differ by ratios, big ones by differences.
WEIGHT_SCALES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "counts": lambda weights: weights,
    "sqrt": np.sqrt,
    "log1p": np.log1p,
}


@dataclass(frozen=True)
class FlatFeatures:
    """Encoded graphs with weight counts scaled, constant columns left out and the others standardised.

    ``columns_used``: int64 [columns]; ``mean`` and ``deviation``: float64 [columns], of the training graphs.
    """

    encoding: FlatEncoding
    weight_scale: str
    columns_used: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def fit(cls, encoding: FlatEncoding, graphs: Sequence[OperatorGraph], weight_scale: str) -> Self:
        columns = _columns(encoding, graphs, weight_scale)
        used = np.flatnonzero(np.ptp(columns, axis=0) > 0)
        varying = columns[:, used].astype(np.float64)
        return cls(encoding, weight_scale, used, varying.mean(axis=0), varying.std(axis=0))

    def matrix(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float64 [n, columns]."""
        columns = _columns(self.encoding, graphs, self.weight_scale)[:, self.columns_used]
        return (columns.astype(np.float64) - self.mean) / self.deviation

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {"columns_used": self.columns_used, "mean": self.mean, "deviation": self.deviation}
        return tensors, {"encoding": self.encoding.state(), "weight_scale": self.weight_scale}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        encoding = FlatEncoding.from_state(document["encoding"])
        return cls(encoding, document["weight_scale"], tensors["columns_used"], tensors["mean"], tensors["deviation"])


@dataclass(frozen=True)
class Labelled:
    """Graphs and how long each takes: float64 seconds [n]."""

    graphs: Sequence[OperatorGraph]
    latency_s: np.ndarray


class FlatRegressor(Predictor):
    """Regression on ``FlatFeatures``, room being made for the largest graph of the training and dev sets.

    A regression may answer anything, but a latency is positive: answers below the shortest latency of the training
    set are raised to it.
    """

    _features: FlatFeatures
    _floor_s: float

    def fit(
        self,
        graphs: Sequence[OperatorGraph],
        latency_s: np.ndarray,
        dev_graphs: Sequence[OperatorGraph],
        dev_latency_s: np.ndarray,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        require_labels(graphs, latency_s, "training")
        require_labels(dev_graphs, dev_latency_s, "dev")
        train, dev = Labelled(graphs, latency_s), Labelled(dev_graphs, dev_latency_s)
        self._floor_s = float(np.min(train.latency_s))
        encoding = FlatEncoding.fit([*graphs, *dev_graphs])
        self._features = self._learn(encoding, train, dev, seed, progress or (lambda _: None))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        return np.maximum(self._answer(self._features.matrix(graphs)), self._floor_s)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._features.state()
        own_tensors, own_document = self._learnt()
        return tensors | own_tensors, document | {"floor_s": self._floor_s} | own_document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        predictor = cls()
        predictor._features = FlatFeatures.from_state(tensors, document)
        predictor._floor_s = float(document["floor_s"])
        predictor._restore(tensors, document)
        return predictor

    @abstractmethod
    def _learn(
        self, encoding: FlatEncoding, train: Labelled, dev: Labelled, seed: int, progress: Callable[[str], None]
    ) -> FlatFeatures:
        """Learn from ``train`` and return the features that ``_answer`` wants to be given."""

    @abstractmethod
    def _answer(self, x: np.ndarray) -> np.ndarray:
        """float64 seconds [n], of any sign, from features [n, columns]."""

    @abstractmethod
    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What ``_learn`` found out beside the features, as tensors and JSON."""

    @abstractmethod
    def _restore(self, tensors: Tensors, document: Document) -> None:
        """Take back what ``_learnt`` gave."""


def _columns(encoding: FlatEncoding, graphs: Sequence[OperatorGraph], weight_scale: str) -> np.ndarray:
    columns = encoding.transform(graphs)
    at = encoding.weight_columns
    columns[:, at] = WEIGHT_SCALES[weight_scale](columns[:, at])
    return columns
