"""The paper's encoding of a co-location: attribute lists and adjacency matrices of all members, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.base import Document, Tensors
from slotool.predictors.colocations import Colocation
from slotool.predictors.flat import WEIGHT_SCALES, Features, FlatRegressor

# Directions in which networks differ less than this share of the most count as none.
MIN_DIRECTION = 1e-6


@dataclass(frozen=True)
class Place:
    """One member's place in the encoding: the columns in which the training set's members differ there.

    ``columns_used`` int64 [c], ``mean`` and ``deviation`` float64 [c] over the training set, and ``directions``
    float64 [c, d]: an orthonormal basis of the scaled columns of those members. With few networks in many co-locations
    d is small, where all columns would fill the memory; a regression loses nothing by it.
    """

    columns_used: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    directions: np.ndarray

    @classmethod
    def fit(cls, encoded: np.ndarray, counts: np.ndarray) -> Self:
        """``encoded``: float32 [networks, width], one row per network that ever is there; ``counts`` int64 [networks]
        how often each is.
        """
        used = np.flatnonzero(np.ptp(encoded, axis=0) > 0)
        columns, weights = encoded[:, used].astype(np.float64), counts / counts.sum()
        mean = weights @ columns
        deviation = np.sqrt(weights @ (columns - mean) ** 2)
        scaled = (columns - mean) / deviation
        _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
        keep = sizes > MIN_DIRECTION * max(sizes.max(initial=0.0), 1e-300)
        return cls(used, mean, deviation, directions[keep].T)

    def coordinates(self, encoded: np.ndarray) -> np.ndarray:
        """float64 [networks, d]."""
        scaled = (encoded[:, self.columns_used].astype(np.float64) - self.mean) / self.deviation
        # Of unit variance on average, as if they were columns.
        return np.asarray(scaled @ self.directions / np.sqrt(max(len(self.columns_used) / max(self.width, 1), 1)))

    @property
    def width(self) -> int:
        return self.directions.shape[1]


@dataclass(frozen=True)
class ColocationFeatures:
    """Co-locations as numbers: the coordinates of each member at its ``Place``, the subject first.

    A co-location smaller than the largest of the training set has zeros in the last places.
    """

    encoding: FlatEncoding
    weight_scale: str
    places: tuple[Place, ...]

    @classmethod
    def fit(cls, encoding: FlatEncoding, colocations: Sequence[Colocation], weight_scale: str) -> Self:
        places = []
        for at in range(max(len(colocation) for colocation in colocations)):
            there = [_member(colocation, at) for colocation in colocations]
            found = {graph.id if graph else "": graph for graph in there}
            counts = dict.fromkeys(found, 0)
            for graph in there:
                counts[graph.id if graph else ""] += 1
            rows = _encoded(encoding, list(found.values()), weight_scale)
            places.append(Place.fit(rows, np.array(list(counts.values()))))
        return cls(encoding, weight_scale, tuple(places))

    def matrix(self, graphs: Sequence[Colocation]) -> np.ndarray:
        """float64 [n, Σ widths]. Raises ``GraphError`` for a co-location with more members, or a network larger,
        than any of the training set."""
        for colocation in graphs:
            if len(colocation) > len(self.places):
                raise GraphError(
                    f"a co-location of {len(colocation)} networks, but training had {len(self.places)} at most"
                )
        blocks = []
        for at, place in enumerate(self.places):
            there = [_member(colocation, at) for colocation in graphs]
            found = {graph.id if graph else "": graph for graph in there}
            rows = place.coordinates(_encoded(self.encoding, list(found.values()), self.weight_scale))
            position = {id_: i for i, id_ in enumerate(found)}
            blocks.append(rows[[position[graph.id if graph else ""] for graph in there]])
        return np.hstack(blocks)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {f"places.{i}.{name}": value for i, place in enumerate(self.places) for name, value in _parts(place)}
        document = {"encoding": self.encoding.state(), "weight_scale": self.weight_scale, "places": len(self.places)}
        return tensors, document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        names = ("columns_used", "mean", "deviation", "directions")
        places = [
            Place(**{name: tensors[f"places.{i}.{name}"] for name in names}) for i in range(int(document["places"]))
        ]
        return cls(FlatEncoding.from_state(document["encoding"]), document["weight_scale"], tuple(places))


class FlatColocated(FlatRegressor[Colocation]):
    """Of networks co-located: the label is what the co-location adds to the solo latency, which is known.

    Source: inference-latency-prediction, 4.2.
    """

    def _base_s(self, graphs: Sequence[Colocation]) -> np.ndarray:
        return np.array([colocation.solo_s[0] for colocation in graphs])

    def _feature_maker(
        self, room_for: Sequence[Colocation], train: Sequence[Colocation]
    ) -> Callable[[str], Features[Colocation]]:
        members = {graph.id: graph for colocation in room_for for graph in colocation.members}
        encoding = FlatEncoding.fit(list(members.values()))
        return lambda scale: ColocationFeatures.fit(encoding, train, scale)

    @classmethod
    def _features_from(cls, tensors: Tensors, document: Document) -> Features[Colocation]:
        return ColocationFeatures.from_state(tensors, document)


def _parts(place: Place) -> list[tuple[str, np.ndarray]]:
    return [(name, np.ascontiguousarray(value)) for name, value in vars(place).items()]


def _member(colocation: Colocation, at: int) -> OperatorGraph | None:
    return colocation.members[at] if at < len(colocation) else None


def _encoded(encoding: FlatEncoding, graphs: Sequence[OperatorGraph | None], weight_scale: str) -> np.ndarray:
    """float32 [n, width]; zeros where there is no member."""
    rows = np.zeros((len(graphs), encoding.width), dtype=np.float32)
    for row, graph in zip(rows, graphs, strict=True):
        if graph is not None:
            row[:] = encoding.transform([graph])[0]
    at = encoding.weight_columns
    rows[:, at] = WEIGHT_SCALES[weight_scale](rows[:, at])
    return rows
