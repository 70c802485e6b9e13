"""An SLO-aware network answered by PyTorch on any device: look-ups, ranked lists and gathered products of a batch.

The compiled calls of ``kernels`` are for one query at a time on a CPU. Here every step is a tensor operation over the
whole batch, so that a CUDA device can take it; on a CPU it gives the same answers, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.input_errors import check_rows
from slotool.elastic.activators.mlp import DenseLayer
from slotool.elastic.activators.quantization import INPUT_STEPS, MIN_SPREAD
from slotool.elastic.activators.rankers.clusters import Clusters
from slotool.elastic.activators.rankers.freehash import FreeHash
from slotool.elastic.activators.tabulated import TabulatedNetwork
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.tables import OperatingPoint

# Rows gathered at a time.
CHUNK_BYTES = 256 << 20
# To gather a row for one query takes as long as so many queries' shares of it in a product over all rows.
DOTS_PER_GATHERED_ROW = 16


class DeviceSloNN(ElasticModel):
    """``model`` on a PyTorch device, with its points, tables and calibration; weights are float32 there.

    An int8 model's answers are those of ``model.at_int8(False)``: int8 saves a CPU's caches. Raises ``InputError`` for
    a device that PyTorch does not have here.
    """

    def __init__(self, model: TabulatedNetwork, device: str):
        if not model.mlp.dense:
            raise InputError(f"{model.name} has convolutions; it runs on the CPU only, not on {device}")
        self.device = _device(device)
        self.model = model.at_int8(False)
        self.name, self.input_shape, self.classes = model.name, model.input_shape, model.classes
        self.points, self.sparse = model.points, model.sparse
        self._layers = [
            _Layer(layer.view, model.activators.get(at), model.shares, self.device)
            for at, layer in enumerate(model.mlp.layers)
        ]
        self._means = torch.from_numpy(model.confidence.means).to(self.device)

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        self.require(point)
        out = torch.full((x.shape[0], self.classes), -torch.inf, device=self.device)
        for members, nodes, values in self._answers(x, point, None):
            if nodes is None:
                out[members] = values
            else:
                out[members[:, None], nodes] = values
        return out.cpu().numpy()

    def top(
        self, x: Any, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``SloNN.top``."""
        if not 1 <= p <= self.classes:
            raise InputError(f"{self.name}: the best {p} labels cannot be given, only 1 to {self.classes}")
        if point is not None and accuracy is not None:
            raise InputError(f"{self.name}: k is chosen by a point or by an accuracy, not by both")
        self.require(point or self.full)
        labels = torch.full((x.shape[0], p), -1, device=self.device)
        scores = torch.full((x.shape[0], p), -torch.inf, device=self.device)
        for members, nodes, values in self._answers(x, point or self.full, self.model.threshold(accuracy)):
            best, places = values.topk(min(p, values.shape[1]), dim=1)
            labels[members, : best.shape[1]] = places if nodes is None else nodes.gather(1, places)
            scores[members, : best.shape[1]] = best
        return labels.to(torch.int32).cpu().numpy(), scores.cpu().numpy()

    def expected_accuracy(self, x: np.ndarray) -> Mapping[OperatingPoint, float] | None:
        return self.model.expected_accuracy(x)

    def expected_accuracies(self, x: Any) -> np.ndarray | None:
        return self.model.expected_accuracies(x)

    def _entered(self, x: Any) -> tuple[Tensor, int]:
        """The batch on the device, and the layer it is about to enter: of CSR the first is behind it, as a bag each."""
        flat = self.model.flat(x)
        check_rows(flat)
        if isinstance(flat, np.ndarray):
            return torch.from_numpy(flat).to(self.device), 0
        if self._layers[0].tables is not None:
            return torch.from_numpy(flat.toarray()).to(self.device), 0
        parts = (flat.indices.astype(np.int64), flat.indptr[:-1].astype(np.int64), flat.data)
        indices, offsets, weights = (torch.from_numpy(part).to(self.device) for part in parts)
        summed = functional.embedding_bag(
            indices, self._columns, offsets, mode="sum", per_sample_weights=weights.to(torch.float32)
        )
        return (summed + self._layers[0].bias).relu_(), 1

    @cached_property
    def _columns(self) -> Tensor:
        """float32 [features, units]: of the first layer, for sparse inputs."""
        return self._layers[0].weights.T.contiguous()

    def _answers(
        self, x: Any, point: OperatingPoint, threshold: float | None
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        """Queries of one point at a time: their rows, the output nodes computed (None: all), and their values."""
        entered, start = self._entered(x)
        at = torch.full((len(entered),), self.points.index(point), device=self.device)
        if threshold is not None:
            at = self._least(entered, start, threshold)
        for number in at.unique().tolist():
            members = (at == number).nonzero()[:, 0]
            part = entered[members]
            for layer in self._layers[start:-1]:
                part = layer.hidden(part, number)
            nodes, values = self._layers[-1].outputs(part, number)
            self._check_finite(values, members)
            yield members, nodes, values

    def _least(self, values: Tensor, start: int, threshold: float) -> Tensor:
        """int64 [n]: the least point whose confidence is at least ``threshold``, as each input's bucket has it."""
        for layer in self._layers[start : self.model.first]:
            values = layer.product(values).relu_()
        tables = self._layers[self.model.first].tables
        assert tables is not None  # the first activated layer
        sure = self._means[tables.buckets(values)].double().mean(dim=1) >= threshold
        return torch.where(sure.any(dim=1), sure.int().argmax(dim=1), sure.shape[1])

    def _check_finite(self, values: Tensor, members: Tensor) -> None:
        """Raises ``InputError`` when a query's best value is no number."""
        bad = (~torch.isfinite(values.amax(dim=1))).nonzero()
        if len(bad):
            row = int(members[bad[0, 0]])
            raise InputError(f"input {row} cannot be answered: its values overflow the network")


class _Layer:
    """One layer's weights, by rows, and its tables if it has an activator."""

    def __init__(self, layer: DenseLayer, activator: Activator | None, shares: Sequence[float], device: torch.device):
        self.weights, self.bias = (torch.from_numpy(array).to(device) for array in (layer.weights, layer.bias))
        self.tables = None if activator is None else _Tables(layer, activator, self, device)
        self._counts = [0 if activator is None else activator.count(layer, share) for share in shares] + [layer.units]

    def product(self, x: Tensor, nodes: Tensor | None = None) -> Tensor:
        """w·x + b of every node, or of the same ``nodes`` for all of ``x`` [n, inputs]."""
        weights, bias = (self.weights, self.bias) if nodes is None else (self.weights[nodes], self.bias[nodes])
        return torch.addmm(bias, x, weights.T)

    def hidden(self, x: Tensor, point: int) -> Tensor:
        """What the next layer receives: float32 [n, units], 0 of a node that was dropped."""
        nodes, values = self.outputs(x, point)
        values = values.clamp_min(0.0)
        return values if nodes is None else values.new_zeros(len(x), len(self.bias)).scatter_(1, nodes, values)

    def outputs(self, x: Tensor, point: int) -> tuple[Tensor | None, Tensor]:
        """The nodes each of ``x`` [n, inputs] computes, int64 [n, k] or None for all, and their values [n, k]."""
        count, units = self._counts[point], len(self.bias)
        if self.tables is None or point == len(self._counts) - 1:
            return None, self.product(x)
        nodes = self.tables.nodes(x, count)
        if len(x) * count * DOTS_PER_GATHERED_ROW >= units * (len(x) + DOTS_PER_GATHERED_ROW):
            return nodes, self.product(x).gather(1, nodes)
        size = max(1, CHUNK_BYTES // (4 * count * x.shape[1]))
        return nodes, torch.cat([self._gathered(*part) for part in zip(x.split(size), nodes.split(size), strict=True)])

    def _gathered(self, x: Tensor, nodes: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[nodes][:, :, None], self.weights[nodes], x[:, :, None])[:, :, 0]


class _Tables:
    """One activator's look-ups; a ranker without a form of its own here finds its keys on the CPU."""

    def __init__(self, layer: DenseLayer, activator: Activator, own: _Layer, device: torch.device):
        ranker, lists = activator.ranker, activator.lists
        self._layer, self._ranker = layer, ranker
        self._keys = next((make(ranker, own, device) for kind, make in _KEYS.items() if isinstance(ranker, kind)), None)
        arrays = (lists.slots, lists.lists, lists.overall, ranker.computed_nodes)
        self._slots, self._lists, self._overall, self._needed = (
            torch.from_numpy(array.astype(np.int64)).to(device) for array in arrays
        )
        self._numbers = torch.arange(len(lists.slots), device=device)

    def buckets(self, x: Tensor) -> Tensor:
        """int64 [n, tables]: rows of the lists."""
        if self._keys is None:
            keys = torch.from_numpy(self._ranker.keys(self._layer, x.cpu().numpy())).to(x.device)
        else:
            keys = self._keys(x)
        return self._slots[self._numbers, keys]

    def nodes(self, x: Tensor, count: int) -> Tensor:
        """int64 [n, count], as ``NodeLists.ranked`` has them."""
        heads = self._lists[:, :count][self.buckets(x)]
        if heads.shape[1:] == (1, count) and not len(self._needed):
            return heads[:, 0]
        interleaved = heads.transpose(1, 2).flatten(1)
        first, rest = (part.expand(len(x), -1) for part in (self._needed, self._overall[:count]))
        return _first_distinct(torch.cat([first, interleaved, rest], dim=1), count)


def _first_distinct(nodes: Tensor, count: int) -> Tensor:
    """int64 [n, count]: the first ``count`` different numbers of each row, in their order."""
    ordered, order = nodes.sort(dim=1, stable=True)
    new = torch.ones_like(nodes, dtype=torch.bool)
    new.scatter_(1, order[:, 1:], ordered[:, 1:] != ordered[:, :-1])
    kept = new & (new.cumsum(dim=1) <= count)
    return nodes[kept].view(len(nodes), count)


def _hashed(ranker: FreeHash, layer: _Layer, device: torch.device) -> Callable[[Tensor], Tensor]:
    needed, positions, thresholds = (
        torch.from_numpy(array).to(device) for array in (ranker.computed_nodes, ranker.positions, ranker.thresholds)
    )
    places = 1 << torch.arange(positions.shape[1], device=device)
    return lambda x: ((layer.product(x, needed)[:, positions] > thresholds) * places).sum(dim=2)


def _clustered(ranker: Clusters, layer: _Layer, device: torch.device) -> Callable[[Tensor], Tensor]:
    coarse, coarse_scale, coarse_offset, fine, fine_scale, fine_offset = (
        torch.from_numpy(array.astype(np.float32)).to(device)
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

    def keys(x: Tensor) -> Tensor:
        steps, step, least = _quantized(x)
        near = ((steps @ coarse.T * step + least * coarse_sums) * coarse_scale + coarse_offset).argmax(dim=1)
        products = torch.bmm(fine[near], steps[:, :, None])[:, :, 0]
        within = (products * step + least * fine_sums[near]) * fine_scale[near] + fine_offset[near]
        return (near * fine.shape[1] + within.argmax(dim=1))[:, None]

    return keys


def _quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ``quantization.quantized_inputs``."""
    least, most = x.amin(dim=1, keepdim=True).clamp_max(0), x.amax(dim=1, keepdim=True).clamp_min(0)
    spread = most - least
    enough = spread > float(MIN_SPREAD)
    per_step = torch.where(enough, float(INPUT_STEPS) / spread, 0.0)
    steps = ((x - least) * per_step + 0.5).floor_()
    return steps, torch.where(enough, spread / float(INPUT_STEPS), 0.0), least


_KEYS: dict[type, Callable[[Any, _Layer, torch.device], Callable[[Tensor], Tensor]]] = {
    FreeHash: _hashed,
    Clusters: _clustered,
}


def _device(name: str) -> torch.device:
    there = ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count())))
    if name not in there:
        raise InputError(f"no device {name!r} on this machine; available: {', '.join(there)}")
    return torch.device(name)
