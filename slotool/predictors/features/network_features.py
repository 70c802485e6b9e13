"""Features of networks that do not depend on their library, and amounts of work that can be priced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import OperatorArrays, once
from slotool.predictors.features.type_costs import BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS_PER_CALL

# Category of an operator: the first with a word in its name, which is in lower case and without the library.
_BY_NAME = {
    "batch norm": ("batchnorm", "batch_norm"),
    "norm": ("norm",),
    "softmax": ("softmax",),
    "relu": ("relu", "clip", "clamp"),
    "activation": ("gelu", "silu", "swish", "sigmoid", "tanh", "mish", "elu", "hard", "activation", "erf"),
    "global pool": ("global", "adaptive", "mean", "sum", "reduce"),
    "pool": ("pool", "max", "min"),
    "view": (
        *("view", "reshape", "flatten", "getitem", "squeeze", "unbind", "split", "chunk"),
        *("identity", "dropout", "constant", "input"),
    ),
    "permute": ("permute", "transpose", "movedim", "moveaxis"),
    "copy": (
        *("roll", "cat", "pad", "slice", "select", "stack", "contiguous", "clone", "expand"),
        *("gather", "scatter", "index", "repeat", "crop", "fold", "im2col", "col2im", "copy"),
        # Few networks resize inside: a price of its own was 3.7 times too high for a family held out.
        *("resize", "interpolate", "upsampl", "shuffle"),
    ),
    "add": ("add", "sub"),
    "elementwise": ("mul", "div", "scal", "pow", "exp", "where", "sqrt", "neg", "square", "elementwise"),
}
_RELUS = ("relu", "relu6")
MATRIX = ("window", "pointwise", "grouped", "depthwise", "dense", "attention")
CATEGORIES = (*MATRIX, *_BY_NAME, "other")
# FLOPs per output value, which tell a matrix product of two activations from elementwise arithmetic.
MIN_FLOPS_PER_VALUE = 12.0
WORK = ("flops", "padded_flops", "moved_bytes", "weight_bytes", "output_bytes", "operators")
FEATURES = (
    *(f"log {name}" for name in (*WORK, "roofline", "value_bytes", "depth")),
    *(f"{what} {name}" for what in ("log calls", "cost share", "log byte share") for name in CATEGORIES),
)
# For each category: number of operators, their cost by the neutral roofline, and the bytes they move.
AMOUNTS = (*WORK, *(f"{what} {name}" for what in ("calls", "cost", "bytes") for name in CATEGORIES))


def category(operator: Operator) -> str:
    """Return the one of ``CATEGORIES`` of an operator: by its work if it multiplies matrices, else by its name."""
    values = max(operator.output_bytes / 4, 1.0)
    many = operator.flops > MIN_FLOPS_PER_VALUE * values
    if (operator.weights and many) or ("kernel" in operator.attributes and operator.weights):
        return _of_weights(operator)
    if many and "pool" not in operator.op.lower():
        return "attention"
    name = operator.op.rpartition(".")[2].lower()
    if name == "activation" and operator.attributes.get("activation") in _RELUS:
        return "relu"
    return next(
        (name_of_category for name_of_category, words in _BY_NAME.items() if any(word in name for word in words)),
        "other",
    )


def network_features(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Return ``FEATURES``, float64 [n, features], which are nearly the same from whatever library a network comes."""
    if not graphs:
        return np.empty((0, len(FEATURES)))
    return once(graphs, _features)


def _of_weights(operator: Operator) -> str:
    groups = operator.attributes.get("groups", 1)
    if "Depthwise" in operator.op or (groups != 1 and groups == operator.attributes.get("filters")):
        return "depthwise"
    if "kernel" not in operator.attributes:
        return "window" if "conv" in operator.op.lower() else "dense"
    if groups != 1:
        return "grouped"
    return "pointwise" if operator.attributes["kernel"] in (1, (1,), (1, 1), [1], [1, 1]) else "window"


def _features(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    operators = OperatorArrays.of(graphs)
    flops, padded, weights, read, written = operators.measures[:, :5].T
    categories = operators.each([CATEGORIES.index(category(operator)) for operator in operators.distinct])
    # A view moves nothing, whatever its shape.
    moved = np.where(categories == CATEGORIES.index("view"), 0.0, weights + read + written)
    calls = operators.each([operator.calls for operator in operators.distinct])
    cost_s = SECONDS_PER_CALL * calls + np.maximum(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)
    count, width = len(graphs), len(CATEGORIES)

    def by_category(numbers: np.ndarray) -> np.ndarray:
        """Return the sum over the operators of each network and category, float64 [n, categories]."""
        return np.bincount(operators.owners * width + categories, numbers, count * width).reshape(count, width)

    counts, costs, bytes_moved = (by_category(numbers) for numbers in (np.ones(len(flops)), cost_s, moved))
    summed = (by_category(numbers).sum(axis=1) for numbers in (flops, padded, moved, weights, written))
    value_bytes = [graph.bytes_per_value for graph in graphs]
    totals = np.column_stack([*summed, operators.sizes, costs.sum(axis=1), value_bytes, _depths(operators)])
    totals[:, :3] = np.maximum(totals[:, :3], 1.0)
    shares = costs / totals[:, [FEATURES.index("log roofline")]]
    byte_shares = bytes_moved / totals[:, [WORK.index("moved_bytes")]]
    return np.hstack([np.log(np.maximum(totals, 1e-12)), np.log1p(counts), shares, np.log1p(100.0 * byte_shares)])


def _depths(operators: OperatorArrays) -> np.ndarray:
    """Return the number of operators on the longest path of each network, which parts networks of equal work."""
    depths = [1] * len(operators.rows)
    # Targets ascend, and inputs stand before the operators that take them.
    for source, target in zip(*(ends.tolist() for ends in operators.edges), strict=True):
        depths[target] = max(depths[target], depths[source] + 1)
    return np.asarray(np.maximum.reduceat(depths, np.cumsum(operators.sizes) - operators.sizes))


def amounts(features: np.ndarray) -> np.ndarray:
    """Convert ``network_features`` [n, ``FEATURES``] to ``AMOUNTS``, float64 ≥ 0 [n, amounts]."""
    totals, by_category = np.split(features, [len(WORK) + 3], axis=1)
    totals, (counts, shares, byte_shares) = np.exp(totals), np.split(by_category, 3, axis=1)
    costs = shares * totals[:, [FEATURES.index("log roofline")]]
    moved = np.expm1(byte_shares) / 100 * totals[:, [WORK.index("moved_bytes")]]
    return np.asarray(np.maximum(np.hstack([totals[:, : len(WORK)], np.expm1(counts), costs, moved]), 0.0))


def relative_prices(columns: np.ndarray, latency_s: np.ndarray, least: float = 0.0, ridge: float = 0.0) -> np.ndarray:
    """Fit prices ≥ 0 of ``columns``, float64 [n, columns], by least squares on relative errors.

    Args:
        columns: Amounts.
        latency_s: Labels, float64 seconds [n].
        least: Smallest price, as a share of a latency where its column is largest.
        ridge: Penalty on prices in that unit, as a share of the number of labels.
    """
    relative = columns / latency_s[:, None]
    scale, (count, width) = np.maximum(relative.max(axis=0), 1e-300), relative.shape
    rows = np.vstack([relative / scale, ridge * np.sqrt(count) * np.eye(width)])
    target = np.concatenate([np.ones(count), np.zeros(width)])
    return np.asarray(np.maximum(nnls(rows, target, maxiter=50 * width)[0], least) / scale)
