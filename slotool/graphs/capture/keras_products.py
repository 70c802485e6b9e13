"""Products among ``keras.ops``: of matrices, by subscripts, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from slotool.graphs.capture.keras_call import OUTPUT, Call, Step, Steps
from slotool.graphs.operators import Shape


def product(call: Call) -> Steps:
    """``matmul``; by a fixed matrix it is a dense layer without a bias."""
    if len(call.inputs) != 2:
        return None
    first, second = call.inputs
    if len(second) == 2 and call.fixed[1]:
        return [(OUTPUT, "Dense", {"units": second[1], "bias": False}, (0,))]
    return [(OUTPUT, "MatMul", {}, (0, 1))] if min(len(first), len(second)) > 1 else None


def dot(call: Call) -> Steps:
    """Of the last axis with the first of a fixed matrix."""
    axes = getattr(call.operation, "axes", 1)
    rank = len(call.inputs[0])
    by_last = axes == 1 or [list(_listed(each)) for each in _listed(axes)] in ([[rank], [0]], [[-1], [0]])
    fixed = len(call.inputs) == 2 and call.fixed[1] and len(call.inputs[1]) == 2
    return product(call) if fixed and by_last else None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def einsum(call: Call) -> Steps:
    """Of two arrays: the axes in an order in which it is a product of matrices, several axes as one."""
    subscripts = _without_dots(call)
    if "->" not in subscripts or subscripts.count(",") != len(call.inputs) - 1 or len(call.inputs) > 2:
        return None
    terms, outer = subscripts.split("->")
    if len(call.inputs) == 1:
        return _reordered(call, terms, outer)
    letters = [list(term) for term in terms.split(",")]
    batch = outer[:1]
    for at, own in enumerate(letters):
        if (
            len(set(own)) != len(own)
            or (not call.fixed[at] and own[:1] != [batch])
            or (call.fixed[at] and batch in own)
        ):
            return None
    sizes: dict[str, int] = {}
    letters = [own if fixed else own[1:] for own, fixed in zip(letters, call.fixed, strict=True)]
    for own, shape in zip(letters, call.inputs, strict=True):
        sizes |= dict(zip(own, shape, strict=True))
    left, right, made = *map(list, letters), list(outer[1:])
    both = [each for each in made if each in left and each in right]
    inner = [each for each in left if each in right and each not in made]
    rows = [each for each in made if each in left and each not in right]
    columns = [each for each in made if each in right and each not in left]
    if {*left} != {*both, *rows, *inner} or {*right} != {*both, *inner, *columns}:
        return None

    def whole(part: Sequence[str]) -> int:
        return math.prod(sizes[each] for each in part)

    lead, steps = tuple(sizes[each] for each in both), list[Step]()

    def ordered(name: str, source: str | int, have: list[str], want: list[str], shape: Shape) -> str | int:
        if have != want:
            steps.append((f"{name}.turned", "Transpose", {"axes": tuple(map(have.index, want))}, (source,)))
            source = f"{name}.turned"
        if shape != tuple(sizes[each] for each in want):
            steps.append((f"{name}.joined", "Reshape", {"shape": shape}, (source,)))
            source = f"{name}.joined"
        return source

    one_ = ordered("left", 0, left, both + rows + inner, (*lead, whole(rows), whole(inner)))
    two = ordered("right", 1, right, both + inner + columns, (*lead, whole(inner), whole(columns)))
    steps.append(("product", "MatMul", {}, (one_, two)))
    apart = both + rows + columns
    steps.append(("parted", "Reshape", {"shape": tuple(sizes[each] for each in apart)}, ("product",)))
    steps.append((OUTPUT, "Transpose", {"axes": tuple(map(apart.index, made))}, ("parted",)))
    return steps


def _without_dots(call: Call) -> str:
    """The subscripts with a letter for each axis that dots stand for."""
    subscripts: str = call.operation.subscripts.replace(" ", "")
    terms, arrow, outer = subscripts.partition("->")
    for term, shape, fixed in zip(terms.split(","), call.inputs, call.fixed, strict=False):
        if "..." in term:
            more = len(shape) + (not fixed) - len(term) + 3
            spare = "".join(each for each in ascii_uppercase if each not in subscripts)[:more]
            return (terms + arrow + outer).replace("...", spare)
    return subscripts


def _reordered(call: Call, inner: str, outer: str) -> Steps:
    """Of one array: what is summed, then the order of the rest."""
    if inner[:1] != outer[:1] or len(set(inner)) != len(inner) or not set(outer) <= set(inner):
        return None
    summed = tuple(at for at, each in enumerate(inner[1:]) if each not in outer)
    left = [each for each in inner[1:] if each in outer]
    steps: list[Step] = [("sum", "Sum", {"axes": summed}, (0,))] if summed else []
    axes = tuple(map(left.index, outer[1:]))
    return [*steps, (OUTPUT, "Transpose", {"axes": axes}, ("sum" if steps else 0,))]


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
