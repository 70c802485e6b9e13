"""Co-location as fair sharing of processors, corrected by a Gaussian process over resource features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from slotool.errors import InputError
from slotool.predictors.base import COLOCATED, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.colocated.ridge import RESOURCE_FEATURES, fair_s, resource_features
from slotool.predictors.colocations import Colocation

# More rows hardly help, and a fit takes the cube of them.
MAX_ROWS = 1500
# Prior deviations, in log: of the level, and of its change with the number of members beyond fair sharing.
LEVEL, GROWTH = 1.0, 0.3
# Length scales in deviations of the features: for one network measured again, and for similar networks.
NEAR, REACH = 0.15, 2.0
SWEEPS = 2


# Prior deviations of log(degradation), and the values tried: linear and smooth in the subject's features, alike (shared
# by nearly equal networks), sized (linear, with a slope by the number of members), and smooth in the co-runners'
# features. Further deviations, under an index, are the noise of labels by the number of members.
Prior = Mapping[str | int, float]
# Covariances of deviation 1, float64 [n, m], by name in ``Prior``.
Parts = Mapping[str | int, np.ndarray]
START: Prior = {"linear": 0.1, "smooth": 0.05, "alike": 0.05, "sized": 0.05, "others": 0.01}
CHOICES: dict[str | int, tuple[float, ...]] = {
    "linear": (0.02, 0.05, 0.1, 0.2),
    "smooth": (0.01, 0.03, 0.06, 0.12),
    "alike": (0.01, 0.03, 0.06, 0.12),
    "sized": (0.01, 0.05, 0.1, 0.2),
    "others": (0.003, 0.01, 0.03, 0.1),
}
NOISES = (0.005, 0.01, 0.02, 0.04, 0.1, 0.2, 0.3, 0.4, 0.6)


class SharingPredictor(Predictor[Colocation]):
    """Latency = solo latency × oversubscription × e^g.

    All members' threads share the same cores, so each member gets 1 ÷ ``oversubscription`` of them; e^g, mostly below
    1, corrects for networks that do not keep their cores busy when alone. g is a Gaussian process over the resource
    features of the subject and the mean of its co-runners': a level, a linear and a smooth part by the subject, a part
    by the number of members, and a smooth part by the co-runners. The size of each part, and the noise of labels by
    number of members, maximise the likelihood of the labels. Co-runners are pooled, so there may be any number in any
    order. Without co-runners the prediction is the solo latency.

    The spread is the deviation of log latency, a label's noise included. Dev set and seed play no part, except that the
    seed draws the rows where there are more than 1,500.
    """

    name = "sharing"
    fitted_to = (COLOCATED,)

    def fit(
        self,
        train: Examples[Colocation],
        dev: Examples[Colocation] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        train.require("training")
        graphs, latency_s = train
        rows = np.arange(len(graphs))
        if len(rows) > MAX_ROWS:
            rows = np.sort(np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False))
        colocations = [graphs[int(i)] for i in rows]
        sizes, log_ratio = _sizes(colocations), np.log(latency_s[rows] / fair_s(colocations))
        # Small matrices gain nothing from more threads and lose much on a busy machine.
        with threadpool_limits(1):
            self._learnt = _Posterior(resource_features(colocations), sizes, log_ratio)
        if progress:
            progress("sharing: Gaussian process")

    def predict(self, graphs: Sequence[Colocation]) -> np.ndarray:
        return self.predict_and_spread(graphs)[0]

    def predict_and_spread(self, graphs: Sequence[Colocation]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        sizes = _sizes(graphs)
        mean, variance = self._learnt.answer(resource_features(graphs), sizes)
        latency_s = fair_s(graphs) * np.exp(np.where(sizes > 1, mean, 0.0))
        return latency_s, np.sqrt(variance)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        learnt = self._learnt
        tensors = {"features": learnt.features, "sizes": learnt.sizes, "log_ratio": learnt.log_ratio}
        noise = [value for name, value in learnt.prior.items() if name not in CHOICES]
        prior = {**{name: learnt.prior[name] for name in CHOICES}, "noise": noise}
        return tensors, {"names": list(RESOURCE_FEATURES), "prior": prior}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["names"] != list(RESOURCE_FEATURES):
            raise InputError("the sharing predictor was trained with other resource features than this slotool has")
        prior = {name: document["prior"][name] for name in CHOICES} | dict(enumerate(document["prior"]["noise"]))
        restored = cls()
        restored._learnt = _Posterior(tensors["features"], tensors["sizes"], tensors["log_ratio"], prior)
        return restored


class _Posterior:
    """Posterior of the Gaussian process after n labels, under the given or the likeliest prior.

    ``features``: float64 [n, 2 × RESOURCE_FEATURES]; ``sizes``: number of members, int64 [n]; ``log_ratio``:
    log(latency ÷ latency by fair sharing), float64 [n].
    """

    def __init__(self, features: np.ndarray, sizes: np.ndarray, log_ratio: np.ndarray, prior: Prior | None = None):
        self.features, self.sizes, self.log_ratio = features, sizes, log_ratio
        self._mean, deviation = features.mean(axis=0), features.std(axis=0)
        self._deviation = np.where(deviation > 1e-6, deviation, 1.0)
        self._known_sizes = np.unique(sizes)
        self._x = self._scaled(features)
        self._middle = float(log_ratio.mean())
        self.prior = self._likeliest() if prior is None else prior
        self._factor, self._alpha, _ = self._solved(_parts(self._x, sizes, self._x, sizes), self.prior)

    def answer(self, features: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the log ratio, a label's noise included, float64 [m] each."""
        x = self._scaled(features)
        across = _kernel(_parts(x, sizes, self._x, self.sizes), self.prior)
        before = np.array([_kernel(_parts(x[[i]], sizes[[i]], x[[i]], sizes[[i]]), self.prior) for i in range(len(x))])
        explained = solve_triangular(self._factor, across.T, lower=True)
        variance = np.maximum(before.reshape(-1) - np.sum(explained**2, axis=0), 0.0)
        return self._middle + across @ self._alpha, variance + self._noise(sizes, self.prior) ** 2

    def _likeliest(self) -> Prior:
        """Return the prior of greatest likelihood, by a search along one number at a time."""
        parts = _parts(self._x, self.sizes, self._x, self.sizes)
        spreads = [float(np.std(self.log_ratio[self.sizes == size])) for size in self._known_sizes]
        best: Prior = {**START, **{at: max(0.5 * spread, NOISES[0]) for at, spread in enumerate(spreads)}}
        most = self._solved(parts, best)[2]
        noises: list[tuple[str | int, tuple[float, ...]]] = [(at, NOISES) for at in range(len(spreads))]
        for _ in range(SWEEPS):
            for name, value in ((name, value) for name, values in [*noises, *CHOICES.items()] for value in values):
                tried = {**best, name: value}
                evidence = self._solved(parts, tried)[2] if tried != best else most
                if evidence > most:
                    best, most = tried, evidence
        return best

    def _solved(self, parts: Parts, prior: Prior) -> tuple[np.ndarray, np.ndarray, float]:
        """Return Cholesky factor, weights of the labels, and log evidence up to a constant."""
        kernel = _kernel(parts, prior)
        kernel[np.diag_indices(len(kernel))] += self._noise(self.sizes, prior) ** 2
        factor = np.linalg.cholesky(kernel)
        half = solve_triangular(factor, self.log_ratio - self._middle, lower=True)
        evidence = float(-0.5 * half @ half - np.log(np.diag(factor)).sum())
        return factor, solve_triangular(factor, half, lower=True, trans="T"), evidence

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        return np.asarray((features - self._mean) / self._deviation)

    def _noise(self, sizes: np.ndarray, prior: Prior) -> np.ndarray:
        """Return the deviation of a label by number of members; of an unknown number, that of the next smaller one."""
        at = np.clip(np.searchsorted(self._known_sizes, sizes, side="right") - 1, 0, len(self._known_sizes) - 1)
        return np.array([prior[size] for size in range(len(self._known_sizes))])[at]


def _parts(x: np.ndarray, sizes: np.ndarray, y: np.ndarray, other_sizes: np.ndarray) -> Parts:
    """Return covariances of deviation 1, float64 [n, m], between co-locations of scaled features x and y."""
    width = len(RESOURCE_FEATURES)
    subject, co_runners = slice(width), slice(width, None)
    apart, others = (cdist(x[:, some], y[:, some], "sqeuclidean") / width for some in (subject, co_runners))
    linear = x[:, subject] @ y[:, subject].T / width
    growth = np.outer(np.log(sizes / 2), np.log(other_sizes / 2)) / np.log(1.5) ** 2
    return {
        "linear": linear,
        "smooth": np.exp(-apart / (2 * REACH**2)),
        "alike": np.exp(-apart / (2 * NEAR**2)),
        "grown": growth,
        "sized": growth * linear,
        "others": np.exp(-others / 2),
    }


def _kernel(parts: Parts, prior: Prior) -> np.ndarray:
    kernel = LEVEL**2 + GROWTH**2 * parts["grown"]
    for name in START:
        kernel = kernel + prior[name] ** 2 * parts[name]
    return np.asarray(kernel)


def _sizes(colocations: Sequence[Colocation]) -> np.ndarray:
    return np.array([len(colocation) for colocation in colocations])
