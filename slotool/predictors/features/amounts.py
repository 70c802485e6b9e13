"""What a network does, in amounts that a device has a price for: seconds as a sum of work, whatever the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from slotool.predictors.features.network_features import CATEGORIES, FEATURES
from slotool.predictors.features.type_costs import SECONDS_PER_CALL

TOTALS = ("flops", "padded_flops", "moved_bytes", "weight_bytes", "output_bytes", "operators")
# Of each category of operators: how many, their cost by the neutral roofline, and the bytes they move.
BY_CATEGORY = tuple(f"{what} {name}" for what in ("calls", "cost", "bytes") for name in CATEGORIES)
AMOUNTS = (*TOTALS, *BY_CATEGORY)
# Categories whose prices are likely to differ from setting to setting by one factor; calls of all categories are one
# more. By how much, as deviations of the logarithm: found by the labels of seven CPU settings (torch, TensorFlow, ONNX
# Runtime), each predicted from up to four others, 23 pairs, as the mean over pairs of what all labels of one make
# likely (expectation maximisation). Devices played no part.
GROUPS = {
    ("window", "grouped"): 0.9,
    ("pointwise",): 0.9,
    ("depthwise",): 1.2,
    ("dense",): 0.9,
    ("attention",): 1.5,
    ("batch norm", "norm", "softmax"): 2.9,
    ("relu", "activation", "elementwise", "add"): 2.3,
    ("global pool", "pool", "resize", "view", "permute", "copy", "other"): 1.3,
}
CALLS_DEVIATION = 4.5
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


def group_shares(work: np.ndarray) -> np.ndarray:
    """What each of ``GROUPS`` has of a network's cost by the neutral roofline, without calls, then what calls have:
    float64 [n, groups + 1], sums 1. ``work``: float64 [n, ``AMOUNTS``]."""
    calls, cost, _ = np.split(work[:, len(TOTALS) :], 3, axis=1)
    called = SECONDS_PER_CALL * calls
    own = np.maximum(cost - called, 0.0)
    by_group = [own[:, [CATEGORIES.index(name) for name in group]].sum(axis=1) for group in GROUPS]
    seconds = np.column_stack([*by_group, called.sum(axis=1)])
    return np.asarray(seconds / np.maximum(seconds.sum(axis=1, keepdims=True), MIN_S))


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
