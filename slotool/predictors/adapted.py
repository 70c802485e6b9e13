"""A predictor taken to another device, backend or thread count by a handful of its labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Examples, Tensors
from slotool.predictors.from_base import FromBase
from slotool.predictors.typecosts import TypeCosts, covariance

MIN_LABELS = 3
# Each fit costs the cube of the labels, and with so many a predictor of their own is better.
MAX_LABELS = 200
MAX_FITTED_AGAIN = 30
# log(seconds) may shift as a whole, a base may stretch or shrink the range of sizes: deviations of the priors.
SHIFT, STRETCH = 2.0, 0.05
# How far apart networks are unlike, in logarithms of calls, FLOPs, bytes and the base's seconds.
SMOOTHNESS = 1.5
# Deviations of logarithms. By type: how large corrections are, in units of ``typecosts.covariance``; blend: how far the
# roofline may replace the base; size: how far a network may differ by its size, as where a cache ends; noise: what of a
# label no correction explains.
PRIORS = tuple(product((0.05, 0.2, 0.5, 1.0), (0.0, 0.5), (0.0, 0.3), (0.03, 0.1)))
WIDEST = (1.0, 0.5, 0.3, 0.03)
MIN_WEIGHT = 1e-3
# Below this a term of the roofline is as good as nothing.
MIN_TERM_S = 1e-9
STEPS, DAMPING, MAX_STEP = 8, 0.7, 1.0


class AdaptedPredictor(FromBase):
    """latency = base × (roofline ÷ base)^c × e^s × Σ over types of share × e^w, fitted to few labels of a setting.

    ``share`` is what a type of operator has of the network's cost by a neutral roofline (``TypeCosts``: calls, FLOPs
    and bytes apart), so w says how much dearer that work is here than the base thinks; c says how far the roofline is
    to be trusted more than the base, which may have never seen some of the types; s is smooth in the sizes, with a
    shift of all and a slight power of the base. All have Gaussian priors around nothing: what no label speaks for stays
    as the base has it. The model is solved as a Gaussian process, linearised around its own answer until it holds
    still; how large corrections may be and how noisy labels are is averaged over ``PRIORS``, each weighing as much as
    it makes the labels likely.

    The spread is the posterior's deviation of log latency. ``calibration`` says by which factor it is too small on
    labels left out one by one (at least 1). Fitting is a closed form of the labels, so the state is the base's, and
    the labels with their costs.
    """

    name = "adapted"
    labels_taken = (MIN_LABELS, MAX_LABELS)

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        self._condition(TypeCosts.of(graphs), self.log_base(graphs), np.log(latency_s))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return self.predict_and_spread(graphs)[0]

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        mean, variance = self.posterior.answer(TypeCosts.of(graphs), self.log_base(graphs))
        return np.exp(mean), np.sqrt(variance)

    @property
    def labels(self) -> int:
        """How many labels it was adapted to."""
        return len(self.posterior.log_s)

    def calibration(self) -> float:
        """Root mean square of (left-out label − its prediction) ÷ spread, in log; 1 when that is less."""
        mean, variance = self.left_out()
        return max(1.0, float(np.sqrt(np.mean((self.posterior.log_s - mean) ** 2 / variance))))

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [n] of the log of each label, from all others: fitted again without it, or, of more than
        30 labels, as the fit to all says it would be."""
        return self.posterior.left_out

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        posterior = self.posterior
        own = {"costs": posterior.costs.seconds, "log_base": posterior.log_base, "log_s": posterior.log_s}
        return own, {"columns": [list(column) for column in posterior.costs.columns]}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        columns = tuple((str(term), str(kind)) for term, kind in document["columns"])
        self._condition(TypeCosts(columns, tensors["costs"]), tensors["log_base"], tensors["log_s"])

    def _condition(self, costs: TypeCosts, log_base: np.ndarray, log_s: np.ndarray) -> None:
        self.posterior = Posterior(costs, log_base, log_s)


def interval_factor(predictor: AdaptedPredictor, coverage: float = 0.9) -> float:
    """The factor that, raised to each graph's spread, bounds its interval: for few labels, so from Student's t of n − 1
    degrees of freedom, × ``calibration``."""
    from scipy.special import stdtrit

    return float(np.exp(stdtrit(predictor.labels - 1, (1 + coverage) / 2) * predictor.calibration()))


class Posterior:
    """What n labels say: ``costs`` of their networks, log(base's seconds) and log(measured seconds), float64 [n]."""

    def __init__(self, costs: TypeCosts, log_base: np.ndarray, log_s: np.ndarray):
        self.costs, self.log_base, self.log_s = costs, log_base, log_s
        self.middle = _directions(costs, log_base).mean(axis=0)
        # Matrices of a few rows gain nothing from more threads, and lose much where others run.
        with threadpool_limits(1, user_api="blas"):
            solved = [_Solved(self, *prior) for prior in PRIORS]
        evidence = np.array([each.evidence for each in solved])
        weights = np.exp(evidence - evidence.max())
        kept = weights > MIN_WEIGHT
        self._solved = [each for each, keep in zip(solved, kept, strict=True) if keep]
        self._weights = weights[kept] / weights[kept].sum()

    def answer(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds), noise of a label included, float64 [m] each."""
        answers = [solved.answer(costs, log_base) for solved in self._solved]
        return self._together(answers)

    @cached_property
    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [n] of the log of each label, from all others."""
        if len(self.log_s) > MAX_FITTED_AGAIN:
            return self._together([solved.left_out(self.log_s) for solved in self._solved])
        mean, variance = zip(*map(self._without, range(len(self.log_s))), strict=True)
        return np.concatenate(mean), np.concatenate(variance)

    def _together(self, answers: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the mixture of one answer per prior."""
        means, variances = (np.stack(part) for part in zip(*answers, strict=True))
        mean = self._weights @ means
        return mean, self._weights @ (variances + (means - mean) ** 2)

    def _without(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        rest = np.delete(np.arange(len(self.log_s)), row)
        others = Posterior(self.costs.take(rest), self.log_base[rest], self.log_s[rest])
        return others.answer(self.costs.take([row]), self.log_base[[row]])

    def covariance(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, float]:
        """Covariance [m, m] of log(seconds) of these networks, and the variance of a label's noise."""
        found = [solved.covariance(costs, log_base) for solved in self._solved]
        mean, _ = self.answer(costs, log_base)
        total, noise = np.zeros((len(mean), len(mean))), 0.0
        for weight, (own, each), solved in zip(self._weights, found, self._solved, strict=True):
            total += weight * (each + np.outer(own - mean, own - mean))
            noise += float(weight) * solved.noise**2
        return total, noise


class _Solved:
    """The posterior under one of ``PRIORS``."""

    def __init__(self, labels: Posterior, by_type: float, blend: float, size: float, noise: float):
        self._labels, self._by_type, self.noise = labels, by_type, noise
        self._smooth = _Smooth(blend, size, labels.middle)
        self._w = np.zeros(len(labels.costs.columns))
        self._prior = by_type**2 * covariance(labels.costs.columns, labels.costs.columns)
        self._known = _directions(labels.costs, labels.log_base)
        smooth = self._smooth(self._known, self._known) + noise**2 * np.eye(len(labels.log_s))
        for _ in range(STEPS):
            self._solve(smooth)
            step = self._prior @ self._shares.T @ self._alpha - self._w
            self._w = self._w + DAMPING * np.clip(step, -MAX_STEP, MAX_STEP)
        self._solve(smooth)

    def _solve(self, smooth: np.ndarray) -> None:
        """The Gaussian process linearised around the present w."""
        labels = self._labels
        self._shares, log_sum = labels.costs.shares(self._w)
        residual = labels.log_s - labels.log_base - log_sum + self._shares @ self._w
        self._inverse = np.linalg.inv(self._shares @ self._prior @ self._shares.T + smooth)
        self._alpha = self._inverse @ residual
        self.evidence = -0.5 * residual @ self._alpha + 0.5 * np.linalg.slogdet(self._inverse)[1]

    def left_out(self, log_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each label from the others, shares as they are (Rasmussen & Williams 2006, equation 5.12)."""
        precision = np.diag(self._inverse)
        return log_s - self._alpha / precision, 1 / precision

    def answer(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds), noise of a label included, float64 [m] each."""
        shares, across, mean = self._seen(costs, log_base)
        own = covariance(costs.columns, costs.columns) * self._by_type**2
        before = np.sum((shares @ own) * shares, axis=1) + self._smooth.variance(_directions(costs, log_base))
        after = before - np.sum((across @ self._inverse) * across, axis=1)
        return mean, np.maximum(after, 0.0) + self.noise**2

    def covariance(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean [m] and covariance [m, m] of log(seconds)."""
        shares, across, mean = self._seen(costs, log_base)
        own = covariance(costs.columns, costs.columns) * self._by_type**2
        directions = _directions(costs, log_base)
        before = shares @ own @ shares.T + self._smooth(directions, directions)
        return mean, before - across @ self._inverse @ across.T

    def _seen(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shares [m, columns], covariance with the labels [m, n] and mean [m] of other networks."""
        between = self._by_type**2 * covariance(costs.columns, self._labels.costs.columns)
        shares, log_sum = costs.shares(between @ self._shares.T @ self._alpha)
        smooth = self._smooth(_directions(costs, log_base), self._known)
        across = shares @ between @ self._shares.T + smooth
        return shares, across, log_base + log_sum + smooth @ self._alpha


class _Smooth:
    """Prior covariance of what does not go by type: a shift of all, blend and stretch along straight lines through
    ``middle``, and a smooth function of size."""

    def __init__(self, blend: float, size: float, middle: np.ndarray):
        self._slopes, self._size, self._middle = np.array([blend, STRETCH]), size, middle

    def __call__(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        straight = self._straight(first) @ self._straight(second).T
        if not self._size:
            return np.asarray(SHIFT**2 + straight)
        apart = np.sum((first[:, None, 1:] - second[None, :, 1:]) ** 2, axis=2)
        return np.asarray(SHIFT**2 + straight + self._size**2 * np.exp(-apart / (2 * SMOOTHNESS**2)))

    def variance(self, directions: np.ndarray) -> np.ndarray:
        """Of each alone."""
        return np.asarray(SHIFT**2 + np.sum(self._straight(directions) ** 2, axis=1) + self._size**2)

    def _straight(self, directions: np.ndarray) -> np.ndarray:
        return np.asarray((directions - self._middle)[:, :2] * self._slopes)


def _directions(costs: TypeCosts, log_base: np.ndarray) -> np.ndarray:
    """float64 [m, 5]: how much dearer the roofline is than the base, the base, and calls, FLOPs and bytes, in log."""
    terms = np.log(np.maximum(costs.by_term(), MIN_TERM_S))
    return np.column_stack([np.log(costs.total_s) - log_base, log_base, terms])


def covariance_before(costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, float]:
    """Covariance [m, m] of log(seconds) of these networks while there is no label, and the variance of a label's
    noise, under the widest prior."""
    by_type, blend, size, noise = WIDEST
    shares, _ = costs.shares(np.zeros(len(costs.columns)))
    directions = _directions(costs, log_base)
    smooth = _Smooth(blend, size, directions.mean(axis=0))
    types = by_type**2 * shares @ covariance(costs.columns, costs.columns) @ shares.T
    return types + smooth(directions, directions), noise**2
