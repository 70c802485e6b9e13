"""An SLO-aware network on a device: look-ups, ranked lists and gathered products of a whole batch at a time.

The compiled calls of ``kernels`` are for one query at a time on a CPU. Here every step is an operation over the batch,
and the host waits for the device once, for the answers. It waits once more where each query has a k of its own (an
accuracy), which decides what is computed, and for keys of a plugin's ranker (``DeviceTables``).
On a CPU it gives the same answers, which is how it is tested. On a GPU with Triton's kernels all operations of a call
are captured as a CUDA graph, for a batch size rounded up to a power of two (``CapturedCalls``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.captured_calls import CapturedCalls
from slotool.elastic.activators.device_tables import DeviceTables, NodeRows
from slotool.elastic.activators.gpu_kernels import has_kernels
from slotool.elastic.activators.input_errors import check_rows
from slotool.elastic.activators.mlp import DenseLayer
from slotool.elastic.activators.output_layer import OutputLayer
from slotool.elastic.activators.staged_rows import StagedRows
from slotool.elastic.activators.tabulated import TabulatedNetwork
from slotool.elastic.device_layers import DeviceLayer
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.tables import OperatingPoint
from slotool.transfers import Link

# Weights gathered at a time.
CHUNK_BYTES = 256 << 20
# Larger batches are not captured: their work takes longer than its launches; nor are so many answers at a time.
MAX_CAPTURED_ROWS, MAX_CAPTURED_LOGITS = 1_024, 1 << 22
# To gather a row for one query takes as long as so many queries' shares of it in a product over all rows.
DOTS_PER_GATHERED_ROW = 16


class DeviceSloNN(ElasticModel):
    """``model`` on a device, with its points, tables and calibration; weights are float32 there.

    An int8 model's answers are those of ``model.at_int8(False)``: int8 saves a CPU's caches. Raises ``ArgumentError``
    for a device that cannot be used, ``InputError`` for a network with convolutions.
    """

    def __init__(self, model: TabulatedNetwork, device: str):
        self._link = Link(device)
        if not model.mlp.dense:
            raise InputError(f"{model.name} has convolutions; it runs on the CPU only, not on {device}")
        self.device = self._link.name
        self.model = model.at_int8(False)
        self.name, self.input_shape, self.classes = model.name, model.input_shape, model.classes
        self.points, self.sparse = model.points, model.sparse
        self._at = {point: at for at, point in enumerate(self.points)}
        self._layers = [
            _Layer(layer.view, model.activators.get(at), model.shares, self._link, sparse=model.sparse and not at)
            for at, layer in enumerate(model.mlp.layers)
        ]
        self._output = OutputLayer(self._layers[-1].dense, self._link)
        self._means = self._link.to_device(model.confidence.means)
        self._calls = CapturedCalls(self._link) if self._can_be_captured else None

    @property
    def _can_be_captured(self) -> bool:
        """Whether no step of a call waits for the host."""
        return has_kernels(self._link) and all(layer.tables is None or layer.tables.on_device for layer in self._layers)

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        self.require(point)
        rows, number = self._rows(x), self._at[point]
        most = MAX_CAPTURED_LOGITS // self.classes
        with torch.inference_mode():
            logits, overflows = self._answers(
                ("logits", number), rows, lambda entered, start: self._logits(entered, start, number), most=most
            )
        _require_finite(overflows)
        return logits

    def top(
        self, x: Any, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``SloNN.top``."""
        if not 1 <= p <= self.classes:
            raise InputError(f"{self.name}: the best {p} labels cannot be given, only 1 to {self.classes}")
        if point is not None and accuracy is not None:
            raise InputError(f"{self.name}: k is chosen by a point or by an accuracy, not by both")
        self.require(point or self.full)
        threshold, rows = self.model.threshold(accuracy), self._rows(x)
        with torch.inference_mode():
            if threshold is None:
                labels, scores = self._best_at(rows, self._at[point or self.full], p)
            else:
                labels, scores = self._best_of_each(rows, threshold, p)
        # Of a network whose values overflow the best one is no number.
        _require_finite(~np.isfinite(scores[:, 0]))
        return labels, scores

    def expected_accuracy(self, x: np.ndarray) -> Mapping[OperatingPoint, float] | None:
        return self.model.expected_accuracy(x)

    def expected_accuracies(self, x: Any) -> np.ndarray | None:
        return self.model.expected_accuracies(x)

    def _rows(self, x: Any) -> Any:
        """The batch, checked: float32 [n, inputs], or CSR where the first layer takes it."""
        flat = self.model.flat(x)
        check_rows(flat)
        return flat if isinstance(flat, np.ndarray) or self._layers[0].dense.is_sparse else flat.toarray()

    def _answers(
        self, kind: tuple[Any, ...], rows: Any, work: Callable[..., Sequence[Tensor]], *arrays: np.ndarray,
        most: int = MAX_CAPTURED_ROWS,
    ) -> list[np.ndarray]:  # fmt: skip
        """What ``work`` gives of ``rows`` for the layer that they are about to enter, and of ``arrays``; captured for
        ``kind``, which says what ``work`` is beside its inputs."""
        count = rows.shape[0]
        if self._calls is None or not 0 < count <= min(most, MAX_CAPTURED_ROWS):
            return self._link.to_host(*work(*self._entered(rows), *map(self._link.to_device, arrays)))
        staged = StagedRows.of(rows)
        shapes = [*staged.shapes, *((array.shape, torch.from_numpy(array).dtype) for array in arrays)]

        def fill(*places: np.ndarray) -> None:
            staged.fill(*places[: len(staged.shapes)])
            for place, array in zip(places[len(staged.shapes) :], arrays, strict=True):
                place[...] = array

        def on_device(*there: Tensor) -> Sequence[Tensor]:
            own, others = there[: len(staged.shapes)], there[len(staged.shapes) :]
            entered = staged.entered(self._layers[0].dense, *own)
            return work(entered, 1 if staged.sparse else 0, *others)

        found = self._calls.answers((*kind, staged.kind), shapes, fill, on_device)
        return [each[:count] for each in found]

    def _entered(self, rows: Any) -> tuple[Tensor, int]:
        """The batch on the device, and the layer it is about to enter: of CSR the first is behind it."""
        if isinstance(rows, np.ndarray):
            return self._link.to_device(rows), 0
        return self._layers[0].dense.product_of_rows(rows).relu_(), 1

    def _best_at(self, rows: Any, number: int, p: int) -> list[np.ndarray]:
        """The best labels, int32 [n, p], and their scores, float32 [n, p], at one point."""
        # Clients say how many: few numbers are captured.
        most = min(self.classes, 1 << (p - 1).bit_length())
        found = self._answers(
            ("best", number, most), rows, lambda entered, start: self._best(entered, start, number, most)
        )
        return [each[:, :p] for each in found]

    def _logits(self, entered: Tensor, start: int, number: int) -> tuple[Tensor, Tensor]:
        """Of every class, −inf where it was not computed, float32 [n, classes]; and whether a query overflows, [n]."""
        hidden, output = self._hidden(entered, start, number), self._layers[-1]
        nodes, values = output.outputs(hidden, number)
        if nodes is not None:
            values = values.new_full((len(values), self.classes), -torch.inf).scatter_(1, nodes, values)
        return values, torch.isfinite(values.amax(dim=1)).logical_not()

    def _best(self, entered: Tensor, start: int, number: int, p: int) -> tuple[Tensor, Tensor]:
        """The best labels, int32 [n, p], and their scores, float32 [n, p], at one point."""
        hidden, output = self._hidden(entered, start, number), self._layers[-1]
        count = output.counts[number]
        nodes = output.chosen(hidden, number)
        few = None if nodes is None else self._output.best(hidden, nodes, count, p)
        if few is not None:
            return few
        computed, values = output.values(hidden, nodes, count)
        scores, places = values.topk(min(p, values.shape[1]), dim=1)
        labels = places if computed is None else computed.gather(1, places)
        behind = (0, p - scores.shape[1])
        return pad(labels.to(torch.int32), behind, value=-1), pad(scores, behind, value=-torch.inf)

    def _best_of_each(self, rows: Any, threshold: float, p: int) -> list[np.ndarray]:
        """As ``_best_at``, each query at the least point whose confidence is ``threshold`` or more."""
        (chosen,) = self._answers(("least",), rows, lambda *entered: (self._least(*entered),), np.array([threshold]))
        points = np.unique(chosen) if len(chosen) else np.zeros(1, np.int64)
        if len(points) == 1:
            return self._best_at(rows, int(points[0]), p)
        labels, scores = np.empty((len(chosen), p), np.int32), np.empty((len(chosen), p), np.float32)
        for number in points.tolist():
            own = np.flatnonzero(chosen == number)
            labels[own], scores[own] = self._best_at(rows[own], number, p)
        return [labels, scores]

    def _hidden(self, values: Tensor, start: int, number: int) -> Tensor:
        """What the last layer receives."""
        for layer in self._layers[start:-1]:
            values = layer.hidden(values, number)
        return values

    def _least(self, values: Tensor, start: int, threshold: Tensor) -> Tensor:
        """int64 [n]: the least point whose confidence is at least ``threshold``, float64 [1], as each input's bucket
        has it."""
        for layer in self._layers[start : self.model.first]:
            values = layer.dense.product(values).relu_()
        tables = self._layers[self.model.first].tables
        assert tables is not None  # the first activated layer
        sure = self._means[tables.buckets(values)].double().mean(dim=1) >= threshold
        return torch.where(sure.any(dim=1), sure.int().argmax(dim=1), sure.shape[1])


def _require_finite(overflows: np.ndarray) -> None:
    """Raises ``InputError`` naming the first query of which bool [n] says that its best value is no number."""
    if overflows.any():
        row = int(overflows.argmax())
        raise InputError(f"input {row} cannot be answered: its values overflow the network")


class _Layer:
    """One layer, its tables if it has an activator, and how many nodes it computes at each point."""

    def __init__(
        self, layer: DenseLayer, activator: Activator | None, shares: Sequence[float], link: Link, *, sparse: bool
    ):
        self.dense = DeviceLayer(layer, link, sparse=sparse and activator is None)
        self.tables = None if activator is None else DeviceTables(layer, activator, self.dense, link)
        self.counts = [0 if activator is None else activator.count(layer, share) for share in shares] + [layer.units]

    def hidden(self, x: Tensor, point: int) -> Tensor:
        """What the next layer receives: float32 [n, units], 0 of a node that was dropped."""
        nodes, values = self.outputs(x, point)
        values = values.clamp_min(0.0)
        return values if nodes is None else values.new_zeros(len(x), self.dense.units).scatter_(1, nodes, values)

    def outputs(self, x: Tensor, point: int) -> tuple[Tensor | None, Tensor]:
        """The nodes each of ``x`` [n, inputs] computes, int64 [n, k] or None for all, and their values [n, k]."""
        return self.values(x, self.chosen(x, point), self.counts[point])

    def chosen(self, x: Tensor, point: int) -> NodeRows | None:
        """The nodes that each computes; None for all."""
        if self.tables is None or point == len(self.counts) - 1:
            return None
        return self.tables.nodes(x, self.counts[point])

    def values(self, x: Tensor, chosen: NodeRows | None, count: int) -> tuple[Tensor | None, Tensor]:
        """As ``outputs``, of the first ``count`` nodes ``chosen``."""
        if chosen is None:
            return None, self.dense.product(x)
        nodes, units = chosen.first(count), self.dense.units
        if len(x) * count * DOTS_PER_GATHERED_ROW >= units * (len(x) + DOTS_PER_GATHERED_ROW):
            return nodes, self.dense.product(x).gather(1, nodes)
        size = max(1, CHUNK_BYTES // (4 * count * x.shape[1]))
        parts = zip(x.split(size), nodes.split(size), strict=True)
        return nodes, torch.cat([self.dense.of_own_nodes(*part) for part in parts])
