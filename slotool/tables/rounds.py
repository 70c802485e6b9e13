"""Order statistics of samples; of samples taken in several rounds what a repetition in another round would show.

Within a round the samples share one state of the machine: where the weights lie in memory, what the neighbours do. So
the spread of samples says little about another round, however many there are, and the interval must come from how far
rounds differ. A row has few rounds; the variance between them is therefore pooled over the rows of a table by the
moderated t statistic (Smyth, "Linear models and empirical Bayes methods", 2004): the variances of rows follow a scaled
inverse chi-square distribution, and each row's own variance is weighted against it by degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# The samples needed for a tail quantile whose one-sided 99 % bound still lies inside the sample, with one more sample
# above it: the MLPerf early-stopping counts for p90 and p99.
MIN_SAMPLES = {0.90: 64, 0.99: 662}


def median_interval(samples: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of the median from order statistics (exact binomial ranks), of independent samples.

    Latencies of one round are not independent of what the machine did meanwhile: see ``repetition_interval``.

    ``samples``: float [n], any order. Returns (low, high); below 6 samples the interval is the whole range, since no
    pair of order statistics covers 95 %.
    """
    ordered = np.sort(samples)
    rank = _median_rank(len(ordered), confidence)
    return float(ordered[rank]), float(ordered[len(ordered) - 1 - rank])


@lru_cache(maxsize=4096)
def _median_rank(n: int, confidence: float) -> int:
    """Return the greatest 0-based rank r such that [x_r, x_{n-1-r}] covers the median with at least ``confidence``."""
    from scipy.special import bdtr

    below = bdtr(np.arange(n // 2), n, 0.5)
    return max(0, int(np.searchsorted(below, (1.0 - confidence) / 2.0, side="right")) - 1)


def tail_quantile(samples: np.ndarray, quantile: float) -> float:
    """Return the sample quantile, or NaN when there are too few samples for that tail."""
    if len(samples) < MIN_SAMPLES.get(quantile, 1):
        return math.nan
    return float(np.quantile(samples, quantile))


Counts = Sequence[float] | np.ndarray

MIN_ROWS = 10
# Medians of two rounds that differ by less are the same for the resolution of the clock's reading.
MIN_RELATIVE_SD = 1e-4
MAX_DEGREES = 1e3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class RoundNoise:
    """Scatter of round medians about a row's true median, as a relative standard deviation ``scale``.

    For a single row ``scale`` is as uncertain as an estimate from ``degrees`` squared differences (few: rows differ
    much).
    """

    scale: float
    degrees: float


# The noise assumed for a table with too few rows of several rounds to estimate it from: that of the 6,700 rows of
# datasets/random-networks-latency.parquet (two cores of a shared virtual machine); `datasets/derive.py` prints it.
USUAL_NOISE = RoundNoise(0.018, 1.7)


def rounds_of(samples_s: np.ndarray, per_round: Counts) -> list[np.ndarray]:
    """Return the samples of each round, in time order; all as one round when ``per_round`` does not add up to them."""
    counts = [int(count) for count in per_round]
    if sum(counts) != len(samples_s) or min(counts, default=0) < 1:
        return [np.asarray(samples_s)]
    return np.split(np.asarray(samples_s), np.cumsum(counts)[:-1])


def round_medians(samples_s: np.ndarray, per_round: Counts) -> np.ndarray:
    """Return the median of each round, float64 seconds [rounds]."""
    return np.array([np.median(samples) for samples in rounds_of(samples_s, per_round)])


def fit_noise(medians: Iterable[np.ndarray]) -> RoundNoise:
    """Return the noise between rounds of a table whose rows have these ``round_medians``.

    It is ``USUAL_NOISE`` if fewer than ``MIN_ROWS`` rows have two rounds or more.

    The moments of log variances give both numbers. Then ``scale`` grows, where it must, until 95 % of the rows' second
    rounds lie in the interval of their first: real tails are heavier than the model's.
    """
    from scipy.special import digamma, polygamma

    logs = [np.log(row) for row in medians if len(row) > 1]
    if len(logs) < MIN_ROWS:
        return USUAL_NOISE
    free = np.array([len(row) - 1 for row in logs], dtype=np.float64)
    variances = np.maximum([row.var(ddof=1) for row in logs], MIN_RELATIVE_SD**2)
    excess = np.log(variances) - digamma(free / 2) + np.log(free / 2)
    between = excess.var(ddof=1) - float(polygamma(1, free / 2).mean())
    degrees = _degrees(between)
    scale = math.exp((excess.mean() + digamma(degrees / 2) - math.log(degrees / 2)) / 2)
    steps = np.abs([row[1] - row[0] for row in logs])
    observed = float(np.quantile(steps, CONFIDENCE)) / (math.sqrt(2.0) * _t(degrees, CONFIDENCE))
    return RoundNoise(max(scale, observed), degrees)


def repetition_interval(
    samples_s: np.ndarray, per_round: Counts, noise: RoundNoise, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval (low, high) of the median of a repetition in another round, with this ``confidence``.

    More rounds make it surer, not narrower than the scatter of rounds; it contains ``median_interval``. Half of a row's
    rounds is a row of its own: pass its samples and counts with the ``noise`` of the table. If every round takes one of
    two values, as a place in memory may cause, two or three rounds that agree by chance look too quiet and coverage is
    lower.
    """
    medians = np.log(round_medians(samples_s, per_round))
    row_degrees = len(medians) - 1
    variance = float(medians.var(ddof=1)) if row_degrees else 0.0
    degrees = noise.degrees + row_degrees
    spread = math.sqrt((noise.degrees * noise.scale**2 + row_degrees * variance) / degrees * (1 + 1 / len(medians)))
    width = math.exp(min(_t(degrees, confidence) * spread, 700.0))
    middle, (low, high) = float(np.median(samples_s)), median_interval(samples_s, confidence)
    return min(low, middle / width), max(high, middle * width)


def rounds_agree(samples_s: np.ndarray, per_round: Counts, precision: float) -> bool:
    """True if medians of two or more rounds, and of both halves of all samples, differ by at most ``precision``.

    ``precision`` is a fraction of the median of all samples.
    """
    medians, half = round_medians(samples_s, per_round), len(samples_s) // 2
    if len(medians) < 2:
        return False
    drift = abs(float(np.median(samples_s[:half])) - float(np.median(samples_s[half:])))
    return max(float(np.ptp(medians)), drift) <= precision * float(np.median(samples_s))


def _degrees(between: float) -> float:
    """Return the degrees of freedom for a variance of the log variance: the inverse trigamma function."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    if between <= float(polygamma(1, MAX_DEGREES / 2)):
        return MAX_DEGREES
    return 2 * float(brentq(lambda half: float(polygamma(1, half)) - between, 1e-3, MAX_DEGREES / 2))


def _t(degrees: float, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))
