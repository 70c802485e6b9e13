"""TensorFlow's operations that read and write by places: gathering, scattering, sums of groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.graphs.capture.tensorflow_values import axes_of, tensor


def _gathered(op: Any, value: Any, rows: Any, axis: Any) -> Any:
    value, at, shared = tensor(value), int(axis), int(op.get_attr("batch_dims"))
    at %= value.ndim
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        return value.select(at, int(rows))
    rows = tensor(rows)
    if shared:
        return _gathered_of_each(value, rows, at, shared)
    if value.ndim == 2 and at == 0:
        return functional.embedding(rows, value)
    flat = value.index_select(at, rows.reshape(-1))
    return flat.reshape(*value.shape[:at], *rows.shape, *value.shape[at + 1 :])


def _gathered_of_each(value: Tensor, rows: Tensor, axis: int, shared: int) -> Tensor:
    """Where the first ``shared`` axes have rows of their own."""
    lead, between, after = value.shape[:shared], value.shape[shared:axis], value.shape[axis + 1 :]
    count = math.prod(rows.shape[shared:])
    index = rows.reshape(*lead, *(1 for _ in between), count, *(1 for _ in after))
    found = torch.gather(value, axis, index.long().expand(*lead, *between, count, *after))
    return found.reshape(*lead, *between, *rows.shape[shared:], *after)


def _gathered_at(op: Any, value: Any, places: Any) -> Tensor:
    places = tensor(places).long()
    found: Tensor = tensor(value)[tuple(places[..., at] for at in range(places.shape[-1]))]
    return found


def _embedded(op: Any, table: Any, rows: Any) -> Tensor:
    return functional.embedding(tensor(rows), tensor(table))


def _scattered(op: Any, places: Any, updates: Any, shape: Any) -> Tensor:
    return _summed_at(torch.zeros(axes_of(shape), dtype=tensor(updates).dtype), places, updates)


def _summed_at(whole: Tensor, places: Any, updates: Any) -> Tensor:
    places = tensor(places).long()
    return whole.index_put(tuple(places[..., at] for at in range(places.shape[-1])), tensor(updates), accumulate=True)


def _put_at(op: Any, value: Any, places: Any, updates: Any) -> Tensor:
    places = tensor(places).long()
    return tensor(value).index_put(tuple(places[..., at] for at in range(places.shape[-1])), tensor(updates))


def _by_group(kind: str) -> Callable[..., Tensor]:
    """The sum, the greatest … of the rows of every group."""

    def reduced(op: Any, value: Any, groups: Any, count: Any) -> Tensor:
        value, groups = tensor(value), tensor(groups)
        rows = value.reshape(-1, *value.shape[groups.ndim :])
        whole = torch.zeros(int(count), *rows.shape[1:], dtype=value.dtype)
        places = groups.reshape(-1, *(1,) * (rows.ndim - 1)).long().expand(rows.shape)
        # Not index_add and index_put, of which torch maps no groups that differ by example.
        if kind == "sum":
            return whole.scatter_add(0, places, rows)
        return whole.scatter_reduce(0, places, rows, kind, include_self=False)

    return reduced


def _written(op: Any, value: Any, update: Any, start: Any) -> Any:
    """A part of a tensor written anew, as ``slice_update``."""
    value, update = tensor(value), tensor(update)
    for axis, first in enumerate(axes_of(start)):
        if update.shape[axis] != value.shape[axis]:
            index = torch.arange(first, first + update.shape[axis])
            return value.index_copy(axis, index, update)
    return update


PLACES: dict[str, Callable[..., Any]] = {
    "GatherV2": _gathered,
    "GatherNd": _gathered_at,
    "ResourceGather": _embedded,
    "ScatterNd": _scattered,
    "TensorScatterAdd": lambda op, value, places, updates: _summed_at(tensor(value), places, updates),
    "TensorScatterUpdate": _put_at,
    **{
        name.format(kind): _by_group(torchs)
        for name in ("UnsortedSegment{}", "Segment{}V2")
        for kind, torchs in (("Sum", "sum"), ("Max", "amax"), ("Min", "amin"), ("Prod", "prod"))
    },
    "XlaDynamicUpdateSlice": _written,
}
