"""Work and shape of operators as numbers, by type of operator, for pricing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import MEASURES, OperatorArrays, measures_of
from slotool.graphs.graph import MATRIX_OPERATORS
from slotool.graphs.operators import Shape
from slotool.predictors.features.type_costs import operator_type

OPERATOR_TERMS = ("calls", "flops", "moved_bytes", "weight_bytes")
# For products, in log2: length of sums, columns and rows of the output, number of products, window, stride. For others:
# length of rows, number of inputs, rank, window, and whether an input is broadcast.
OPERATOR_FEATURES = ("sum", "columns", "rows", "products", "window", "stride")
_KERNEL, _STRIDE = MEASURES.index("kernel"), MEASURES.index("stride")
# Type, terms and features of an operator.
Row = tuple[str, tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class OperatorTerms:
    """Work of n operators of networks, as references to d distinct ones.

    Distinct operators: ``kinds`` str [d], ``terms`` float64 [d, ``OPERATOR_TERMS``], ``features`` float64 [d,
    ``OPERATOR_FEATURES``]. Operators of networks: ``rows`` int64 [n], the distinct operator; ``owners`` int64 [n], the
    graph; ``operators`` int64 [n], the number in the graph.

    An activation that is an attribute of a layer has a row too, with that layer's number.
    """

    kinds: np.ndarray
    terms: np.ndarray
    features: np.ndarray
    rows: np.ndarray
    owners: np.ndarray
    operators: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> OperatorTerms:
        """Describe the operators of ``graphs``."""
        operators = OperatorArrays.of(graphs)
        numbers_of: dict[Row, int] = {}
        rows_of = [[numbers_of.setdefault(row, len(numbers_of)) for row in _rows(each)] for each in operators.distinct]
        rows = np.array(list(chain.from_iterable(map(rows_of.__getitem__, operators.rows.tolist()))), dtype=np.int64)
        at = np.repeat(np.arange(len(operators.rows)), operators.each([len(numbers) for numbers in rows_of]))
        owners, begins = operators.owners[at], np.cumsum(operators.sizes) - operators.sizes
        kinds, terms, features = zip(*numbers_of, strict=True) if numbers_of else ((), (), ())
        return cls(
            kinds=np.array(kinds, dtype=object),
            terms=np.array(terms, dtype=np.float64).reshape(-1, len(OPERATOR_TERMS)),
            features=np.array(features, dtype=np.float64).reshape(-1, len(OPERATOR_FEATURES)),
            rows=rows,
            owners=owners,
            operators=at - begins[owners],
        )


def is_product(kind: str) -> bool:
    """True for types of matrix products and convolutions."""
    return kind.partition(" ")[0] in MATRIX_OPERATORS


def _rows(operator: Operator) -> list[Row]:
    if operator.op == "InputLayer":
        return []
    kind, inputs, moved = operator_type(operator), operator.input_shapes, float(operator.moved_bytes)
    # Embeddings read only the rows looked up, which ``moved`` counts; constants are read by their users.
    weights = 0.0 if operator.op in ("Embedding", "Constant") else float(operator.weight_bytes)
    terms = (float(operator.calls), float(operator.flops), 0.0 if operator.op == "Constant" else moved, weights)
    shape = _of_product(operator, inputs) if is_product(kind) and inputs else _of_rows(operator, inputs)
    rows: list[Row] = [(kind, terms, shape)]
    function = operator.attributes.get("activation")
    if function and operator.op != "Activation":
        values = math.prod(operator.shape)
        terms = (1.0, float(values), 8.0 * values, 0.0)
        rows.append((f"{function}()", terms, _of_rows(operator, [operator.shape])))
    return rows


def _of_rows(operator: Operator, inputs: Sequence[Shape]) -> tuple[float, ...]:
    """Return ``OPERATOR_FEATURES`` of an operator that is no product."""
    shape = operator.shape or (1,)
    stretched = float(any(each != operator.shape for each in inputs[:2]))
    window = _log2(measures_of(operator)[_KERNEL], 6)
    return _log2(shape[-1], 11), float(min(len(inputs), 8)), float(len(shape)), 0.0, window, stretched


def _of_product(operator: Operator, inputs: Sequence[Shape]) -> tuple[float, ...]:
    shape, first = operator.shape or (1,), inputs[0] or (1,)
    sums, columns, rows, products = first[-1], shape[-1], math.prod(shape[:-1]), 1
    window, stride = (measures_of(operator)[at] for at in (_KERNEL, _STRIDE))
    if "Conv" in operator.op:
        groups = operator.attributes.get("groups", 1)
        sums = 1 if operator.op == "DepthwiseConv2D" else max(1, first[0] // groups)
        columns, rows = max(1, shape[0] // groups), math.prod(shape[1:])
    elif operator.op in ("MatMul", "ScaledDotProductAttention"):
        sums, columns = (first[-1], shape[-1]) if operator.op == "MatMul" else (shape[-1], inputs[1][-2])
        rows, products = shape[-2] if len(shape) > 1 else 1, math.prod(shape[:-2])
    amounts = (sums, columns, rows, products, window, stride)
    return tuple(_log2(amount, most) for amount, most in zip(amounts, (11, 11, 14, 10, 6, 4), strict=True))


def _log2(value: float, most: float) -> float:
    return min(math.log2(max(value, 1.0)), most)
