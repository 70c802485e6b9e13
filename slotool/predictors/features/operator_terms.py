"""Work and shape of operators as numbers, by kind of operator, for pricing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import lane_padding
from slotool.graphs.layout import Layout, distinct_layouts
from slotool.graphs.operators import Shape

OPERATOR_TERMS = ("calls", "flops", "moved_bytes", "weight_bytes")
# For products, in log2: length of sums, columns and rows of the output, number of products, window, stride, padding of
# vector lanes for columns and for sums, and ``special``. For others: length of rows, number of inputs, rank, window,
# and whether an input is broadcast.
SHAPE_FEATURES = ("sum", "columns", "rows", "products", "window", "stride", "lanes", "sum_lanes", "special")
SIZE_FEATURES = ("small_kib", "middle_kib", "large_kib")
OPERATOR_FEATURES = (*SHAPE_FEATURES, *SIZE_FEATURES, "channels_last", "reordered")
# Ranges of sizes, log2 KiB, in which data outgrow a cache.
TIERS = ((2.0, 8.0), (8.0, 12.0), (12.0, 16.0))
PRODUCTS = (
    *("Conv1D", "Conv2D", "Conv2D 1×1", "Conv2D of groups", "Conv2DTranspose", "Conv3D", "DepthwiseConv2D", "Dense"),
    *("MatMul", "ScaledDotProductAttention", "LSTM", "GRU", "SimpleRNN", "SeparableConv2D"),
)
_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "DepthwiseConv2D", "SeparableConv2D")
# torch computes convolutions of images of at most so many values as one matrix product, larger ones by oneDNN.
SMALL_IMAGE, SMALL_WINDOW = 20_480, 3
# Kind, terms and features of an operator.
Row = tuple[str, tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class OperatorTerms:
    """Work of n operators of networks, as references to d distinct ones.

    Distinct operators: ``kinds`` str [d], ``terms`` float64 [d, ``OPERATOR_TERMS``], ``features`` float64 [d,
    ``OPERATOR_FEATURES``]. Operators of networks: ``rows`` int64 [n], the distinct operator; ``owners`` int64 [n], the
    graph; ``counts`` float64 [n], repetitions; ``operators`` int64 [n], the number in the graph. ``graphs``: how many.

    An activation that is an attribute of a layer has a row too, with that layer's number.
    """

    kinds: np.ndarray
    terms: np.ndarray
    features: np.ndarray
    rows: np.ndarray
    owners: np.ndarray
    counts: np.ndarray
    operators: np.ndarray
    graphs: int

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], *, merge: bool = True) -> OperatorTerms:
        """Describe the operators of ``graphs``; ``merge``: equal ones of a graph become one row."""
        entries, numbers = distinct_layouts(graphs)
        numbers_of: dict[Row, int] = {}
        rows_of = [[numbers_of.setdefault(row, len(numbers_of)) for row in _rows(*entry)] for entry in entries]
        places = [(owner, number) for owner, graph in enumerate(graphs) for number in range(len(graph.operators))]
        described = [(row, *place) for place, entry in zip(places, numbers, strict=True) for row in rows_of[entry]]
        rows, owners, operators = np.array(described, dtype=np.int64).reshape(-1, 3).T
        first, counts = np.arange(len(rows)), np.ones(len(rows))
        if merge:
            _, first, counts = np.unique(owners * len(numbers_of) + rows, return_index=True, return_counts=True)
            order = np.argsort(first)
            first, counts = first[order], counts[order]
        kinds, terms, features = zip(*numbers_of, strict=True) if numbers_of else ((), (), ())
        return cls(
            kinds=np.array(kinds, dtype=object),
            terms=np.array(terms, dtype=np.float64).reshape(-1, len(OPERATOR_TERMS)),
            features=np.array(features, dtype=np.float64).reshape(-1, len(OPERATOR_FEATURES)),
            rows=rows[first],
            owners=owners[first],
            counts=counts.astype(np.float64),
            operators=operators[first],
            graphs=len(graphs),
        )


def is_product(kind: str) -> bool:
    return kind in PRODUCTS


def operator_kind(operator: Operator) -> str:
    """Return the kind that shares a price: activations by function, convolutions by how torch computes them."""
    attributes = operator.attributes
    if operator.op in ("Activation", "ReLU"):
        return f"{attributes.get('activation', 'relu')}()"
    if operator.op == "Elementwise":
        return f"{attributes['function']}()"
    if operator.op == "Conv2D":
        groups = attributes.get("groups", 1)
        if groups != 1:
            return "DepthwiseConv2D" if groups == operator.shape[0] else "Conv2D of groups"
        return "Conv2D 1×1" if _window(operator, "kernel") == 1 else "Conv2D"
    return operator.op


def _rows(operator: Operator, layout: Layout) -> list[Row]:
    if operator.op == "InputLayer":
        return []
    moved = float(operator.moved_bytes)
    # Embeddings read only the rows looked up, which ``moved`` counts; constants are read by their users.
    weights = 0.0 if operator.op in ("Embedding", "Constant") else float(operator.weight_bytes)
    terms = (float(operator.calls), float(operator.flops), 0.0 if operator.op == "Constant" else moved, weights)
    rows: list[Row] = [(operator_kind(operator), terms, _features(operator, layout, moved + weights))]
    function = operator.attributes.get("activation")
    if function and operator.op != "Activation":
        values = math.prod(operator.shape)
        shape = _of_rows(operator, [operator.shape])
        features = (*shape, *_sizes(8.0 * values), float(layout.channels_last), 0.0)
        rows.append((f"{function}()", (1.0, float(values), 8.0 * values, 0.0), features))
    return rows


def _features(operator: Operator, layout: Layout, size: float) -> tuple[float, ...]:
    kind, inputs = operator_kind(operator), operator.input_shapes
    shape = _of_product(operator, kind, inputs) if is_product(kind) and inputs else _of_rows(operator, inputs)
    return (*shape, *_sizes(size), float(layout.channels_last), float(layout.reordered))


def _of_rows(operator: Operator, inputs: Sequence[Shape]) -> tuple[float, ...]:
    """Return ``SHAPE_FEATURES`` of an operator that is no product."""
    shape = operator.shape or (1,)
    stretched = float(any(each != operator.shape for each in inputs[:2]))
    window = _log2(_window(operator, "kernel"), 6)
    return (_log2(shape[-1], 11), float(min(len(inputs), 8)), float(len(shape)), 0.0, window, 0.0, 0.0, 0.0, stretched)


def _of_product(operator: Operator, kind: str, inputs: Sequence[Shape]) -> tuple[float, ...]:
    shape, first = operator.shape or (1,), inputs[0] or (1,)
    if operator.op in _CONVOLUTIONS:
        return _of_convolution(operator, kind, first)
    products = 1
    if kind == "ScaledDotProductAttention":
        sums, columns, rows, products = shape[-1], inputs[1][-2], shape[-2], math.prod(shape[:-2])
        special = float(len(inputs) > 3)
    elif kind == "MatMul":
        sums, columns, rows = first[-1], shape[-1], shape[-2] if len(shape) > 1 else 1
        products, special = math.prod(shape[:-2]), 0.0
    else:
        sums, columns, rows = first[-1], shape[-1], math.prod(shape[:-1])
        special = float(rows == 1)
    return (
        *(_log2(sums, 11), _log2(columns, 11), _log2(rows, 14), _log2(products, 10), 0.0, 0.0),
        *(math.log2(lane_padding(columns)), math.log2(lane_padding(sums)), special),
    )


def _of_convolution(operator: Operator, kind: str, first: Shape) -> tuple[float, ...]:
    channels, filters = first[0], operator.shape[0]
    groups = operator.attributes.get("groups", 1)
    window, stride = _window(operator, "kernel"), _window(operator, "stride")
    rows = math.prod(operator.shape[1:])
    if kind == "DepthwiseConv2D":
        sums, columns, special = 1, filters, _log2(math.sqrt(rows), 7)
    else:
        sums, columns = max(1, channels // groups), max(1, filters // groups)
        small = math.prod(first) <= SMALL_IMAGE and window <= SMALL_WINDOW**2
        special = _log2(groups, 7) if groups > 1 else float(small)
    return (
        *(_log2(sums, 11), _log2(columns, 11), _log2(rows, 14), 0.0, _log2(window, 6), _log2(stride, 4)),
        *(math.log2(lane_padding(columns)), math.log2(lane_padding(sums)), special),
    )


def _sizes(moved: float) -> list[float]:
    """Return ``SIZE_FEATURES`` of so many bytes: how far they reach into each tier."""
    kib = math.log2(max(moved / 1024, 1.0))
    return [min(max(kib, low), high) - low for low, high in TIERS]


def _window(operator: Operator, name: str) -> float:
    """Return the area of a window attribute such as 3 or (3, 5)."""
    value = operator.attributes.get(name, 1)
    sides = value if isinstance(value, tuple) else (value, value) if isinstance(value, int) else (1,)
    return float(math.prod(side for side in sides if isinstance(side, int) and side > 0))


def _log2(value: float, most: float) -> float:
    return min(math.log2(max(value, 1.0)), most)
