"""Loops, branches and lists of TensorFlow's graphs: what of them is known before a run is taken step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool.errors import GraphError
from slotool.graphs.capture.tensorflow_mapped import Rows, map_rows, rows_of
from slotool.graphs.capture.tensorflow_values import dtype_of, tensor

# A loop of more steps is not taken.
MAX_STEPS = 4096


def _looped(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """A loop whose end no input decides, once for each step."""
    values, condition, body = list(inputs), op.get_attr("cond").name, op.get_attr("body").name
    mapped = map_rows(run, values, condition, body)
    if mapped is not None:
        return mapped
    for _ in range(MAX_STEPS):
        (goes_on,) = run.inner(condition, values)
        if isinstance(goes_on, Tensor):
            raise GraphError("a loop whose end the input decides")
        if not goes_on:
            return values
        values = run.inner(body, values)
    raise GraphError(f"a loop of over {MAX_STEPS} steps")


def _chosen(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """One of two branches; where the input decides, that which costs more, as torch's counter of FLOPs has it."""
    which, *given = inputs
    names = [op.get_attr("then_branch").name, op.get_attr("else_branch").name]
    if isinstance(which, Tensor):
        return _costliest(run, names, given)
    return list(run.inner(names[0] if which else names[1], given))


def _switched(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """One of several branches by its number, the last for any other; as ``_chosen``."""
    which, *given = inputs
    names = [each.name for each in op.get_attr("branches")]
    if isinstance(which, Tensor):
        return _costliest(run, names, given)
    return list(run.inner(names[int(which) if 0 <= int(which) < len(names) else -1], given))


def _costliest(run: Any, names: Sequence[str], given: Sequence[Any]) -> Sequence[Any]:
    before, ways = run.module.cost, []
    for name in names:
        run.module.cost = 0
        ways.append((list(run.inner(name, given)), run.module.cost))
    found, cost = max(ways, key=lambda way: way[1])
    run.module.cost = before + cost
    return found


def _list_of_size(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return [[None] * int(inputs[1])]


def _list_of_rows(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return [Rows(tensor(inputs[0]))]


def _list_put(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    held, at, value = inputs
    held = rows_of(held)
    return [[*held[: int(at)], value, *held[int(at) + 1 :]]]


def _list_taken(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    held, at, shape = inputs
    found = held.taken(int(at)) if isinstance(held, Rows) else held[int(at)]
    if found is None:
        sizes = [int(size) for size in np.array(shape).reshape(-1)]
        found = torch.zeros(sizes, dtype=dtype_of(op.get_attr("element_dtype")))
    return [found]


def _list_stacked(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    (held, *_) = inputs
    return [held.whole if isinstance(held, Rows) else torch.stack([tensor(each) for each in held])]


def _list_length(run: Any, op: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return [np.int32(len(inputs[0]))]


CONTROL: dict[str, Callable[[Any, Any, Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(("While", "StatelessWhile"), _looped),
    **dict.fromkeys(("If", "StatelessIf"), _chosen),
    **dict.fromkeys(("Case", "StatelessCase"), _switched),
    **dict.fromkeys(("TensorListReserve",), _list_of_size),
    "TensorListFromTensor": _list_of_rows,
    "TensorListSetItem": _list_put,
    "TensorListGetItem": _list_taken,
    "TensorListStack": _list_stacked,
    "TensorListLength": _list_length,
}
