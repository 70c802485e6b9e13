"""A setting that is like none known: what its prices of work are likely to be, by those of all known settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import minimize

from slotool.predictors.features.amounts import MIN_S, TOTALS
from slotool.predictors.features.network_features import CATEGORIES
from slotool.predictors.features.type_costs import BYTES_PER_SECOND, SECONDS_PER_CALL

# Of each category of operators, as ``amounts`` has them: calls, cost without calls, bytes moved.
TERMS = tuple(f"{term} {name}" for term in ("calls", "cost", "bytes") for name in CATEGORIES)
# How far log prices of two settings are apart where nothing else is known: a part common to all work, to a term, to a
# category, and one of its own (deviations). It counts as so many settings beside those that are known.
COMMON, COMMON_TO_TERM, COMMON_TO_CATEGORY, OWN = 2.0, 1.5, 0.6, 0.5
COUNTS_AS = 3
# Deviation of what prices leave of the labels of a setting: least, and where the search for it starts.
MIN_DEVIATION, START_DEVIATION = 0.05, 0.2
STEPS = 200


# Log prices of work in this project's own CPU settings, beside which few labels of a new setting are weighed: tenths
# of a logarithm. ``python -m benchmarks.refit --only cpu-prices`` prints them anew, from the labels in ``datasets/``.
# TensorFlow's forty labels are too few for sixty prices. Each row: of calls, of cost or of bytes, by category.
_ROWS = (
    # Random architectures and CNNs of blocks, torch, one thread of an EPYC.
    (18, 5, 5, -8, -5, 2, -13, -2, -7, -9, -4, -6, 8, -4, -10, -9, -10, -10, -8, -17),
    (5, 8, 10, -10, 7, 12, -19, 8, -7, -12, -5, -7, 16, -3, -6, -6, -9, -9, -8, -24),
    (-25, -34, -31, -43, -38, -31, -48, -34, -41, -44, -40, -41, -27, -39, -42, -42, -43, -43, -42, -52),
    # Random architectures, ONNX Runtime, the same.
    (-39, -45, -36, -51, -42, -34, -53, -32, -45, -52, -47, -45, -44, -44, -45, -45, -44, -47, -46, -56),
    (2, -8, 6, -18, -2, 10, -22, 14, -9, -20, -12, -8, -6, -7, -8, -8, -6, -12, -9, -26),
    (-42, -47, -38, -53, -45, -36, -55, -34, -47, -54, -49, -47, -46, -47, -47, -47, -46, -49, -48, -58),
    # CNNs of blocks and Keras applications, torch, two threads of a Xeon.
    (21, 7, 13, 26, 12, 13, 1, 15, 13, 3, 9, 15, 15, 13, 14, 13, 14, 9, 11, 26),
    (-3, -2, -7, -1, -11, -7, -16, -12, -7, -14, -16, -8, 9, -7, -6, -7, -3, -9, -15, 8),
    (-7, -7, -11, -5, -15, -11, -20, -15, -11, -18, -20, -12, 1, -11, -11, -11, -8, -13, -18, 2),
)
# float64 [``TERMS``, 3].
CPU_LOG_PRICES = np.array(_ROWS, dtype=np.float64).reshape(3, -1).T / 10


def terms_s(work: np.ndarray, batch_size: int) -> np.ndarray:
    """What each of ``TERMS`` takes on the neutral roofline, float64 seconds ≥ 0 [n, ``TERMS``], of ``work`` float64
    [n, ``AMOUNTS``]. A batch multiplies all but calls."""
    calls, cost, moved = np.split(work[:, len(TOTALS) :], 3, axis=1)
    called = SECONDS_PER_CALL * calls
    return np.hstack([called, batch_size * np.maximum(cost - called, 0.0), batch_size * moved / BYTES_PER_SECOND])


def log_prices(terms: np.ndarray, log_s: np.ndarray) -> np.ndarray:
    """Of a setting of many labels: log of what each term costs more than on the neutral roofline, float64 [``TERMS``],
    by these labels and ``_before`` alone, so that no other setting plays a part. What prices leave of the labels has a
    deviation of its own, the likeliest."""
    factor, count = np.linalg.cholesky(_before()), len(log_s)

    def unlikely(at: np.ndarray) -> tuple[float, np.ndarray]:
        answer, shares = _priced(terms, factor @ at[:-1])
        weight = np.exp(-2 * at[-1])
        residual = log_s - answer
        wrong = weight * float(residual @ residual)
        slope = at[:-1] - factor.T @ (shares.T @ residual) * weight
        return 0.5 * float(at[:-1] @ at[:-1]) + 0.5 * wrong + count * at[-1], np.append(slope, count - wrong)

    start = np.append(np.zeros(len(TERMS)), np.log(START_DEVIATION))
    bounds = [(-np.inf, np.inf)] * len(TERMS) + [(np.log(MIN_DEVIATION), 0.0)]
    found = minimize(unlikely, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return np.asarray(factor @ found.x[:-1])


@dataclass(frozen=True)
class PricePrior:
    """Gaussian of the log prices of a new setting: ``mean`` float64 [``TERMS``], ``covariance`` [``TERMS``, ``TERMS``].

    The covariance is that of the known settings and ``CPU_LOG_PRICES``, far fewer than terms, shrunk towards
    ``_before``.
    """

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, known: np.ndarray) -> Self:
        """``known``: ``log_prices`` of S settings, float64 [``TERMS``, S]."""
        known = np.hstack([CPU_LOG_PRICES, known])
        count = known.shape[1]
        # A neutral roofline is one setting more.
        mean = known.sum(axis=1) / (count + 1)
        apart = known - mean[:, None]
        return cls(mean, (COUNTS_AS * _before() + apart @ apart.T) / (COUNTS_AS + count))

    def likeliest(self, terms: np.ndarray, log_s: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """Log prices, float64 [``TERMS``], as ``PricedLabels`` needs them."""
        factor, weight = np.linalg.cholesky(self.covariance), np.linalg.inv(rest)

        def unlikely(at: np.ndarray) -> tuple[float, np.ndarray]:
            answer, shares = _priced(terms, self.mean + factor @ at)
            residual = log_s - answer
            weighed = weight @ residual
            return 0.5 * float(at @ at + residual @ weighed), at - factor.T @ (shares.T @ weighed)

        found = minimize(unlikely, np.zeros(len(TERMS)), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
        return np.asarray(self.mean + factor @ found.x)


class PricedLabels:
    """Prices by few labels, linearised around the likeliest (Laplace's approximation), and a smooth rest.

    ``terms`` float64 [m, ``TERMS``] and ``log_s`` [m] of the labelled networks; ``rest``: covariance [m, m] of what
    prices leave of labels, their noise included. ``evidence``: log of how likely the labels are.
    """

    def __init__(self, prior: PricePrior, terms: np.ndarray, log_s: np.ndarray, rest: np.ndarray):
        self._prior, self._at = prior, prior.likeliest(terms, log_s, rest)
        answer, self._shares = _priced(terms, self._at)
        before = self._shares @ prior.covariance @ self._shares.T + rest
        self._inverse = np.linalg.inv(before)
        residual = log_s - answer - self._shares @ (prior.mean - self._at)
        self._alpha = self._inverse @ residual
        self.evidence = float(-0.5 * residual @ self._alpha - 0.5 * np.linalg.slogdet(before)[1])
        self.left_out = -self._alpha / np.diag(self._inverse)

    def answer(self, terms: np.ndarray, across: np.ndarray, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds) of n networks, float64 [n] each, without a label's noise. ``across``
        [n, m] and ``diagonal`` [n]: covariance of the rest with that of the labels, and its variance."""
        answer, shares = _priced(terms, self._at)
        spread = shares @ self._prior.covariance
        between = spread @ self._shares.T + across
        mean = answer + shares @ (self._prior.mean - self._at) + between @ self._alpha
        before = np.sum(spread * shares, axis=1) + diagonal
        return mean, np.maximum(before - np.sum((between @ self._inverse) * between, axis=1), 0.0)


def _before() -> np.ndarray:
    """Covariance of log prices while no setting is known, float64 [``TERMS``, ``TERMS``]."""
    term, category = np.divmod(np.arange(len(TERMS)), len(CATEGORIES))
    same_term, same_category = np.equal.outer(term, term), np.equal.outer(category, category)
    parts = COMMON_TO_TERM**2 * same_term + COMMON_TO_CATEGORY**2 * same_category
    return np.asarray(COMMON**2 + parts + OWN**2 * np.eye(len(TERMS)))


def _priced(terms: np.ndarray, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log of seconds [n] at these log prices, and the share of each term in them [n, ``TERMS``]."""
    seconds = terms * np.exp(prices)
    total = np.maximum(seconds.sum(axis=1), MIN_S)
    return np.log(total), seconds / total[:, None]
