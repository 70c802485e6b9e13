"""Products among ``keras.ops``: of matrices, by subscripts, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps
from slotool.graphs.capture.keras.call import Call
from slotool.graphs.capture.subscripts import contraction


def product(call: Call) -> Steps:
    """``matmul``; by a fixed matrix it is a dense layer without a bias."""
    if len(call.inputs) != 2:
        return None
    first, second = call.inputs
    if len(second) == 2 and call.fixed[1]:
        return [(OUTPUT, "Dense", {"units": second[1], "bias": False}, (0,))]
    if len(second) == 1 and call.fixed[1] and call.shape:
        return [
            ("product", "Dense", {"units": 1, "bias": False}, (0,)),
            (OUTPUT, "Reshape", {"shape": call.shape}, ("product",)),
        ]
    return [(OUTPUT, "MatMul", {}, (0, 1))] if min(len(first), len(second)) > 1 else None


def dot(call: Call) -> Steps:
    """Of the last axis with the first of a fixed matrix."""
    axes = getattr(call.operation, "axes", 1)
    rank = len(call.inputs[0])
    by_last = axes == 1 or [list(_listed(each)) for each in _listed(axes)] in ([[rank], [0]], [[-1], [0]])
    fixed = len(call.inputs) == 2 and call.fixed[1] and len(call.inputs[1]) <= 2
    return product(call) if fixed and by_last else None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def einsum(call: Call) -> Steps:
    return contraction(call.operation.subscripts, call.inputs, call.fixed)


def attention(call: Call) -> Steps:
    """``dot_product_attention`` of (steps, heads, features), without a mask of its own."""
    if len(call.inputs) != 3 or any(len(each) != 3 for each in call.inputs):
        return None
    turned: list[Step] = [(f"part{at}", "Transpose", {"axes": (1, 0, 2)}, (at,)) for at in range(3)]
    causal: dict[str, Any] = {"causal": True} if call.operation.is_causal else {}
    return [
        *turned,
        ("attention", "ScaledDotProductAttention", causal, ("part0", "part1", "part2")),
        (OUTPUT, "Transpose", {"axes": (1, 0, 2)}, ("attention",)),
    ]
