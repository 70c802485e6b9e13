"""Features of networks that do not depend on their library, and amounts of work that can be priced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.optimize import nnls

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import MEASURES, OperatorArrays, once
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
TOTALS = (
    *("flops", "padded_flops", "operators", "output_bytes", "weight_bytes", "moved_bytes", "roofline"),
    *("depth", "matrix_depth", "largest_output", "channels", "value_bytes"),
)
SHARES = ("aligned_flops", "narrow_flops", "small_flops", "compute_bound", "depthwise_kernel", "window_kernel")
FEATURES = (
    *(f"log {name}" for name in TOTALS),
    *(f"{what} {name}" for name in CATEGORIES for what in ("log calls", "cost share", "log byte share")),
    *SHARES,
)
# Tensor units compute in groups of so many lanes; below so many channels or positions they stand idle.
TENSOR_LANES, NARROW, SMALL = 8, 32, 100
# FLOPs per byte moved above which an operator is compute-bound on most devices.
BALANCE = 50.0
KERNELS = ("depthwise", "window")
# FLOPs per output value, which tell a matrix product of two activations from elementwise arithmetic.
MIN_FLOPS_PER_VALUE = 12.0
_AT = {name: i for i, name in enumerate(MEASURES)}
WORK = ("flops", "padded_flops", "moved_bytes", "weight_bytes", "output_bytes", "operators")
# For each category: number of operators, their cost by the neutral roofline, and the bytes they move.
BY_CATEGORY = tuple(f"{what} {name}" for what in ("calls", "cost", "bytes") for name in CATEGORIES)
AMOUNTS = (*WORK, *BY_CATEGORY)
# Ridge penalties on prices, as a share of the number of labels: of totals, where they hardly matter, and by category.
RIDGE, RIDGE_BY_CATEGORY = 0.01, 0.05
MIN_S = 1e-12
# Quantile of each amount that scales it for the ridge.
LARGE = 0.95


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
    measures = operators.measures
    flops, padded, weights, read, written = measures[:, :5].T
    categories = operators.each([CATEGORIES.index(category(operator)) for operator in operators.distinct])
    # A view moves nothing, whatever its shape.
    moved = np.where(categories == CATEGORIES.index("view"), 0.0, weights + read + written)
    calls = operators.each([operator.calls for operator in operators.distinct])
    cost_s = SECONDS_PER_CALL * calls + np.maximum(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)
    summed = partial(_summed, operators)
    all_flops, all_moved = (np.maximum(summed(some), 1.0) for some in (flops, moved))
    all_cost = summed(cost_s)
    begins = np.cumsum(operators.sizes) - operators.sizes
    channels_in, channels_out, positions = (measures[:, _AT[k]] for k in ("channels_in", "channels_out", "positions"))
    totals = (
        *(all_flops, np.maximum(summed(padded), 1.0), operators.sizes, summed(written), summed(weights)),
        *(all_moved, all_cost, *_depths(operators, categories < len(MATRIX))),
        *(np.maximum.reduceat(written, begins), _medians(operators, channels_in)),
        np.array([graph.bytes_per_value for graph in graphs], dtype=np.float64),
    )
    aligned = (channels_in % TENSOR_LANES == 0) & (channels_out % TENSOR_LANES == 0)
    bound = flops > BALANCE * np.maximum(moved, 1.0)
    columns = [np.log(np.maximum(total, 1e-12)) for total in totals]
    for i in range(len(CATEGORIES)):
        members = categories == i
        columns += [np.log1p(summed(members)), summed(cost_s * members) / all_cost]
        columns.append(np.log1p(100.0 * summed(moved * members) / all_moved))
    columns += [summed(flops * some) / all_flops for some in (aligned, channels_in < NARROW, positions < SMALL)]
    columns.append(summed(cost_s * bound) / all_cost)
    logs = np.log(np.maximum(measures[:, _AT["kernel"]], 1e-300))
    for kind in KERNELS:
        kind_s = cost_s * (categories == CATEGORIES.index(kind))
        columns.append(summed(logs * kind_s) / np.maximum(summed(kind_s), 1e-300))
    return np.column_stack(columns)


def _summed(operators: OperatorArrays, numbers: np.ndarray) -> np.ndarray:
    """Return the sum over the operators of each network, float64 [n]."""
    return np.bincount(operators.owners, numbers, len(operators.sizes))


def _medians(operators: OperatorArrays, numbers: np.ndarray) -> np.ndarray:
    """Return the median over the operators of each network, float64 [n]."""
    ordered = numbers[np.lexsort((numbers, operators.owners))]
    begins = np.cumsum(operators.sizes) - operators.sizes
    return np.asarray((ordered[begins + (operators.sizes - 1) // 2] + ordered[begins + operators.sizes // 2]) / 2)


def _depths(operators: OperatorArrays, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return operators on each network's longest path, and 1 + the most ``counted`` ones on a path, int64 [n]."""
    every, some = [1] * len(operators.rows), counted.astype(np.int64).tolist()
    weights = list(some)
    # Targets ascend, and inputs stand before the operators that take them.
    for source, target in zip(*(ends.tolist() for ends in operators.edges), strict=True):
        every[target] = max(every[target], every[source] + 1)
        some[target] = max(some[target], some[source] + weights[target])
    begins = np.cumsum(operators.sizes) - operators.sizes
    return np.maximum.reduceat(every, begins), 1 + np.maximum.reduceat(some, begins)


def amounts(features: np.ndarray) -> np.ndarray:
    """Convert ``network_features`` [n, ``FEATURES``] to ``AMOUNTS``, float64 ≥ 0 [n, amounts]."""
    totals = np.exp(_columns(features, [f"log {name}" for name in WORK]))
    calls = np.expm1(_columns(features, [f"log calls {name}" for name in CATEGORIES]))
    shares = _columns(features, [f"cost share {name}" for name in CATEGORIES])
    byte_shares = np.expm1(_columns(features, [f"log byte share {name}" for name in CATEGORIES])) / 100
    cost, moved = (np.exp(_columns(features, [f"log {name}"])) for name in ("roofline", "moved_bytes"))
    return np.asarray(np.maximum(np.hstack([totals, calls, shares * cost, byte_shares * moved]), 0.0))


def prices(work: np.ndarray, log_s: np.ndarray, ridge: float) -> np.ndarray:
    """Fit seconds per amount, float64 ≥ 0 [amounts], by least squares on relative errors of float64 [n, amounts]."""
    relative = work / np.exp(log_s)[:, None]
    large, most = np.quantile(relative, LARGE, axis=0), relative.max(axis=0)
    scale = np.where(large > 0, large, np.where(most > 0, most, 1.0))
    count, width = relative.shape
    rows = np.vstack([relative / scale, ridge * np.sqrt(count) * np.eye(width)])
    target = np.concatenate([np.ones(count), np.zeros(width)])
    return np.asarray(nnls(rows, target, maxiter=50 * width)[0] / scale)


def relative_prices(columns: np.ndarray, latency_s: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Fit prices ≥ 0 of ``columns``, float64 [n, columns], by least squares on relative errors.

    ``least``: smallest price, as a share of a latency where its column is largest.
    """
    relative = columns / latency_s[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    return np.asarray(np.maximum(nnls(relative / scale, np.ones(len(columns)))[0], least) / scale)


def log_seconds(work: np.ndarray, prices_s: np.ndarray) -> np.ndarray:
    """Return log(seconds) [n, S] of amounts [n, amounts] at prices [amounts, S]."""
    return np.asarray(np.log(np.maximum(work @ prices_s, MIN_S)))


def _columns(features: np.ndarray, names: Sequence[str]) -> np.ndarray:
    return np.asarray(features[:, [FEATURES.index(name) for name in names]])
