"""Order statistics of raw samples, and the number of samples that each needs."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

# The samples needed for a tail quantile whose one-sided 99 % bound still lies inside the sample, with one more sample
# above it: the MLPerf early-stopping counts for p90 and p99.
MIN_SAMPLES = {0.90: 64, 0.99: 662}


def median_interval(samples: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of the median from order statistics (exact binomial ranks), of independent samples.

    Latencies of one round are not independent of what the machine did meanwhile: see ``rounds.repetition_interval``.

    ``samples``: float [n], any order. Returns (low, high); below 6 samples the interval is the whole range, since no
    pair of order statistics covers 95 %.
    """
    ordered = np.sort(samples)
    rank = _median_rank(len(ordered), confidence)
    return float(ordered[rank]), float(ordered[len(ordered) - 1 - rank])


@lru_cache(maxsize=4096)
def _median_rank(n: int, confidence: float) -> int:
    """Greatest 0-based rank r such that [x_r, x_{n-1-r}] covers the median with at least ``confidence``."""
    from scipy.special import bdtr

    below = bdtr(np.arange(n // 2), n, 0.5)
    return max(0, int(np.searchsorted(below, (1.0 - confidence) / 2.0, side="right")) - 1)


def tail_quantile(samples: np.ndarray, quantile: float) -> float:
    """The sample quantile, or NaN when there are too few samples for that tail."""
    if len(samples) < MIN_SAMPLES.get(quantile, 1):
        return math.nan
    return float(np.quantile(samples, quantile))
