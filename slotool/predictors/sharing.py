"""Co-location as the sharing of processors, corrected by a Gaussian process over what each member demands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.linalg import solve_triangular
from threadpoolctl import threadpool_limits

from slotool.errors import InputError
from slotool.predictors.base import Document, Predictor, Tensors, require_labels
from slotool.predictors.companies import Company
from slotool.predictors.demands import DEMANDS, demand_matrix, fair_s

# More rows than these tell no more of so few numbers, and a fit takes the cube of them.
MOST_ROWS = 1500
# Deviations, in log, of what is not learnt from labels but believed before: the level, and its change with the number
# of members where that is not what sharing alone would make of it.
LEVEL, GROWTH = 1.0, 0.3
# How far apart demands may lie (in their deviations) to be alike still: those of one network, and of similar ones.
NEAR, REACH = 0.15, 2.0
SWEEPS = 2


@dataclass(frozen=True)
class Prior:
    """Deviations of log(degradation): linear in the subject's demands; smooth in them; of networks quite alike; linear
    in them but another at other sizes of company; smooth in the others' demands; ``noise`` of a label by size."""

    linear: float = 0.1
    smooth: float = 0.05
    alike: float = 0.05
    sized: float = 0.05
    others: float = 0.01
    noise: tuple[float, ...] = ()


CHOICES: dict[str, tuple[float, ...]] = {
    "linear": (0.02, 0.05, 0.1, 0.2),
    "smooth": (0.01, 0.03, 0.06, 0.12),
    "alike": (0.01, 0.03, 0.06, 0.12),
    "sized": (0.01, 0.05, 0.1, 0.2),
    "others": (0.003, 0.01, 0.03, 0.1),
}
NOISES = (0.005, 0.01, 0.02, 0.04, 0.1, 0.2, 0.3, 0.4, 0.6)


class SharingPredictor(Predictor[Company]):
    """latency = solo latency × crowding × e^g.

    With threads of all members on the same cores, each member gets 1 ÷ ``crowding`` of the time that it has alone;
    e^g, mostly below 1, says how much of that it misses: a network that does not keep its cores busy when alone loses
    less. g is a Gaussian process over the demands of the one asked about and the mean of the others' (``demands``):
    a level, a linear and a smooth part by the subject, a part that differs with the number of members, and a smooth
    part by the others. How large each is, and how noisy labels are in companies of each size, is what makes the labels
    likeliest. The others are pooled, so their order does not matter and there may be any number; beside nobody the
    answer is the solo latency. Of companies larger than any shown, crowding alone speaks.

    The spread is the deviation of log latency, a label's noise included. Dev set and seed play no part, but that the
    seed draws the rows where there are more than 1,500.
    """

    name = "sharing"

    def fit(
        self,
        graphs: Sequence[Company],
        latency_s: np.ndarray,
        dev_graphs: Sequence[Company],
        dev_latency_s: np.ndarray,
        *,
        seed: int,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        require_labels(graphs, latency_s, "training")
        rows = np.arange(len(graphs))
        if len(rows) > MOST_ROWS:
            rows = np.sort(np.random.default_rng(seed).choice(rows, MOST_ROWS, replace=False))
        companies = [graphs[int(i)] for i in rows]
        sizes, log_ratio = _sizes(companies), np.log(latency_s[rows] / fair_s(companies))
        # Matrices of a few hundred rows gain nothing from more threads and lose much on a busy machine.
        with threadpool_limits(1):
            self._learnt = _Posterior(demand_matrix(companies), sizes, log_ratio)
        if progress:
            progress("sharing: Gaussian process")

    def predict(self, graphs: Sequence[Company]) -> np.ndarray:
        return self.predict_and_spread(graphs)[0]

    def predict_and_spread(self, graphs: Sequence[Company]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        sizes = _sizes(graphs)
        mean, variance = self._learnt.answer(demand_matrix(graphs), sizes)
        latency_s = fair_s(graphs) * np.exp(np.where(sizes > 1, mean, 0.0))
        return latency_s, np.sqrt(variance)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        learnt = self._learnt
        tensors = {"demands": learnt.demands, "sizes": learnt.sizes, "log_ratio": learnt.log_ratio}
        return tensors, {"names": list(DEMANDS), "prior": {**vars(learnt.prior), "noise": list(learnt.prior.noise)}}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["names"] != list(DEMANDS):
            raise InputError("the sharing predictor was trained with other demands than this slotool has")
        prior = Prior(**{**document["prior"], "noise": tuple(document["prior"]["noise"])})
        restored = cls()
        restored._learnt = _Posterior(tensors["demands"], tensors["sizes"], tensors["log_ratio"], prior)
        return restored


class _Posterior:
    """What n labels say under one prior. ``demands`` float64 [n, 2 × DEMANDS], ``sizes`` int64 [n] members,
    ``log_ratio`` float64 [n] log(latency ÷ what fair sharing alone would make it)."""

    def __init__(self, demands: np.ndarray, sizes: np.ndarray, log_ratio: np.ndarray, prior: Prior | None = None):
        self.demands, self.sizes, self.log_ratio = demands, sizes, log_ratio
        self._mean, deviation = demands.mean(axis=0), demands.std(axis=0)
        self._deviation = np.where(deviation > 1e-6, deviation, 1.0)
        self._known_sizes = np.unique(sizes)
        self._x = self._scaled(demands)
        self._middle = float(log_ratio.mean())
        self.prior = self._likeliest() if prior is None else prior
        self._factor, self._alpha, _ = self._solved(_parts(self._x, sizes, self._x, sizes), self.prior)

    def answer(self, demands: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the log ratio, a label's noise included, float64 [m] each."""
        x = self._scaled(demands)
        across = _kernel(_parts(x, sizes, self._x, self.sizes), self.prior)
        before = np.array([_kernel(_parts(x[[i]], sizes[[i]], x[[i]], sizes[[i]]), self.prior) for i in range(len(x))])
        explained = solve_triangular(self._factor, across.T, lower=True)
        variance = np.maximum(before.reshape(-1) - np.sum(explained**2, axis=0), 0.0)
        return self._middle + across @ self._alpha, variance + self._noise(sizes, self.prior) ** 2

    def _likeliest(self) -> Prior:
        """The prior that makes the labels likeliest, found number by number."""
        parts = _parts(self._x, self.sizes, self._x, self.sizes)
        spreads = [float(np.std(self.log_ratio[self.sizes == size])) for size in self._known_sizes]
        best = Prior(noise=tuple(max(0.5 * spread, NOISES[0]) for spread in spreads))
        most = self._solved(parts, best)[2]
        for _ in range(SWEEPS):
            for name, at, value in _choices(len(best.noise)):
                tried = _with(best, name, at, value)
                evidence = self._solved(parts, tried)[2] if tried != best else most
                if evidence > most:
                    best, most = tried, evidence
        return best

    def _solved(self, parts: Mapping[str, np.ndarray], prior: Prior) -> tuple[np.ndarray, np.ndarray, float]:
        """Cholesky factor, weights of the labels, and log evidence but for a constant."""
        kernel = _kernel(parts, prior)
        kernel[np.diag_indices(len(kernel))] += self._noise(self.sizes, prior) ** 2
        factor = np.linalg.cholesky(kernel)
        half = solve_triangular(factor, self.log_ratio - self._middle, lower=True)
        evidence = float(-0.5 * half @ half - np.log(np.diag(factor)).sum())
        return factor, solve_triangular(factor, half, lower=True, trans="T"), evidence

    def _scaled(self, demands: np.ndarray) -> np.ndarray:
        return np.asarray((demands - self._mean) / self._deviation)

    def _noise(self, sizes: np.ndarray, prior: Prior) -> np.ndarray:
        """Deviation of a label; in companies of a size never seen, that of the next smaller one."""
        at = np.clip(np.searchsorted(self._known_sizes, sizes, side="right") - 1, 0, len(self._known_sizes) - 1)
        return np.asarray(prior.noise)[at]


def _parts(x: np.ndarray, sizes: np.ndarray, y: np.ndarray, other_sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Covariances of deviation 1, float64 [n, m], between companies of scaled demands x and y."""
    own, others = slice(0, len(DEMANDS)), slice(len(DEMANDS), None)
    apart = _distance(x[:, own], y[:, own])
    linear = x[:, own] @ y[:, own].T / len(DEMANDS)
    growth = np.outer(np.log(sizes / 2), np.log(other_sizes / 2)) / np.log(1.5) ** 2
    return {
        "linear": linear,
        "smooth": np.exp(-apart / (2 * REACH**2)),
        "alike": np.exp(-apart / (2 * NEAR**2)),
        "grown": growth,
        "sized": growth * linear,
        "others": np.exp(-_distance(x[:, others], y[:, others]) / 2),
    }


def _kernel(parts: Mapping[str, np.ndarray], prior: Prior) -> np.ndarray:
    found = LEVEL**2 + GROWTH**2 * parts["grown"]
    for name in CHOICES:
        found = found + getattr(prior, name) ** 2 * parts[name]
    return np.asarray(found)


def _choices(sizes: int) -> list[tuple[str, int, float]]:
    """Every value of every number of a prior: its name, which of several it is, and the value."""
    noise = [("noise", at, value) for at in range(sizes) for value in NOISES]
    return noise + [(name, 0, value) for name, values in CHOICES.items() for value in values]


def _with(prior: Prior, name: str, at: int, value: float) -> Prior:
    if name == "noise":
        return replace(prior, noise=(*prior.noise[:at], value, *prior.noise[at + 1 :]))
    changed: dict[str, Any] = {name: value}
    return replace(prior, **changed)


def _sizes(companies: Sequence[Company]) -> np.ndarray:
    return np.array([len(company) for company in companies])


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Mean squared difference of columns, float64 [n, m]."""
    squares = np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - 2 * x @ y.T
    return np.maximum(squares, 0.0) / x.shape[1]
