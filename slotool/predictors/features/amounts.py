"""What a network does, in amounts that a device has a price for: seconds as a sum of work, whatever the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from slotool.predictors.features.network_features import CATEGORIES, FEATURES

TOTALS = ("flops", "padded_flops", "moved_bytes", "weight_bytes", "output_bytes", "operators")
# Of each category of operators: how many, their cost by the neutral roofline, and the bytes they move.
BY_CATEGORY = tuple(f"{what} {name}" for what in ("calls", "cost", "bytes") for name in CATEGORIES)
AMOUNTS = (*TOTALS, *BY_CATEGORY)
# Prices are drawn towards 0 as if by so many labels, as a share of those there are: first by totals, where that hardly
# matters, then by category.
RIDGE, RIDGE_BY_CATEGORY = 0.01, 0.05
# Seconds that no network takes less than.
MIN_S = 1e-12
# The largest amounts but for one network in twenty weigh alike in the ridge.
LARGE = 0.95


def amounts(features: np.ndarray) -> np.ndarray:
    """float64 ≥ 0 [n, ``AMOUNTS``] from ``network_features`` [n, ``FEATURES``]."""
    totals = np.exp(_columns(features, [f"log {name}" for name in TOTALS]))
    calls = np.expm1(_columns(features, [f"log calls {name}" for name in CATEGORIES]))
    shares = _columns(features, [f"cost share {name}" for name in CATEGORIES])
    byte_shares = np.expm1(_columns(features, [f"log byte share {name}" for name in CATEGORIES])) / 100
    cost, moved = (np.exp(_columns(features, [f"log {name}"])) for name in ("roofline", "moved_bytes"))
    return np.asarray(np.maximum(np.hstack([totals, calls, shares * cost, byte_shares * moved]), 0.0))


def prices(found: np.ndarray, log_s: np.ndarray, ridge: float) -> np.ndarray:
    """Seconds of each amount, float64 ≥ 0 [amounts], by least squares on relative errors of float64 [n, amounts]."""
    relative = found / np.exp(log_s)[:, None]
    large, most = np.quantile(relative, LARGE, axis=0), relative.max(axis=0)
    scale = np.where(large > 0, large, np.where(most > 0, most, 1.0))
    count, width = relative.shape
    rows = np.vstack([relative / scale, ridge * np.sqrt(count) * np.eye(width)])
    wanted = np.concatenate([np.ones(count), np.zeros(width)])
    return np.asarray(nnls(rows, wanted, maxiter=50 * width)[0] / scale)


def log_seconds(found: np.ndarray, prices_s: np.ndarray) -> np.ndarray:
    """log of seconds [n, S] of amounts [n, amounts] at prices [amounts, S]."""
    return np.asarray(np.log(np.maximum(found @ prices_s, MIN_S)))


def _columns(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    return np.asarray(features[:, [FEATURES.index(name) for name in names]])
