"""What a handful of labels of a setting say of the latencies of other networks there: a Gaussian process per
hypothesis of how it may differ, averaged by how likely each makes the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from slotool.predictors.features.type_costs import Column, TypeCosts, covariance

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
# Of all hypotheses those of such a weight are kept, in units of the heaviest, and at most so many.
MIN_WEIGHT, MAX_KEPT = 1e-3, 32
# Or one type of operator is far dearer or cheaper than the others' corrections suggest, all its terms by a logarithm of
# this deviation: as likely, before any label, as that none is. Any type that has such a share of a labelled network may
# be it, where labels are few: many tell by themselves.
OUTLIER, MIN_SHARE, MAX_LABELS_OF_OUTLIER = 3.5, 0.005, 20
OUTLIER_PRIORS = tuple(product((0.2, 0.5), (0.5,), (0.0, 0.3), (0.03, 0.1)))
# Networks whose spread is computed at once: each hypothesis holds a matrix for every network.
AT_ONCE = 512
# Below this a term of the roofline is as good as nothing.
MIN_TERM_S = 1e-9
STEPS, DAMPING, MAX_STEP = 8, 0.7, 1.0


class Posterior:
    """What n labels say: ``costs`` of their networks, log(base's seconds) and log(measured seconds), float64 [n].

    ``outliers``: whether one type of operator may stand out, where there are up to ``MAX_LABELS_OF_OUTLIER`` labels.
    """

    def __init__(self, costs: TypeCosts, log_base: np.ndarray, log_s: np.ndarray, outliers: bool = True):
        self.costs, self.log_base, self.log_s, self.outliers = costs, log_base, log_s, outliers
        self.middle = _directions(costs, log_base).mean(axis=0)
        hypotheses = _Hypotheses.of(PRIORS)
        if outliers and len(log_s) <= MAX_LABELS_OF_OUTLIER:
            hypotheses = hypotheses.with_outliers(_types_of(costs))
        # Matrices of a few rows gain nothing from more threads, and lose much where others run.
        with threadpool_limits(1, user_api="blas"):
            solved = _Solved(self, hypotheses)
        weights = np.exp(solved.evidence - solved.evidence.max())
        kept = np.argsort(-weights, kind="stable")[:MAX_KEPT]
        kept = kept[weights[kept] > MIN_WEIGHT]
        self._solved, self._weights = solved.take(kept), weights[kept] / weights[kept].sum()

    def mean(self, costs: TypeCosts, log_base: np.ndarray) -> np.ndarray:
        """Mean of log(seconds), float64 [m]: that of ``answer``, without its variance and much sooner."""
        return np.asarray(self._weights @ self._solved.mean(costs, log_base))

    def answer(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds), noise of a label included, float64 [m] each."""
        parts = np.array_split(np.arange(len(log_base)), -(-len(log_base) // AT_ONCE))
        found = [self._together(*self._solved.answer(costs.take(own), log_base[own])) for own in parts]
        mean, variance = (np.concatenate(own) for own in zip(*found, strict=True))
        return mean, variance

    @cached_property
    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [n] of the log of each label, from all others."""
        if len(self.log_s) > MAX_FITTED_AGAIN:
            return self._together(*self._solved.left_out(self.log_s))
        mean, variance = zip(*map(self._without, range(len(self.log_s))), strict=True)
        return np.concatenate(mean), np.concatenate(variance)

    def _together(self, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the mixture of one answer [m] per hypothesis."""
        mean = self._weights @ means
        return mean, self._weights @ (variances + (means - mean) ** 2)

    def _without(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        rest = np.delete(np.arange(len(self.log_s)), row)
        others = Posterior(self.costs.take(rest), self.log_base[rest], self.log_s[rest], self.outliers)
        return others.answer(self.costs.take([row]), self.log_base[[row]])

    def covariance(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, float]:
        """Covariance [m, m] of log(seconds) of these networks, and the variance of a label's noise."""
        means = self._solved.mean(costs, log_base)
        apart = means - self._weights @ means
        total = (apart.T * self._weights) @ apart
        for weight, own in zip(self._weights, self._solved.covariances(costs, log_base), strict=True):
            total += weight * own
        return total, float(self._weights @ self._solved.hypotheses.noise**2)


def _types_of(costs: TypeCosts) -> list[str]:
    """Types of operators that have a share of ``MIN_SHARE`` in one network."""
    shares = (costs.seconds / costs.total_s[:, None]).max(axis=0)
    return sorted({kind for (_, kind), share in zip(costs.columns, shares.tolist(), strict=True) if share > MIN_SHARE})


@dataclass(frozen=True)
class _Hypotheses:
    """h ways in which a setting may differ from the base's: deviations as in ``PRIORS``, float64 [h]; ``outlier``, the
    type of operator that stands out, "" for none; and log of how likely each is before any label, float64 [h]."""

    by_type: np.ndarray
    blend: np.ndarray
    size: np.ndarray
    noise: np.ndarray
    outlier: np.ndarray
    log_prior: np.ndarray

    @classmethod
    def of(cls, priors: Sequence[tuple[float, ...]], outlier: str = "", likely: float = 1.0) -> Self:
        """That such a type stands out, as ``likely`` as all of these together."""
        by_type, blend, size, noise = np.array(priors, dtype=np.float64).T
        outliers = np.full(len(priors), outlier, dtype=object)
        return cls(by_type, blend, size, noise, outliers, np.full(len(priors), np.log(likely / len(priors))))

    def with_outliers(self, types: Sequence[str]) -> Self:
        """These, and that each of the types stands out."""
        each = [self.of(OUTLIER_PRIORS, kind, 1 / len(types)) for kind in types]
        return self._made(lambda name: np.concatenate([getattr(own, name) for own in (self, *each)]))

    def take(self, kept: np.ndarray) -> Self:
        """Some of them."""
        return self._made(lambda name: getattr(self, name)[kept])

    def _made(self, part: Callable[[str], np.ndarray]) -> Self:
        return type(self)(**{field.name: part(field.name) for field in fields(self)})

    def outliers(self, columns: Sequence[Column]) -> np.ndarray:
        """``OUTLIER`` in columns of the type that stands out, else 0, float64 [h, columns]."""
        types = np.array([kind for _, kind in columns], dtype=object)
        return np.asarray(OUTLIER * (self.outlier[:, None] == types), dtype=np.float64)

    @property
    def kernel_weights(self) -> np.ndarray:
        """Of each of ``_kernels``, float64 [h, 4]."""
        same = np.ones(len(self.noise))
        return np.column_stack([SHIFT**2 * same, STRETCH**2 * same, self.blend**2, self.size**2])


class _Solved:
    """The posterior under each hypothesis, all at once: arrays [h, …]."""

    def __init__(self, labels: Posterior, hypotheses: _Hypotheses):
        self._labels, self.hypotheses = labels, hypotheses
        columns = labels.costs.columns
        self._known, self._outliers = _directions(labels.costs, labels.log_base), hypotheses.outliers(columns)
        common = covariance(columns, columns)
        noise = hypotheses.noise[:, None, None] ** 2 * np.eye(len(labels.log_s))
        smooth = self._smooth(self._known) + noise
        w = np.zeros((len(noise), len(columns)))
        for _ in range(STEPS):
            self._solve(w, common, smooth)
            w = w + DAMPING * np.clip(self._corrections(common, self._outliers) - w, -MAX_STEP, MAX_STEP)
        residual = self._solve(w, common, smooth)
        likely = np.linalg.slogdet(self._inverse)[1] - np.sum(residual * self._alpha, axis=1)
        self.evidence = 0.5 * likely + hypotheses.log_prior

    def take(self, kept: np.ndarray) -> _Solved:
        """Those of some hypotheses."""
        found = copy(self)
        found.hypotheses = self.hypotheses.take(kept)
        for name in ("_outliers", "_shares", "_inverse", "_alpha", "evidence"):
            setattr(found, name, getattr(self, name)[kept])
        return found

    def _solve(self, w: np.ndarray, common: np.ndarray, smooth: np.ndarray) -> np.ndarray:
        """The Gaussian processes linearised around w [h, columns], and what that leaves of the labels [h, n]."""
        labels = self._labels
        self._shares, log_sum = _shares(labels.costs, w)
        residual = labels.log_s - labels.log_base - log_sum + (self._shares @ w[:, :, None])[:, :, 0]
        self._inverse = np.linalg.inv(self._by_type(self._shares, common, self._outliers) + smooth)
        self._alpha = (self._inverse @ residual[:, :, None])[:, :, 0]
        return np.asarray(residual)

    def _corrections(self, common: np.ndarray, outliers: np.ndarray) -> np.ndarray:
        """w [h, columns] by the labels. ``common``: ``covariance`` with the labels' columns; ``outliers`` of these."""
        pulled = (self._alpha[:, None, :] @ self._shares)[:, 0]
        own = np.sum(pulled * self._outliers, axis=1)
        return np.asarray(self.hypotheses.by_type[:, None] ** 2 * (pulled @ common.T) + own[:, None] * outliers)

    def _by_type(self, shares: np.ndarray, common: np.ndarray, outliers: np.ndarray) -> np.ndarray:
        """Covariance [h, m, n] with the labels of networks of such shares [h, m, columns], of what goes by type."""
        back = self._shares.transpose(0, 2, 1)
        between = self.hypotheses.by_type[:, None, None] ** 2 * (common @ back)
        return np.asarray(shares @ (between + outliers[:, :, None] * (self._outliers[:, None, :] @ back)))

    def _smooth(self, first: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Covariance [h, m, n] of what does not go by type."""
        kernels = _kernels(first, first if second is None else second, self._labels.middle)
        return np.tensordot(self.hypotheses.kernel_weights, kernels, axes=1)

    def left_out(self, log_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each label from the others, shares as they are (Rasmussen & Williams 2006, equation 5.12)."""
        precision = np.diagonal(self._inverse, axis1=1, axis2=2)
        return log_s - self._alpha / precision, 1 / precision

    def mean(self, costs: TypeCosts, log_base: np.ndarray) -> np.ndarray:
        """Of log(seconds), float64 [h, m]."""
        w = self._corrections(*self._prior(costs.columns))
        dearer = np.exp(w) @ costs.seconds.T / costs.total_s
        kernels = _kernels(_directions(costs, log_base), self._known, self._labels.middle)
        smooth = np.einsum("hk,kmh->hm", self.hypotheses.kernel_weights, kernels @ self._alpha.T)
        return np.asarray(log_base + np.log(dearer) + smooth)

    def answer(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds), noise of a label included, float64 [h, m] each."""
        shares, across = self._seen(costs, log_base)
        hypotheses, directions = self.hypotheses, _directions(costs, log_base)
        common = np.sum((shares @ covariance(costs.columns, costs.columns)) * shares, axis=2)
        own = (shares @ hypotheses.outliers(costs.columns)[:, :, None])[:, :, 0]
        smooth = hypotheses.kernel_weights @ _kernel_variances(directions, self._labels.middle)
        before = hypotheses.by_type[:, None] ** 2 * common + own**2 + smooth
        after = before - np.sum((across @ self._inverse) * across, axis=2)
        return self.mean(costs, log_base), np.maximum(after, 0.0) + hypotheses.noise[:, None] ** 2

    def covariances(self, costs: TypeCosts, log_base: np.ndarray) -> Iterator[np.ndarray]:
        """Of log(seconds), float64 [m, m] under each hypothesis."""
        hypotheses, directions = self.hypotheses, _directions(costs, log_base)
        kernels = _kernels(directions, directions, self._labels.middle)
        common, outliers = covariance(costs.columns, costs.columns), hypotheses.outliers(costs.columns)
        for i, (shares, across) in enumerate(zip(*self._seen(costs, log_base), strict=True)):
            own = shares @ outliers[i]
            before = hypotheses.by_type[i] ** 2 * (shares @ common @ shares.T) + np.outer(own, own)
            smooth = np.tensordot(hypotheses.kernel_weights[i], kernels, axes=1)
            yield before + smooth - across @ self._inverse[i] @ across.T

    def _seen(self, costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares [h, m, columns] of other networks, and covariance with the labels [h, m, n]."""
        prior = self._prior(costs.columns)
        shares, _ = _shares(costs, self._corrections(*prior))
        return shares, self._by_type(shares, *prior) + self._smooth(_directions(costs, log_base), self._known)

    def _prior(self, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
        """Of columns: ``covariance`` with those of the labels, and ``outliers`` [h, columns]."""
        return covariance(columns, self._labels.costs.columns), self.hypotheses.outliers(columns)


def _shares(costs: TypeCosts, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``TypeCosts.shares`` for each w [h, columns]: [h, m, columns] and [h, m]."""
    corrected = costs.seconds * np.exp(w)[:, None, :]
    total = corrected.sum(axis=2)
    return corrected / total[:, :, None], np.log(total / costs.total_s)


def _kernels(first: np.ndarray, second: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Of what does not go by type, float64 [4, m, n]: a shift of all, the base stretched, the roofline in its place
    (both along straight lines through ``middle``), and a smooth function of size."""
    one, two = first - middle, second - middle
    apart = np.sum((first[:, None, 1:] - second[None, :, 1:]) ** 2, axis=2)
    straight = [np.outer(one[:, i], two[:, i]) for i in (1, 0)]
    return np.stack([np.ones_like(apart), *straight, np.exp(-apart / (2 * SMOOTHNESS**2))])


def _kernel_variances(directions: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """The diagonals of ``_kernels`` of these networks with themselves, float64 [4, m]."""
    blended, stretched = (directions - middle)[:, :2].T ** 2
    return np.stack([np.ones_like(blended), stretched, blended, np.ones_like(blended)])


def _directions(costs: TypeCosts, log_base: np.ndarray) -> np.ndarray:
    """float64 [m, 5]: how much dearer the roofline is than the base, the base, and calls, FLOPs and bytes, in log."""
    terms = np.log(np.maximum(costs.by_term(), MIN_TERM_S))
    return np.column_stack([np.log(costs.total_s) - log_base, log_base, terms])


def covariance_before(costs: TypeCosts, log_base: np.ndarray) -> tuple[np.ndarray, float]:
    """Covariance [m, m] of log(seconds) of these networks while there is no label, and the variance of a label's
    noise, under the widest prior."""
    widest = _Hypotheses.of([WIDEST])
    shares, _ = costs.shares(np.zeros(len(costs.columns)))
    directions = _directions(costs, log_base)
    smooth = np.tensordot(widest.kernel_weights[0], _kernels(directions, directions, directions.mean(axis=0)), axes=1)
    types = widest.by_type[0] ** 2 * shares @ covariance(costs.columns, costs.columns) @ shares.T
    return types + smooth, float(widest.noise[0] ** 2)
