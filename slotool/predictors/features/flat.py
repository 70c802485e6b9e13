"""Base of the paper's two predictors: the flattened encoding, scaled columns, and a floor under the answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool.errors import GraphError, InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.base import COLOCATED, SOLO, Asked, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.colocations import Colocation, members_of

# Directions in which networks differ less than this share of the most count as none.
MIN_DIRECTION = 1e-6
# Features, float64 [n, columns], and the latency beyond the solo latency, of either sign, float64 seconds [n].
Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Standardization:
    """Scaling of one member's columns of the encoding, without those that are constant in the training set.

    ``columns_used`` int64 [c], ``mean`` and ``deviation`` float64 [c] over the training set, and for co-locations
    ``directions`` float64 [c, d], an orthonormal basis of the scaled columns. With few networks in many co-locations d
    is small, where all columns would fill the memory; a regression loses nothing by it.
    """

    columns_used: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    directions: np.ndarray | None = None

    @classmethod
    def fit(cls, encoded: np.ndarray, counts: np.ndarray, *, directions: bool) -> Self:
        """Fit to the ``encoded`` networks, float32 [networks, width]; ``counts`` int64 [networks]: uses of each."""
        used = np.flatnonzero(np.ptp(encoded, axis=0) > 0)
        columns, weights = encoded[:, used].astype(np.float64), counts / counts.sum()
        mean = weights @ columns
        deviation = np.sqrt(weights @ (columns - mean) ** 2)
        if not directions:
            return cls(used, mean, deviation)
        _, sizes, basis = np.linalg.svd((columns - mean) / deviation, full_matrices=False)
        keep = sizes > MIN_DIRECTION * max(sizes.max(initial=0.0), 1e-300)
        return cls(used, mean, deviation, basis[keep].T)

    def coordinates(self, encoded: np.ndarray) -> np.ndarray:
        """Return float64 [networks, c], or [networks, d] along the directions."""
        scaled = (encoded[:, self.columns_used].astype(np.float64) - self.mean) / self.deviation
        if self.directions is None:
            return np.asarray(scaled)
        # Of unit variance on average, as if they were columns.
        width = self.directions.shape[1]
        return np.asarray(scaled @ self.directions / np.sqrt(max(len(self.columns_used) / max(width, 1), 1)))

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: np.ascontiguousarray(value) for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class FlatFeatures:
    """Features of networks or co-locations: coordinates of each member by its ``Standardization``, the subject first.

    They are the attribute lists and adjacency matrix of each member, with constant columns left out and the others
    standardised. A network alone is a co-location of one; places without a member are zeros.
    """

    encoding: FlatEncoding
    places: tuple[Standardization, ...]

    @classmethod
    def fit(cls, encoding: FlatEncoding, items: Sequence[OperatorGraph | Colocation]) -> Self:
        places = []
        most = max(len(members_of(item)) for item in items)
        for at in range(most):
            rows, row_of_item = _encoded_members(encoding, items, at)
            counts = np.bincount(row_of_item, minlength=len(rows))
            places.append(Standardization.fit(rows, counts, directions=most > 1))
        return cls(encoding, tuple(places))

    def matrix(self, items: Sequence[OperatorGraph | Colocation]) -> np.ndarray:
        """Return features, float64 [n, Σ widths].

        Raises ``GraphError`` for a co-location of more members, or a larger network, than any of the training set.
        """
        for item in items:
            if len(members_of(item)) > len(self.places):
                raise GraphError(
                    f"a co-location of {len(members_of(item))} networks, but training had {len(self.places)} at most"
                )
        blocks = []
        for at, place in enumerate(self.places):
            rows, row_of_item = _encoded_members(self.encoding, items, at)
            blocks.append(place.coordinates(rows)[row_of_item])
        return np.hstack(blocks)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return tensors and a JSON document."""
        document = {"encoding": self.encoding.state(), "places": len(self.places)}
        places = enumerate(self.places)
        return {f"places.{i}.{name}": t for i, place in places for name, t in place.tensors().items()}, document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        places = []
        for prefix in (f"places.{i}." for i in range(int(document["places"]))):
            stored = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            places.append(Standardization(**stored))
        if document.get("weight_scale", "counts") != "counts":
            raise InputError("the predictor was trained on another scale of weights: retrain")
        return cls(FlatEncoding.from_state(document["encoding"]), tuple(places))


class FlatRegressor(Predictor[Asked]):
    """Regression on a flattened encoding, as wide as the largest graph of the training and dev sets.

    Its target is the latency of a network alone, or what co-location adds to the solo latency. Answers below the least
    of the training set are raised to it. Source: inference-latency-prediction, 4.1 and 4.2.
    """

    fitted_to = (SOLO, COLOCATED)

    def fit(
        self, train: Examples[Asked], dev: Examples[Asked], *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        train.require("training")
        dev.require("dev")
        members = {graph.id: graph for item in [*train.items, *dev.items] for graph in members_of(item)}
        encoding = FlatEncoding.fit(list(members.values()))
        self._features = FlatFeatures.fit(encoding, train.items)
        fitting, choosing = (
            (self._features.matrix(part.items), part.latency_s - _known_s(part.items)) for part in (train, dev)
        )
        self._floor_s = float(np.min(fitting[1]))
        self._learn(fitting, choosing, seed, progress or (lambda _: None))

    def predict(self, graphs: Sequence[Asked]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        known_s = _known_s(graphs)
        answer_s = self._answer(self._features.matrix(graphs))
        predicted_s: np.ndarray = known_s + np.maximum(answer_s, np.maximum(self._floor_s, -known_s / 2))
        return predicted_s

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
    def _learn(self, train: Rows, dev: Rows, seed: int, progress: Progress) -> None:
        """Learn from ``train``; ``dev`` is for choices."""

    @abstractmethod
    def _answer(self, x: np.ndarray) -> np.ndarray:
        """Return float64 seconds [n], of any sign, for features [n, columns]."""

    @abstractmethod
    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the result of ``_learn``, as tensors and JSON."""

    @abstractmethod
    def _restore(self, tensors: Tensors, document: Document) -> None:
        """Restore the result of ``_learnt``."""


def _known_s(items: Sequence[OperatorGraph | Colocation]) -> np.ndarray:
    """Return the known part of each latency, float64 seconds [n]: solo latency of a co-location, else 0."""
    return np.array([item.solo_s[0] if isinstance(item, Colocation) else 0.0 for item in items])


def _encoded_members(
    encoding: FlatEncoding, items: Sequence[OperatorGraph | Colocation], at: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct networks at a place of the items, float32 [m, width], zeros for none; and the row of each item.

    The rows are int64 [n].
    """
    members_there = [members_of(item)[at : at + 1] for item in items]
    ids = [members[0].id if members else "" for members in members_there]
    distinct = dict(zip(ids, members_there, strict=True))
    rows = np.zeros((len(distinct), encoding.width), dtype=np.float32)
    present = [i for i, members in enumerate(distinct.values()) if members]
    rows[present] = encoding.transform([members[0] for members in distinct.values() if members])
    position = {id_: i for i, id_ in enumerate(distinct)}
    return rows, np.array([position[id_] for id_ in ids])
