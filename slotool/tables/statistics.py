"""Order statistics of raw samples, and the number of samples that each needs."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

# Fewest samples for a tail quantile whose one-sided 99 % bound still lies inside the sample, with one sample to
# spare above it: the MLPerf early-stopping counts for p90 and p99.
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
    allowed = (1.0 - confidence) / 2.0
    log_half_n = -n * math.log(2.0)
    below, rank = 0.0, 0
    for successes in range(n // 2):
        log_choose = math.lgamma(n + 1) - math.lgamma(successes + 1) - math.lgamma(n - successes + 1)
        below += math.exp(log_choose + log_half_n)
        if below > allowed:
            break
        rank = successes
    return rank


def tail_quantile(samples: np.ndarray, quantile: float) -> float:
    """The sample quantile, or NaN when there are too few samples to speak of that tail at all."""
    if len(samples) < MIN_SAMPLES.get(quantile, 1):
        return math.nan
    return float(np.quantile(samples, quantile))
