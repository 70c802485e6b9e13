"""Active sampling: choice of the networks to measure next for the adaptation of a predictor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.predictors.transfer.few_labels import covariance_before

# Networks whose variance is computed; more would help little and take the square of their number.
MAX_WATCHED = 1000


def propose(
    predictor: Predictor[OperatorGraph], candidates: Sequence[OperatorGraph], n: int, seed: int = 0
) -> list[int]:
    """Choose ``n`` of the candidates to measure, best first, and return their numbers.

    Each next label is the one that most reduces the variance of log latency of all candidates together (greedily
    A-optimal, by the Gaussian process of ``AdaptedPredictor``, which starts from the labels of an adapted predictor).
    The seed draws the candidates that count where there are more than ``MAX_WATCHED``.

    Raises ``InputError`` if n is below 1 or above the number of candidates.
    """
    if not 1 <= n <= len(candidates):
        raise InputError(f"{n} networks to choose, but there are {len(candidates)}")
    rng = np.random.default_rng(seed)
    watched = np.arange(len(candidates))
    if len(candidates) > MAX_WATCHED:
        watched = np.sort(rng.choice(watched, max(MAX_WATCHED, n), replace=False))
    graphs = [candidates[int(i)] for i in watched]
    adapted = predictor if isinstance(predictor, AdaptedPredictor) else AdaptedPredictor(predictor)
    labelled = adapted.labels.networks if adapted is predictor else None
    covariance, noise = covariance_before(adapted.networks(graphs), labelled)
    return [int(watched[i]) for i in greedy(covariance, noise, n)]


def greedy(covariance: np.ndarray, noise: float, n: int) -> list[int]:
    """Return n rows whose labels most reduce the variance of all rows together, each given those before it."""
    remaining = covariance.copy()
    chosen: list[int] = []
    for _ in range(n):
        gain = (remaining**2).sum(axis=0) / (np.diag(remaining) + noise)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        column = remaining[:, best].copy()
        remaining -= np.outer(column, column) / (column[best] + noise)
    return chosen
