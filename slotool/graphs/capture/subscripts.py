"""Products by subscripts, as ``einsum`` has them, as products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_uppercase

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps
from slotool.graphs.operators import Shape


def contraction(subscripts: str, inputs: Sequence[Shape], fixed: Sequence[bool]) -> Steps:
    """Steps of ``einsum`` of one array or two, whose shapes are without the batch, their first axis; those that are
    ``fixed`` have none. Of two the axes are brought in an order in which it is a product of matrices, several axes as
    one. None where it is no such product."""
    subscripts = _without_dots(subscripts.replace(" ", ""), inputs, fixed)
    if "->" not in subscripts or subscripts.count(",") != len(inputs) - 1 or len(inputs) > 2:
        return None
    terms, outer = subscripts.split("->")
    if len(inputs) == 1:
        return _reordered(terms, outer)
    letters = [list(term) for term in terms.split(",")]
    batch, steps, sources = outer[:1], list[Step](), list[str | int]([0, 1])
    inputs = list(inputs)
    for at, own in enumerate(letters):
        if fixed[at] and batch in own and len(own) == len(inputs[at]) and inputs[at][own.index(batch)] == 1:
            # What is the same for every example has one of them.
            inputs[at] = tuple(size for each, size in zip(own, inputs[at], strict=True) if each != batch)
            own.remove(batch)
            steps.append((f"alone_{at}", "Reshape", {"shape": inputs[at]}, (at,)))
            sources[at] = f"alone_{at}"
    for at, own in enumerate(letters):
        leads = batch not in own if fixed[at] else own[:1] == [batch]
        if len(set(own)) != len(own) or not leads:
            return None
    sizes: dict[str, int] = {}
    letters = [own if same else own[1:] for own, same in zip(letters, fixed, strict=True)]
    for own, shape in zip(letters, inputs, strict=True):
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

    lead = tuple(sizes[each] for each in both)

    def ordered(name: str, source: str | int, have: list[str], want: list[str], shape: Shape) -> str | int:
        if have != want:
            steps.append((f"{name}.turned", "Transpose", {"axes": tuple(map(have.index, want))}, (source,)))
            source = f"{name}.turned"
        if shape != tuple(sizes[each] for each in want):
            steps.append((f"{name}.joined", "Reshape", {"shape": shape}, (source,)))
            source = f"{name}.joined"
        return source

    one_ = ordered("left", sources[0], left, both + rows + inner, (*lead, whole(rows), whole(inner)))
    two = ordered("right", sources[1], right, both + inner + columns, (*lead, whole(inner), whole(columns)))
    apart = both + rows + columns
    parted = tuple(sizes[each] for each in apart)
    last: list[Step] = [("product", "MatMul", {}, (one_, two))]
    if parted != (*lead, whole(rows), whole(columns)):
        last.append(("parted", "Reshape", {"shape": parted}, ("product",)))
    if apart != made:
        last.append(("turned", "Transpose", {"axes": tuple(map(apart.index, made))}, (last[-1][0],)))
    return [*steps, *last[:-1], (OUTPUT, *last[-1][1:])]


def axis_after(subscripts: str, term: int, axis: int) -> int | None:
    """Where an axis of one of the arrays is in what ``einsum`` makes; None where it is not."""
    terms, _, outer = subscripts.replace(" ", "").partition("->")
    own = terms.split(",")[term]
    if "." in own[: axis + 3]:
        # What dots stand for is where they are; of the first axis no more is asked.
        return 0 if axis == 0 and own.startswith(".") and outer.startswith(".") else None
    return outer.index(own[axis]) if own[axis] in outer else None


def batch_first(subscripts: str, axes: Sequence[int | None], made: int) -> str:
    """The subscripts of the same arrays with the batch, which is at these ``axes``, as their first axis, and at
    ``made`` as that of what they make. None is an array without a batch."""
    if "." in subscripts or "->" not in subscripts:
        return subscripts
    terms, outer = subscripts.replace(" ", "").split("->")
    turned = [_first(term, axis) for term, axis in zip(terms.split(","), axes, strict=False)]
    return f"{','.join(turned)}->{_first(outer, made)}"


def _first(term: str, axis: int | None) -> str:
    return term if axis is None else term[axis] + term[:axis] + term[axis + 1 :]


def _without_dots(subscripts: str, inputs: Sequence[Shape], fixed: Sequence[bool]) -> str:
    """The subscripts with a letter for each axis that dots stand for."""
    terms, arrow, outer = subscripts.partition("->")
    for term, shape, same in zip(terms.split(","), inputs, fixed, strict=False):
        if "..." in term:
            more = len(shape) + (not same) - len(term) + 3
            spare = "".join(each for each in ascii_uppercase if each not in subscripts)[:more]
            return (terms + arrow + outer).replace("...", spare)
    return subscripts


def _reordered(inner: str, outer: str) -> Steps:
    """Of one array: what is summed, then the order of the rest."""
    if inner[:1] != outer[:1] or len(set(inner)) != len(inner) or not set(outer) <= set(inner):
        return None
    summed = tuple(at for at, each in enumerate(inner[1:]) if each not in outer)
    left = [each for each in inner[1:] if each in outer]
    steps: list[Step] = [("sum", "Sum", {"axes": summed}, (0,))] if summed else []
    axes = tuple(map(left.index, outer[1:]))
    return [*steps, (OUTPUT, "Transpose", {"axes": axes}, ("sum" if steps else 0,))]
