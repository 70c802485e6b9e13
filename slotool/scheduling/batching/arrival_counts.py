"""How many queries arrive meanwhile: equally likely numbers of them, of a Poisson or a negative binomial distribution.

As ``ppf`` of ``scipy.stats`` has them, which takes a server a second to load.
"""

from __future__ import annotations

import numpy as np
from scipy import special

# So many equally likely numbers stand for a distribution.
QUANTILES = 16


def arrival_counts(mean: np.ndarray, dispersion: float) -> np.ndarray:
    """float64 [J, ``QUANTILES``] of ``mean``, float64 [J], and ``dispersion``, variance ÷ mean: in ascending order, and
    scaled so that their own mean is that of the distribution. Below a dispersion of 1 they are those of 1."""
    share = (np.arange(QUANTILES) + 0.5) / QUANTILES
    of = mean[:, None]
    drawn = _poisson(share, of) if dispersion <= 1.0 else _negative_binomial(share, of, dispersion)
    found = drawn.mean(axis=1, keepdims=True)
    return np.where(found > 0, drawn * of / np.maximum(found, 1e-12), of)


def _poisson(share: np.ndarray, mean: np.ndarray) -> np.ndarray:
    above: np.ndarray = np.ceil(special.pdtrik(share, mean))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.pdtr(below, mean) >= share, below, above)


def _negative_binomial(share: np.ndarray, mean: np.ndarray, dispersion: float) -> np.ndarray:
    size, chance = mean / (dispersion - 1.0), 1.0 / dispersion
    above: np.ndarray = np.ceil(special.nbdtrik(share, size, chance))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.betainc(size, below + 1.0, chance) >= share, below, above)
