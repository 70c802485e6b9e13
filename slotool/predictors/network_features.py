"""A network as a few dozen numbers that say what it must do, whichever operators do it: what settings share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import MEASURES, operator_measures
from slotool.predictors.typecosts import BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS_PER_CALL

# What an operator does: the first category one of whose words is in its name, in lower case, without its library.
_BY_NAME = {
    "batch norm": ("batchnorm", "batch_norm"),
    "norm": ("norm",),
    "softmax": ("softmax",),
    "relu": ("relu", "clip", "clamp"),
    "activation": ("gelu", "silu", "swish", "sigmoid", "tanh", "mish", "elu", "hard", "activation", "erf"),
    "global pool": ("global", "adaptive", "mean", "sum", "reduce"),
    "pool": ("pool", "max", "min"),
    "resize": ("resize", "interpolate", "upsampl", "shuffle"),
    "view": ("view", "reshape", "flatten", "getitem", "squeeze", "unbind", "split", "chunk", "identity", "dropout"),
    "permute": ("permute", "transpose", "movedim", "moveaxis"),
    "copy": (
        *("roll", "cat", "pad", "slice", "select", "stack", "contiguous", "clone", "expand"),
        *("gather", "index", "repeat", "crop", "fold", "im2col", "col2im"),
    ),
    "add": ("add", "sub"),
    "elementwise": ("mul", "div", "scal", "pow", "exp", "where", "sqrt", "neg", "square"),
}
# Activations that are an attribute of an operator of their own.
_RELUS = ("relu", "relu6")
MATRIX = ("window", "pointwise", "grouped", "depthwise", "dense", "attention")
CATEGORIES = (*MATRIX, *_BY_NAME, "other")
TOTALS = (
    *("flops", "padded_flops", "operators", "output_bytes", "weight_bytes", "moved_bytes", "roofline"),
    *("depth", "matrix_depth", "largest_output", "channels"),
)
SHARES = ("aligned_flops", "narrow_flops", "small_flops", "compute_bound", "depthwise_kernel", "window_kernel")
FEATURES = (
    *(f"log {name}" for name in TOTALS),
    *(f"{what} {name}" for name in CATEGORIES for what in ("log calls", "cost share", "log byte share")),
    *SHARES,
)
# Tensor units compute halves in groups of so many; below so many channels or positions they stand idle.
TENSOR_LANES, NARROW, SMALL = 8, 32, 100
# FLOPs for each byte moved, above which an operator waits for arithmetic on most devices.
BALANCE = 50.0
KERNELS = ("depthwise", "window")
# A matrix product of two activations does many more FLOPs than it puts out values; arithmetic on each value does not.
MIN_FLOPS_PER_VALUE = 12.0
_AT = {name: i for i, name in enumerate(MEASURES)}


def category(operator: Operator) -> str:
    """Which of ``CATEGORIES`` an operator belongs to: by its work where it multiplies matrices, else by its name."""
    values = max(operator.output_bytes / 4, 1.0)
    many = operator.flops > MIN_FLOPS_PER_VALUE * values
    if (operator.weights and many) or ("kernel" in operator.attributes and operator.weights):
        return _of_weights(operator)
    if many and "pool" not in operator.op.lower():
        return "attention"
    name = operator.op.rpartition(".")[2].lower()
    if name == "activation" and operator.attributes.get("activation") in _RELUS:
        return "relu"
    return next((own for own, words in _BY_NAME.items() if any(word in name for word in words)), "other")


def roofline_s(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Seconds of each network by a neutral roofline, float64 > 0 [n]."""
    return np.asarray(np.exp(network_features(graphs)[:, TOTALS.index("roofline")]))


def network_features(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """float64 [n, ``FEATURES``]. Names of operators matter for their category only, so a network has nearly the same
    numbers from whatever library it was captured."""
    return np.array([_of(graph) for graph in graphs], dtype=np.float64).reshape(-1, len(FEATURES))


def _of_weights(operator: Operator) -> str:
    groups = operator.attributes.get("groups", 1)
    if "Depthwise" in operator.op or (groups != 1 and groups == operator.attributes.get("filters")):
        return "depthwise"
    if "kernel" not in operator.attributes:
        return "window" if "conv" in operator.op.lower() else "dense"
    if groups != 1:
        return "grouped"
    return "pointwise" if operator.attributes["kernel"] in (1, (1,), (1, 1), [1], [1, 1]) else "window"


def _of(graph: OperatorGraph) -> list[float]:
    measures = operator_measures(graph)
    flops, padded, weights, read, written = measures[:, :5].T
    moved = weights + read + written
    categories = np.array([CATEGORIES.index(category(operator)) for operator in graph.operators])
    # A view moves nothing, whatever its shape.
    moved = np.where(categories == CATEGORIES.index("view"), 0.0, moved)
    calls = np.array([operator.calls for operator in graph.operators])
    cost_s = SECONDS_PER_CALL * calls + np.maximum(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)
    all_flops, all_moved, all_cost = max(flops.sum(), 1.0), max(moved.sum(), 1.0), cost_s.sum()
    depth, matrix_depth = _depths(graph, categories < len(MATRIX))
    channels_in, channels_out, positions = (measures[:, _AT[k]] for k in ("channels_in", "channels_out", "positions"))
    totals = (
        *(all_flops, max(padded.sum(), 1.0), len(flops), written.sum(), weights.sum(), all_moved, all_cost),
        *(depth, 1 + matrix_depth, written.max(), float(np.median(channels_in))),
    )
    found = np.log(np.maximum(np.array(totals, dtype=np.float64), 1e-12)).tolist()
    for i in range(len(CATEGORIES)):
        own = categories == i
        share = moved[own].sum() / all_moved
        found += [np.log1p(own.sum()), cost_s[own].sum() / all_cost, np.log1p(100.0 * share)]
    aligned = (channels_in % TENSOR_LANES == 0) & (channels_out % TENSOR_LANES == 0)
    bound = flops > BALANCE * np.maximum(moved, 1.0)
    return [
        *found,
        *(float(flops[some].sum() / all_flops) for some in (aligned, channels_in < NARROW, positions < SMALL)),
        float(cost_s[bound].sum() / all_cost),
        *(_mean_log(measures[:, _AT["kernel"]], cost_s, categories == CATEGORIES.index(kind)) for kind in KERNELS),
    ]


def _mean_log(values: np.ndarray, weights: np.ndarray, own: np.ndarray) -> float:
    return float(np.log(values[own]) @ weights[own] / weights[own].sum()) if own.any() else 0.0


def _depths(graph: OperatorGraph, counted: np.ndarray) -> tuple[int, int]:
    """Operators on the longest path, and most ``counted`` ones on one path."""
    every: dict[str, int] = {}
    some: dict[str, int] = {}
    for operator, counts in zip(graph.operators, counted.tolist(), strict=True):
        every[operator.name] = 1 + max((every[name] for name in operator.inputs), default=0)
        some[operator.name] = counts + max((some[name] for name in operator.inputs), default=0)
    return max(every.values()), max(some.values())
