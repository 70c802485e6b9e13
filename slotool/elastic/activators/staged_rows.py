"""A batch of queries in arrays of few shapes, so that calls of about as many queries are the same to a CUDA graph."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool.elastic.device_layers import DeviceLayer

# There is always room for so many entries of CSR.
MIN_ENTRIES = 64


@dataclass(frozen=True)
class StagedRows:
    """``rows``: float32 [n, inputs] or CSR. ``queries`` is n or more, ``entries`` of CSR what ``rows`` holds or more:
    powers of two. What is added is empty, and its answers are nobody's."""

    rows: Any
    queries: int
    entries: int

    @classmethod
    def of(cls, rows: Any) -> StagedRows:
        entries = 0 if isinstance(rows, np.ndarray) else _power_of_two(max(MIN_ENTRIES, int(rows.indptr[-1])))
        return cls(rows, _power_of_two(rows.shape[0]), entries)

    @property
    def sparse(self) -> bool:
        return self.entries > 0

    @property
    def kind(self) -> Hashable:
        """Staged rows of the same one have the same shapes."""
        return self.queries, self.entries

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Of CSR one array, which one copy takes to the device: where rows start, features, bits of the values."""
        if self.sparse:
            return [((self.queries + 1 + 2 * self.entries,), torch.int32)]
        return [((self.queries, self.rows.shape[1]), torch.float32)]

    def fill(self, place: np.ndarray) -> None:
        """Write the rows to an array of the host."""
        rows, count = self.rows, self.rows.shape[0]
        if not self.sparse:
            place[:count] = rows
            place[count:] = 0
            return
        end, (starts, features, values) = int(rows.indptr[-1]), self._parts(place)
        starts[: count + 1] = rows.indptr
        starts[count + 1 :] = end
        features[:end] = rows.indices[:end]
        values.view(np.float32)[:end] = rows.data[:end]

    def entered(self, first: DeviceLayer, place: Tensor) -> Tensor:
        """float32 [queries, units]: the rows on the device, of CSR behind the ``first`` layer."""
        if not self.sparse:
            return place
        from slotool.elastic.activators.lookup_kernels import hidden_of_rows

        starts, features, values = self._parts(place)
        return hidden_of_rows(starts, features, values.view(torch.float32), first.columns, first.bias)

    def _parts(self, place: Any) -> tuple[Any, Any, Any]:
        begin = self.queries + 1
        return place[:begin], place[begin : begin + self.entries], place[begin + self.entries :]


def _power_of_two(count: int) -> int:
    """The least that is not below ``count``."""
    return 1 << (count - 1).bit_length()
