"""What few labels say of networks like theirs: a correction that is smooth in what a network spends its cost on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Tensors
from slotool.predictors.features.network_features import FEATURES, network_features
from slotool.predictors.features.type_costs import Column, TypeCosts

# Of likeness: a Hellinger distance × √2.
LENGTH = 0.35
# Features are taken in deviations of the labelled networks', at least so much of one and at most so many of them.
MIN_DEVIATION, MAX_DEVIATIONS = 0.3, 5.0


@dataclass(frozen=True)
class Priors:
    """Deviations of logarithms that are averaged over, each combination weighing as much as it makes the labels likely:
    of a shift of all networks; of what networks that spend their cost alike have in common; of what goes straight with
    their ``FEATURES``; and of what is each network's own."""

    shifts: tuple[float, ...]
    deviations: tuple[float, ...]
    slopes: tuple[float, ...]
    noises: tuple[float, ...]


@dataclass(frozen=True)
class Correction:
    """A Gaussian process on log(label ÷ prediction), to be added to the log of other predictions.

    Its kernel is a shift of all, a squared exponential of the Hellinger distance between ``TypeCosts`` shares, so that
    the label of one EfficientNet corrects the others and no network of another kind, and a straight line in the
    features. ``roots`` float64 [labels, columns], ``weights`` [labels], ``middle``, ``deviation`` and ``slope`` float64
    [``FEATURES``].
    """

    columns: tuple[Column, ...]
    roots: np.ndarray
    weights: np.ndarray
    shift: float
    middle: np.ndarray
    deviation: np.ndarray
    slope: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], costs: TypeCosts, residual: np.ndarray, priors: Priors) -> Self:
        """``costs``: what they spend in the setting; ``residual``: log(label ÷ prediction), float64 [labels]."""
        features = network_features(graphs)
        roots = _roots_of(costs)
        middle, deviation = features.mean(axis=0), np.maximum(features.std(axis=0), MIN_DEVIATION)
        encoded = _encoded(features, middle, deviation)
        alike, straight, one = _alikeness(roots, roots), encoded @ encoded.T, np.eye(len(graphs))
        solved, evidence = [], []
        for shift, own, slope, noise in product(priors.shifts, priors.deviations, priors.slopes, priors.noises):
            covariance = shift**2 + own**2 * alike + slope**2 * straight + noise**2 * one
            found = np.linalg.solve(covariance, residual)
            evidence.append(-0.5 * residual @ found - 0.5 * np.linalg.slogdet(covariance)[1])
            solved.append(np.concatenate([[shift**2 * found.sum()], slope**2 * encoded.T @ found, own**2 * found]))
        likely = np.exp(np.array(evidence) - max(evidence))
        shift_, *rest = (likely / likely.sum()) @ np.array(solved)
        slope_, weights = np.split(np.array(rest), [len(FEATURES)])
        return cls(costs.columns, roots, weights, float(shift_), middle, deviation, slope_)

    def __call__(self, graphs: Sequence[OperatorGraph], costs: TypeCosts) -> np.ndarray:
        """Of each network, by what it spends, in log, float64 [n]."""
        alike = _alikeness(_roots_in(self.columns, costs), self.roots)
        encoded = _encoded(network_features(graphs), self.middle, self.deviation)
        return np.asarray(self.shift + alike @ self.weights + encoded @ self.slope)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Tensors and a JSON document."""
        names = ("roots", "weights", "middle", "deviation", "slope")
        document = {"columns": [list(column) for column in self.columns], "features": list(FEATURES)}
        return {name: getattr(self, name) for name in names}, {**document, "shift": self.shift}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """Raises ``InputError`` for one of other features of networks than this slotool has."""
        if document.get("features") != list(FEATURES):
            raise InputError(
                "the predictor was adapted by other features of networks than this slotool has: adapt again"
            )
        return cls(
            columns=tuple((str(term), str(kind)) for term, kind in document["columns"]),
            roots=tensors["roots"],
            weights=tensors["weights"],
            shift=float(document["shift"]),
            middle=tensors["middle"],
            deviation=tensors["deviation"],
            slope=tensors["slope"],
        )


def _encoded(features: np.ndarray, middle: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """float64 [n, ``FEATURES``], of length about 1."""
    scaled = np.clip((features - middle) / deviation, -MAX_DEVIATIONS, MAX_DEVIATIONS)
    return np.asarray(scaled / np.sqrt(len(FEATURES)))


def _roots_of(costs: TypeCosts) -> np.ndarray:
    """float64 [graphs, columns]: square roots of shares, whose products add up to 1 for networks alike."""
    return np.asarray(np.sqrt(costs.seconds / costs.total_s[:, None]))


def _roots_in(columns: Sequence[Column], costs: TypeCosts) -> np.ndarray:
    """``_roots_of`` in these columns; what lies in others makes a network unlike all that have these alone."""
    at = {column: i for i, column in enumerate(columns)}
    roots = np.zeros((len(costs.seconds), len(at)))
    for column, own in zip(costs.columns, _roots_of(costs).T, strict=True):
        if column in at:
            roots[:, at[column]] = own
    return roots


def _alikeness(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlation [first, second] of networks of these roots: squared exponential of √(2 − 2 Σ √(share × share))."""
    return np.asarray(np.exp(-np.maximum(1 - first @ second.T, 0.0) / LENGTH**2))
