"""Numbers of arrivals, held against SciPy's distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nbinom, poisson

from slotool.scheduling.batching.value_iteration import QUANTILES, arrival_counts

MEANS = np.r_[0.0, np.geomspace(1e-5, 1e5, 300)]


@pytest.mark.parametrize("dispersion", [0.3, 1.0, 1.01, 2.0, 8.0, 60.0])
def test_they_are_the_distributions_quantiles(dispersion: float) -> None:
    share, mean = (np.arange(QUANTILES) + 0.5) / QUANTILES, MEANS[1:, None]
    if dispersion <= 1.0:
        wanted = poisson.ppf(share, mean)
    else:
        wanted = nbinom.ppf(share, mean / (dispersion - 1.0), 1.0 / dispersion)
    counts = arrival_counts(MEANS, dispersion)
    some = wanted.sum(axis=1) > 0
    scale = mean[some] / wanted[some].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(counts[1:][some], wanted[some] * scale, rtol=1e-9)
    np.testing.assert_allclose(counts.mean(axis=1), MEANS, rtol=1e-9, atol=0)
