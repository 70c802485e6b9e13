"""Gaussian process of latencies in a setting that has few labels, around predictions for other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from slotool.predictors.features.type_costs import TypeCosts, covariance, same_columns
from slotool.predictors.solo.three_term import fitted_terms, left_out_terms, priced_terms

# Deviations of log(seconds). SHIFT is common to all networks; each combination of the others is one hypothesis.
SHIFT = 2.0
LIKENESSES, PRICES, SIZES, SOURCES = (0.0, 0.1, 0.3), (0.0, 0.3), (0.0, 0.3), (0.0, 0.3, 1.0)
NOISES = (0.03, 0.08, 0.2, 0.5)
# Length scales: of likeness (a Hellinger distance × √2), of size (logarithms of calls, FLOPs and bytes), and of the
# element type (logarithm of its bytes), which parts quantized networks from others.
LIKENESS, SIZE, VALUES = 0.35, 1.5, 0.7
# Hypotheses of lower weight are neglected.
MAX_KEPT = 60
# Networks whose spread is computed at once: every hypothesis takes a matrix for each.
AT_ONCE = 512
# Prior deviations by which networks to measure are chosen: alike, prices, sizes, sources; and noise.
BEFORE, NOISE_BEFORE = (0.3, 0.3, 0.3, 1.0), 0.08
MIN_TERM_S = 1e-9
# Prior weight of a mean without any source, relative to one of a source.
SIMPLE = 0.1


@dataclass(frozen=True)
class Networks:
    """Facts of n networks by which few labels are generalised.

    Attributes:
        costs: Cost by type of operator on a neutral roofline.
        terms: FLOPs, operators and output elements, float64 [n, 3].
        log_answers: Log of measured, or else predicted, seconds in each of S sources, float64 [n, S].
        value_bytes: Bytes of a value of each network's element type, float64 [n].
    """

    costs: TypeCosts
    terms: np.ndarray
    log_answers: np.ndarray
    value_bytes: np.ndarray

    def take(self, rows: Sequence[int] | np.ndarray) -> Networks:
        return Networks(self.costs.take(rows), self.terms[rows], self.log_answers[rows], self.value_bytes[rows])

    @cached_property
    def answers(self) -> np.ndarray:
        """``log_answers`` and that of the neutral roofline, float64 [n, S + 1]."""
        return np.column_stack([self.log_answers, np.log(self.costs.total_s)])

    @cached_property
    def shares(self) -> np.ndarray:
        """Shares of the cost, float64 [n, columns]."""
        return np.asarray(self.costs.seconds / self.costs.total_s[:, None])

    @cached_property
    def sizes(self) -> np.ndarray:
        """Logarithms of the cost of calls, FLOPs and bytes, float64 [n, 3]."""
        return np.asarray(np.log(np.maximum(self.costs.by_term(), MIN_TERM_S)))


class FewLabels:
    """Mixture of Gaussian processes of log(seconds), weighted by the likelihood of the labels.

    The mean of each is a source, a neutral roofline, three coefficients fitted to the labels, or the geometric mean of
    the latter and one of the others. So a good source is hardly changed, and three coefficients remain where all are
    bad. The covariance is a shift of all networks and, in several strengths: likeness of networks that spend their cost
    alike, prices by type of operator, a smooth function of size, and combinations of the sources. Three coefficients
    are compared with each label after a fit to the others.
    """

    def __init__(self, networks: Networks, log_s: np.ndarray):
        """Fit to labels ``log_s``, float64 log(seconds) [n], n ≥ 2."""
        self.networks, self.log_s = networks, log_s
        self._terms = fitted_terms(networks.terms, np.exp(log_s))
        answers = np.column_stack([networks.answers, left_out_terms(networks.terms, np.exp(log_s))])
        self._middle = answers.mean(axis=0)
        self._points = _apart(answers - self._middle)
        means, likely_before = _means(answers.shape[1])
        strengths = np.array(list(product(LIKENESSES, PRICES, SIZES, SOURCES, NOISES))) ** 2
        variances, noise = strengths[:, :-1], strengths[:, -1]
        # Small matrices gain nothing from more threads, and lose much on a busy machine.
        with threadpool_limits(1, user_api="blas"):
            kernels = _kernels(networks, self._points, networks, self._points)
            total = SHIFT**2 + np.tensordot(variances, kernels, axes=1)
            inverse = np.linalg.inv(total + noise[:, None, None] * np.eye(len(log_s)))
            residual = log_s[:, None] - answers @ means
            solved = inverse @ residual
            evidence = np.linalg.slogdet(inverse)[1][:, None] - np.sum(residual * solved, axis=1)
        likely = likely_before * np.exp((evidence - evidence.max()) / 2)
        heaviest = np.argsort(-likely, axis=None, kind="stable")[:MAX_KEPT]
        hypothesis, mean = np.unravel_index(heaviest, likely.shape)
        self._weights = likely[hypothesis, mean] / likely[hypothesis, mean].sum()
        self._means, self._variances, self._noise = means.T[mean], variances[hypothesis], noise[hypothesis]
        self._inverse, self._alpha = inverse[hypothesis], solved[hypothesis, :, mean]

    def answer(self, networks: Networks) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of log(seconds), a label's noise included, float64 [m] each."""
        count = len(networks.terms)
        parts = np.array_split(np.arange(count), max(1, -(-count // AT_ONCE)))
        answers = [self._answer(networks.take(rows)) for rows in parts]
        mean, variance = (np.concatenate(part) for part in zip(*answers, strict=True))
        return mean, variance

    def _answer(self, networks: Networks) -> tuple[np.ndarray, np.ndarray]:
        answers = np.column_stack([networks.answers, priced_terms(networks.terms, *self._terms)])
        points = _apart(answers - self._middle)
        kernels = _kernels(networks, points, self.networks, self._points)
        across = SHIFT**2 + np.tensordot(self._variances, kernels, axes=1)
        means = self._means @ answers.T + (across @ self._alpha[:, :, None])[:, :, 0]
        before = SHIFT**2 + self._variances @ _diagonals(networks, points)
        remaining = np.maximum(before - np.sum((across @ self._inverse) * across, axis=2), 0.0)
        mean = self._weights @ means
        return mean, self._weights @ (remaining + self._noise[:, None] + (means - mean) ** 2)

    @property
    def shares(self) -> np.ndarray:
        """Weight of each source, of the roofline and of three coefficients in the mean, float64 [S + 2], sum 1."""
        return np.asarray(self._weights @ self._means)

    def left_out(self, folds: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of each label's log with its fold held out, float64 [n] each."""
        mean, variance = np.empty(len(self.log_s)), np.empty(len(self.log_s))
        for rows in folds:
            others = np.setdiff1d(np.arange(len(self.log_s)), rows)
            fitted = FewLabels(self.networks.take(others), self.log_s[others])
            mean[rows], variance[rows] = fitted.answer(self.networks.take(rows))
        return mean, variance


def covariance_before(networks: Networks, labelled: Networks | None = None) -> tuple[np.ndarray, float]:
    """Return the covariance [n, n] of log(seconds) in a new setting, and the variance of a label's noise.

    Args:
        networks: Networks without a label.
        labelled: Networks that have one.
    """
    noise, middle = NOISE_BEFORE**2, networks.answers.mean(axis=0)

    def between(first: Networks, second: Networks) -> np.ndarray:
        points = [_apart(side.answers - middle) for side in (first, second)]
        kernels = _kernels(first, points[0], second, points[1])
        return np.asarray(SHIFT**2 + np.tensordot(np.array(BEFORE) ** 2, kernels, axes=1))

    prior = between(networks, networks)
    if labelled is None:
        return prior, noise
    across, inner = between(networks, labelled), between(labelled, labelled)
    return prior - across @ np.linalg.solve(inner + noise * np.eye(len(inner)), across.T), noise


def _means(sources: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights of sources in each mean, one source or one and the last, and prior weights of the means.

    They are float64 [sources, 2 × sources − 1] and [2 × sources − 1].
    """
    alone, likely = np.eye(sources), np.ones(2 * sources - 1)
    # Means without a source: a roofline, three terms, or both.
    likely[[sources - 2, sources - 1, -1]] = SIMPLE
    return np.hstack([alone, (alone[:, :-1] + alone[:, -1:]) / 2]), likely


def _apart(answers: np.ndarray) -> np.ndarray:
    """Return differences from the mean of all sources ÷ √sources, float64 [n, sources]."""
    return np.asarray((answers - answers.mean(axis=1, keepdims=True)) / np.sqrt(answers.shape[1]))


def _kernels(first: Networks, points: np.ndarray, second: Networks, others: np.ndarray) -> np.ndarray:
    """Return kernels of likeness, prices, sizes and sources, float64 [4, n, m]; ``points`` are of ``_apart``."""
    columns, other_columns = first.costs.columns, second.costs.columns
    likeness = np.sqrt(first.shares) @ same_columns(columns, other_columns) @ np.sqrt(second.shares).T
    far = np.sum((first.sizes[:, None] - second.sizes) ** 2, axis=2)
    types_apart = np.log(first.value_bytes)[:, None] - np.log(second.value_bytes)
    same_type = np.exp(-(types_apart**2) / (2 * VALUES**2))
    return np.stack(
        [
            np.exp(-np.maximum(1 - likeness, 0.0) / LIKENESS**2) * same_type,
            first.shares @ covariance(columns, other_columns) @ second.shares.T,
            np.exp(-far / (2 * SIZE**2)) * same_type,
            points @ others.T,
        ]
    )


def _diagonals(networks: Networks, points: np.ndarray) -> np.ndarray:
    """Return the diagonals of ``_kernels`` of networks with themselves, float64 [4, n]."""
    columns, ones = networks.costs.columns, np.ones(len(points))
    priced = np.sum((networks.shares @ covariance(columns, columns)) * networks.shares, axis=1)
    return np.stack([ones, priced, ones, np.sum(points**2, axis=1)])
