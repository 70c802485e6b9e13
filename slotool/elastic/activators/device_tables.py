"""The look-ups of an activator on a device: from a layer's inputs to the ranked lists of nodes, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.gpu_kernels import has_kernels
from slotool.elastic.activators.mlp import DenseLayer
from slotool.elastic.activators.quantization import INPUT_STEPS, MIN_SPREAD
from slotool.elastic.activators.rankers.clusters import Clusters
from slotool.elastic.activators.rankers.freehash import FreeHash
from slotool.elastic.activators.rankers.mongoose import Mongoose
from slotool.elastic.activators.rankers.random_order import RandomOrder
from slotool.elastic.device_layers import DeviceLayer
from slotool.transfers import Link


class NodeRows(NamedTuple):
    """Which nodes each input computes: the first of ``rows[which]``, or of ``rows`` in order where ``which`` is None.
    ``rows``: int64 [r, k or more], no node twice in a row; ``which``: int64 [n]."""

    rows: Tensor
    which: Tensor | None

    def first(self, count: int) -> Tensor:
        """int64 [n, count]."""
        heads = self.rows[:, :count]
        return heads if self.which is None else heads[self.which]


class DeviceTables:
    """One activator's look-ups; a plugin's ranker, which has no form here, finds its keys on the CPU, for which the
    host waits. Raises ``InputError`` where lists or ranker are not of ``layer``: what they say are addresses here."""

    def __init__(self, layer: DenseLayer, activator: Activator, own: DeviceLayer, link: Link):
        activator.check(layer)
        ranker, lists = activator.ranker, activator.lists
        self._layer, self._ranker, self._link = layer, ranker, link
        self._keys = next((make(ranker, own, link) for kind, make in _KEYS.items() if isinstance(ranker, kind)), None)
        arrays = (lists.slots, lists.lists, lists.overall, ranker.computed_nodes)
        self._slots, self._lists, self._overall, self._needed = (
            link.to_device(array.astype(np.int64)) for array in arrays
        )
        self._numbers = torch.arange(len(lists.slots), device=link.device)

    @property
    def on_device(self) -> bool:
        """Whether keys are found there."""
        return self._keys is not None

    def buckets(self, x: Tensor) -> Tensor:
        """int64 [n, tables]: rows of the lists, for ``x`` float32 [n, inputs]."""
        if self._keys is None:
            keys = self._link.to_device(self._ranker.keys(self._layer, self._link.to_host(x)[0]))
        else:
            keys = self._keys(x)
        return self._slots[self._numbers, keys]

    def nodes(self, x: Tensor, count: int) -> NodeRows:
        """Of which the first ``count`` are those of ``NodeLists.ranked``."""
        buckets = self.buckets(x)
        if buckets.shape[1] == 1 and self._lists.shape[1] >= count and not len(self._needed):
            return NodeRows(self._lists, buckets[:, 0])
        interleaved = self._lists[:, :count][buckets].transpose(1, 2).flatten(1)
        first, rest = (part.expand(len(x), -1) for part in (self._needed, self._overall[:count]))
        return NodeRows(first_distinct(torch.cat([first, interleaved, rest], dim=1), count), None)


def first_distinct(nodes: Tensor, count: int) -> Tensor:
    """int64 [n, count]: the first ``count`` different numbers of each row, in their order; there must be so many."""
    ordered, order = nodes.sort(dim=1, stable=True)
    new = torch.ones_like(nodes, dtype=torch.bool)
    new.scatter_(1, order[:, 1:], ordered[:, 1:] != ordered[:, :-1])
    # Those that are not wanted all go to one place behind: a mask would have the host wait to count them.
    places = torch.where(new, new.cumsum(dim=1) - 1, count).clamp_max(count)
    return nodes.new_empty(len(nodes), count + 1).scatter_(1, places, nodes)[:, :count]


def _hashed(ranker: FreeHash, layer: DeviceLayer, link: Link) -> Callable[[Tensor], Tensor]:
    needed, positions, thresholds = map(link.to_device, (ranker.computed_nodes, ranker.positions, ranker.thresholds))
    places = 1 << torch.arange(positions.shape[1], device=link.device)
    return lambda x: ((layer.of_nodes(x, needed)[:, positions] > thresholds) * places).sum(dim=2)


def _clustered(ranker: Clusters, layer: DeviceLayer, link: Link) -> Callable[[Tensor], Tensor]:
    coarse, coarse_scale, coarse_offset, fine, fine_scale, fine_offset = (
        link.to_device(array.astype(np.float32))
        for array in (
            ranker.coarse,
            ranker.coarse_scale,
            ranker.coarse_offset,
            ranker.fine,
            ranker.fine_scale,
            ranker.fine_offset,
        )
    )

    coarse_sums, fine_sums = coarse.sum(dim=1), fine.sum(dim=2)
    if has_kernels(link):
        from slotool.elastic.activators.lookup_kernels import MAX_CENTROIDS, nearest_clusters

        if max(fine.shape[:2]) <= MAX_CENTROIDS:
            both = (coarse, coarse_sums, coarse_scale, coarse_offset), (fine, fine_sums, fine_scale, fine_offset)
            return lambda x: nearest_clusters(x, *both)

    def keys(x: Tensor) -> Tensor:
        steps, step, least = _quantized(x)
        near = ((steps @ coarse.T * step + least * coarse_sums) * coarse_scale + coarse_offset).argmax(dim=1)
        products = torch.bmm(fine[near], steps[:, :, None])[:, :, 0]
        within = (products * step + least * fine_sums[near]) * fine_scale[near] + fine_offset[near]
        return (near * fine.shape[1] + within.argmax(dim=1))[:, None]

    return keys


def _projected(ranker: Mongoose, layer: DeviceLayer, link: Link) -> Callable[[Tensor], Tensor]:
    projections, thresholds = map(link.to_device, (ranker.projections.astype(np.float32), ranker.thresholds))
    places = 1 << torch.arange(thresholds.shape[1], device=link.device)
    rows = projections.flatten(0, 1)
    return lambda x: (((x @ rows.T).view(len(x), *thresholds.shape) > thresholds) * places).sum(dim=2)


def _in_one_bucket(ranker: RandomOrder, layer: DeviceLayer, link: Link) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.zeros((len(x), 1), dtype=torch.int64, device=x.device)


def _quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ``quantization.quantized_inputs``."""
    least, most = x.amin(dim=1, keepdim=True).clamp_max(0), x.amax(dim=1, keepdim=True).clamp_min(0)
    spread = most - least
    enough = spread > float(MIN_SPREAD)
    per_step = torch.where(enough, float(INPUT_STEPS) / spread, 0.0)
    steps = ((x - least) * per_step + 0.5).floor_()
    return steps, torch.where(enough, spread / float(INPUT_STEPS), 0.0), least


_KEYS: dict[type, Callable[[Any, DeviceLayer, Link], Callable[[Tensor], Tensor]]] = {
    FreeHash: _hashed,
    Clusters: _clustered,
    Mongoose: _projected,
    RandomOrder: _in_one_bucket,
}
