"""The best labels of an SLO-NN's output layer on a GPU in one launch, where that is quicker than PyTorch's several.

Which is quicker is measured on the device itself, once for each number of nodes, labels and about so many queries.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from slotool.elastic.activators.device_tables import NodeRows
from slotool.elastic.activators.gpu_kernels import has_kernels
from slotool.elastic.device_layers import DeviceLayer
from slotool.transfers import Link

# What one program of the kernel holds: nodes of a query, and labels that are taken from them one after another.
MAX_NODES, MAX_LABELS = 4_096, 64
# Calls of each before it is timed, and those timed, of which the median counts.
WARM_UP_CALLS, TIMED_CALLS = 3, 10

Best = tuple[Tensor, Tensor]


class OutputLayer:
    """Chooses between the kernel and PyTorch; without a GPU, or without the package triton, there is no kernel."""

    def __init__(self, layer: DeviceLayer, link: Link):
        self._layer, self._link = layer, link
        self._has_kernel = has_kernels(link) and not layer.is_sparse
        self._is_quicker: dict[tuple[int, int, int], bool] = {}

    def best(self, x: Tensor, nodes: NodeRows, count: int, p: int) -> Best | None:
        """The ``p`` best labels, int32 [n, p], of the first ``count`` nodes of each of ``x``, float32 [n, inputs], and
        their scores, float32 [n, p]; label −1 at −inf where there are fewer. None where PyTorch is to find them."""
        if not self._has_kernel or count > MAX_NODES or p > MAX_LABELS or not len(x):
            return None
        key = (len(x).bit_length(), count, p)
        if key not in self._is_quicker:
            self._is_quicker[key] = self._measured(x, nodes, count, p)
        return self._by_kernel(x, nodes, count, p) if self._is_quicker[key] else None

    def _measured(self, x: Tensor, nodes: NodeRows, count: int, p: int) -> bool:
        """Whether the kernel is quicker. Its first call compiles it."""
        by_kernel = _seconds(lambda: self._by_kernel(x, nodes, count, p), self._link)
        return by_kernel < _seconds(lambda: by_gathering(self._layer, x, nodes, count, p), self._link)

    def _by_kernel(self, x: Tensor, nodes: NodeRows, count: int, p: int) -> Best:
        from slotool.elastic.activators.output_kernel import best_of_rows

        with torch.cuda.device(self._link.device):
            return best_of_rows(x, self._layer.weights, self._layer.bias, nodes, count, p)


def by_gathering(layer: DeviceLayer, x: Tensor, nodes: NodeRows, count: int, p: int) -> Best:
    """The same by PyTorch: what the kernel is measured against."""
    computed = nodes.first(count)
    scores, places = layer.of_own_nodes(x, computed).topk(min(p, count), dim=1)
    return computed.gather(1, places).to(torch.int32), scores


def _seconds(call: Callable[[], object], link: Link) -> float:
    """Of one call, by the clock of the device."""
    with torch.cuda.device(link.device):
        for _ in range(WARM_UP_CALLS):
            call()
        spent_ms: list[float] = []
        for _ in range(TIMED_CALLS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            spent_ms.append(begin.elapsed_time(end))
    return median(spent_ms) / 1e3
