"""What the paper's two predictors share: the flattened encoding, scaled columns, and a floor under the answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.base import Asked, Document, Examples, Predictor, Progress, Tensors

# How a number of weights may enter. Small networks differ by ratios, big ones by differences.
WEIGHT_SCALES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "counts": lambda weights: weights,
    "sqrt": np.sqrt,
    "log1p": np.log1p,
}


@dataclass(frozen=True)
class FlatFeatures:
    """Encoded_contra graphs with weight counts scaled, constant columns left out and the others standardised.

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


Encoded_contra = TypeVar("Encoded_contra", contravariant=True)


class Features(Protocol[Encoded_contra]):
    """What turns networks, or co-locations, into the numbers of a regression; fitted to a training set."""

    @property
    def weight_scale(self) -> str: ...

    def matrix(self, graphs: Sequence[Encoded_contra]) -> np.ndarray: ...

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...


class FlatRegressor(Predictor[Asked]):
    """Regression on a flattened encoding, room being made for the largest graph of the training and dev sets.

    A regression may answer anything, but a latency is positive: answers below the least of the training set are
    raised to it. ``FlatSolo`` and ``FlatColocated`` say of what it is, subclasses of those which regression.
    """

    _features: Features[Asked]
    _floor_s: float

    def fit(
        self, train: Examples[Asked], dev: Examples[Asked], *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        train.require("training")
        dev.require("dev")
        # What the regression learns: the latency beyond what is known, of either sign.
        beyond = Examples(train.items, train.latency_s - self._base_s(train.items))
        beyond_dev = Examples(dev.items, dev.latency_s - self._base_s(dev.items))
        self._floor_s = float(np.min(beyond.latency_s))
        made = self._feature_maker([*train.items, *dev.items], train.items)
        self._features = self._learn(made, beyond, beyond_dev, seed, progress or (lambda _: None))

    def predict(self, graphs: Sequence[Asked]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        base_s = self._base_s(graphs)
        return base_s + np.maximum(self._answer(self._features.matrix(graphs)), np.maximum(self._floor_s, -base_s / 2))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._features.state()
        own_tensors, own_document = self._learnt()
        return tensors | own_tensors, document | {"floor_s": self._floor_s} | own_document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        predictor = cls()
        predictor._features = cls._features_from(tensors, document)
        predictor._floor_s = float(document["floor_s"])
        predictor._restore(tensors, document)
        return predictor

    @abstractmethod
    def _base_s(self, graphs: Sequence[Asked]) -> np.ndarray:
        """Known seconds [n] of each, beyond which the regression learns what it takes."""

    @abstractmethod
    def _feature_maker(self, room_for: Sequence[Asked], train: Sequence[Asked]) -> Callable[[str], Features[Asked]]:
        """What makes the features of a scale of weights (``WEIGHT_SCALES``), fitted to ``train``."""

    @classmethod
    @abstractmethod
    def _features_from(cls, tensors: Tensors, document: Document) -> Features[Asked]:
        """The features whose state this is."""

    @abstractmethod
    def _learn(
        self,
        features_of: Callable[[str], Features[Asked]],
        train: Examples[Asked],
        dev: Examples[Asked],
        seed: int,
        progress: Callable[[str], None],
    ) -> Features[Asked]:
        """Learn from ``train`` and return the features that ``_answer`` wants to be given."""

    @abstractmethod
    def _answer(self, x: np.ndarray) -> np.ndarray:
        """float64 seconds [n], of any sign, from features [n, columns]."""

    @abstractmethod
    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What ``_learn`` found out besides the features, as tensors and JSON."""

    @abstractmethod
    def _restore(self, tensors: Tensors, document: Document) -> None:
        """Take back what ``_learnt`` gave."""


class FlatSolo(FlatRegressor[OperatorGraph]):
    """Of networks alone: the label is the latency, the features are ``FlatFeatures``."""

    def _base_s(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.zeros(len(graphs))

    def _feature_maker(
        self, room_for: Sequence[OperatorGraph], train: Sequence[OperatorGraph]
    ) -> Callable[[str], Features[OperatorGraph]]:
        encoding = FlatEncoding.fit(room_for)
        return lambda scale: FlatFeatures.fit(encoding, train, scale)

    @classmethod
    def _features_from(cls, tensors: Tensors, document: Document) -> Features[OperatorGraph]:
        return FlatFeatures.from_state(tensors, document)


def _columns(encoding: FlatEncoding, graphs: Sequence[OperatorGraph], weight_scale: str) -> np.ndarray:
    columns = encoding.transform(graphs)
    at = encoding.weight_columns
    columns[:, at] = WEIGHT_SCALES[weight_scale](columns[:, at])
    return columns
