"""Loops of TensorFlow's that do the same to each example, as ``tf.map_fn``: one call for all examples at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from slotool.errors import GraphError
from slotool.llvm import without_late_triton


class Rows(list[Any]):
    """A list of tensors that are the rows of one, ``whole``."""

    def __init__(self, whole: Tensor):
        super().__init__([None] * len(whole))
        self.whole = whole

    def taken(self, at: int) -> Any:
        return self.whole.select(0, at)


class _Row(Rows):
    """Of all rows that of the example at hand, which is the first."""

    def __init__(self, row: Tensor, count: int):
        list.__init__(self, [None] * count)
        self._row = row

    def taken(self, at: int) -> Any:
        if at:
            raise GraphError("a loop over examples that reads another example's row")
        return self._row


def rows_of(held: Sequence[Any]) -> Sequence[Any]:
    """A list as its tensors."""
    return [held.taken(at) for at in range(len(held))] if isinstance(held, Rows) else held


def map_rows(run: Any, values: Sequence[Any], condition: str, body: str) -> list[Any] | None:
    """What a loop over the examples of a batch gives where each step reads its own example's row and writes one: its
    body once, over all. None for any other loop."""
    rows = {at: value.whole for at, value in enumerate(values) if isinstance(value, Rows)}
    if not rows or {len(whole) for whole in rows.values()} != {run.module.batch}:
        return None
    count, after = run.module.batch, list[Any]()

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        one = list(values)
        for at, row in zip(rows, given, strict=True):
            one[at] = _Row(row, count)
        after[:] = run.inner(body, one)
        for at, made in enumerate(after):
            after[at] = _after(one[at], made, count)
        return tuple(each for each in after if isinstance(each, Tensor))

    try:
        # As a program of its own, for torch.export keeps the calls of a vmap that mark its batch.
        with without_late_triton():
            program = make_fx(torch.vmap(step, randomness="different"))(*rows.values())
        written = iter(program(*rows.values()))
        found = [Rows(next(written)) if isinstance(each, Tensor) else each for each in after]
        found = [value if each is _SAME else each for each, value in zip(found, values, strict=True)]
        ends = not run.inner(condition, found)[0]
    except (RuntimeError, ValueError, TypeError, IndexError, GraphError):
        # What is no such loop, or of operations that torch cannot map; its steps are then run one by one.
        return None
    return found if ends else None


_SAME = object()


def _after(before: Any, made: Any, count: int) -> Any:
    """What all steps make of a value of which the first makes ``made``: of a list the row that is written, of a number
    its end. Raises ``GraphError`` for what one step hands to the next."""
    if made is before:
        return _SAME
    if isinstance(before, np.ndarray | np.generic) and np.issubdtype(before.dtype, np.integer):
        return np.asarray(before + (made - before) * count, dtype=before.dtype)
    if isinstance(made, list) and isinstance(made[0], Tensor) and all(each is None for each in [*before, *made[1:]]):
        return made[0]
    raise GraphError("a loop whose steps depend on each other")
