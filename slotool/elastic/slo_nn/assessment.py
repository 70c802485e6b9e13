"""Accuracy and latency of an SLO-NN on held-out data, at each k, with k per input, and of its alternatives.

These are a list of popular nodes, and all nodes as int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from slotool.devices import CPU
from slotool.elastic.model import InferenceSession
from slotool.elastic.network import Network, SparseChain
from slotool.elastic.slo_nn.activator import Activator, NodeLists
from slotool.elastic.slo_nn.build import flat, right
from slotool.elastic.slo_nn.calibration import DiscordantPairs, mean_share, min_share
from slotool.elastic.slo_nn.confidence import ConfidenceTables
from slotool.elastic.slo_nn.grid_evaluation import evaluate_grid
from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder
from slotool.tables import OutcomeTable
from slotool.timing.turns import Turns, in_turns
from slotool.transfers import Link

# Accuracy targets of the sweep: the full network's held-out accuracy less this much.
SLACKS = (0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.003, 0.0)
# Timed of each point, within so many seconds.
QUERIES, TIMED_S = 1_000, 5.0

# A call to be timed, and its arguments for a query, by number.
Timed = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


@dataclass(frozen=True)
class PointPredictions:
    """First labels of every point on one split: ``predicted`` int [n, points]; whether they are ``correct``, bool.

    ``static_correct``: the same of the static popularity list, each layer's overall ranking for every input.
    """

    predicted: np.ndarray
    correct: np.ndarray
    static_correct: np.ndarray

    @classmethod
    def of(cls, model: SloNN, split: Any) -> PointPredictions:
        static_lists = {at: popular(activator) for at, activator in model.activators.items()}
        predicted, static = (
            evaluate_grid(model.mlp, activators, model.shares, flat(split.x)).labels
            for activators in (model.activators, static_lists)
        )
        return cls(predicted, right(predicted, split.y), right(static, split.y))


def assess(model: SloNN, source: Network, test: Any) -> dict[str, Any]:
    """Return the report of ``build-tables`` on ``model``, scored and timed on the split ``test``: plain values.

    ``source``: the network that its tables were built for. Times in µs.
    """
    answers, first = PointPredictions.of(model, test), model.activators[model.first].ranker
    turns = timed([*points_timed(model, test.x), torch_timed(source, test.x)])
    *latency_us, torch_us = (1e6 * turns.medians_s).tolist()
    return {
        "examples": len(test),
        "ranker": model.ranker,
        "tables": first.tables,
        "buckets": first.buckets,
        "measure": model.measure,
        "mean_k_by_measure": model.mean_k,
        "weight_dtype": "int8" if model.int8 else "float32",
        "bucket_entropy_bits": {model.mlp.layers[at].name: bits for at, bits in model.entropy.items()},
        "table_bytes": model.table_bytes,
        "table_share": model.table_share,
        "timing": turns.document,
        "torch_us": torch_us,
        "points": by_point(model, answers, latency_us),
        "accuracy_targets": aclo_sweep(model, test.x, answers.correct),
        "ideal_mean_k": ideal_k(model, answers.correct),
    }


def by_point(model: SloNN, answers: PointPredictions, latency_us: Sequence[float]) -> list[dict[str, Any]]:
    """Return figures per point: nodes, accuracy, loss against the full network, baseline, agreement, latency, speedup.

    The loss is paired and has its standard error. The baseline computes as many nodes, always the most popular ones.
    Agreement is with the full network's class; latency is the median in µs.
    """
    correct = answers.correct
    rows = []
    for at, point in enumerate(model.points):
        rows.append(
            {
                "point": point.key,
                "nodes": sum(_nodes(model, at).values()),
                "accuracy": float(correct[:, at].mean()),
                **difference(correct[:, at], correct[:, -1]),
                "static_accuracy": float(answers.static_correct[:, at].mean()),
                "agreement": float((answers.predicted[:, at] == answers.predicted[:, -1]).mean()),
                "latency_us": float(latency_us[at]),
                "speedup": float(latency_us[-1] / latency_us[at]),
            }
        )
    return rows


def difference(correct: np.ndarray, full: np.ndarray) -> dict[str, float]:
    """Return the paired difference of the accuracies of two answers to the same inputs, with its standard error."""
    lost = correct.astype(float) - full
    return {"difference": float(lost.mean()), "standard_error": float(lost.std() / np.sqrt(len(lost)))}


def aclo_sweep(
    model: SloNN, x: Any, correct: np.ndarray, slacks: Sequence[float] = SLACKS, latency_s: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Return ACLO over losses allowed against the full network, and the best k fixed beforehand.

    Both are promised by the validation split and scored on ``x`` with ``correct`` of ``PointPredictions``. Per
    loss: mean k, the accuracy reached, its paired difference to the full network's with standard error; the least
    fixed k that promises the loss with the accuracy it reaches; and ``same_accuracy_k``, the least
    fixed k that reaches here what ACLO reached, chosen in hindsight. ``latency_s``: float64 [n, points], what each
    answer took; then mean latency in seconds too.
    """
    every, estimates = np.arange(len(correct)), model.estimates(x)
    by_point = correct.mean(axis=0)
    rows = []
    for slack in slacks:
        threshold = model.threshold(model.target(slack))
        assert threshold is not None
        chosen = min_share(estimates, threshold)
        fixed = model.points.index(model.fixed_for(slack))
        reached = float(correct[every, chosen].mean())
        row = {
            "target": model.target(slack),
            "loss": slack,
            "mean_k": mean_share(model.shares, chosen),
            "accuracy": reached,
            **difference(correct[every, chosen], correct[:, -1]),
            "fixed_k": mean_share(model.shares, np.array([fixed])),
            "fixed_accuracy": float(by_point[fixed]),
            "same_accuracy_k": mean_share(model.shares, np.array([_least_point(by_point, reached)])),
        }
        if latency_s is not None:
            row |= {"latency_s": float(latency_s[every, chosen].mean()), "fixed_latency_s": latency_s[:, fixed].mean()}
        rows.append(row)
    return rows


def sweep_document(model: SloNN, x: Any, outcomes: OutcomeTable) -> dict[str, Any]:
    """Return ``aclo_sweep`` over the measured ``outcomes`` of the examples ``x``, with what it is compared with."""
    correct, latency_s = 1.0 - outcomes.matrix("error"), outcomes.matrix("latency_s")
    points = (point.key for point in model.points)
    return {
        "subject": model.name,
        "ranker": model.ranker,
        "measure": model.measure,
        "accuracy_by_point": dict(zip(points, correct.mean(axis=0).tolist(), strict=True)),
        "ideal_mean_k": ideal_k(model, correct),
        "confidence": model.calibration.stated,
        "losses": aclo_sweep(model, x, correct, latency_s=latency_s),
    }


def ideal_k(model: SloNN, correct: np.ndarray) -> float:
    """Return the mean k if each input used the least k that answers it no worse than the full network."""
    enough = correct[:, :-1] >= correct[:, -1:]
    return mean_share(model.shares, np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1]))


def _least_point(by_point: np.ndarray, accuracy: float) -> int:
    enough = by_point >= accuracy - 1e-12
    return int(enough.argmax()) if enough.any() else len(by_point) - 1


def timed(variants: Sequence[Timed], queries: int = QUERIES, max_seconds: float = TIMED_S) -> Turns:
    """Time the variants in turns, one query at a time, with PyTorch on one thread."""
    import torch

    calls = [call for call, _ in variants]
    with one_thread(), torch.inference_mode():
        return in_turns(
            calls, lambda block: [[of(i) for i in block] for _, of in variants], queries, max_seconds=max_seconds
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread; other libraries are limited when models are loaded."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def points_timed(model: SloNN, x: Any) -> list[Timed]:
    """Return timed calls of each point's ``top`` label of ``x``, float32 [n, *input_shape] or CSR, cyclically."""
    sessions = [model.session(point) for point in model.points]
    return [(session.run, partial(_row, session, x)) for session in sessions]


def _row(session: InferenceSession, x: Any, i: int) -> tuple[Any, ...]:
    return session.prepare(x, i % x.shape[0])


def torch_timed(source: Network, x: Any) -> Timed:
    """Return the same network in PyTorch."""
    dense = TorchDense(source)
    rows = dense.queries(x, min(QUERIES, x.shape[0]))
    return dense, lambda i: rows[i % len(rows)]


class TorchDense:
    """The network in PyTorch, as a practitioner would serve it: sparse inputs enter by an embedding bag."""

    def __init__(self, source: Network):
        import torch

        self.source, self._start = source, torch.zeros(1, dtype=torch.int64)
        self._chain = SparseChain(source.name, source.mlp, Link(CPU)) if source.sparse else None

    def queries(self, x: Any, n: int) -> list[tuple[Any, ...]]:
        """Return the arguments of a call, from the first rows of [n, …]."""
        import torch

        if isinstance(x, np.ndarray):
            return [(torch.from_numpy(x[i % len(x)][None]),) for i in range(n)]
        rows = (x[i % x.shape[0]] for i in range(n))
        return [(torch.from_numpy(row.indices.astype(np.int64)), torch.from_numpy(row.data)) for row in rows]

    def __call__(self, x: Any, values: Any = None, starts: Any = None) -> Any:
        """Return the best labels, int64 [n], of float32 [n, *input_shape], or of sparse inputs.

        Sparse: features ``x`` int64 with ``values`` float32; ``starts`` int64 [n], begin of each input (None: there is
        one).
        """
        if self._chain is None:
            return self.source.module(x).argmax(dim=1)
        return self._chain.of_features(x, self._start if starts is None else starts, values).argmax(dim=1)


def _nodes(model: SloNN, at: int) -> dict[int, int]:
    """Return the nodes computed per activated layer at point ``at``."""
    if at == len(model.shares):
        return {layer: model.mlp.layers[layer].units for layer in model.activators}
    return {
        layer: activator.count(model.mlp.layers[layer], model.shares[at])
        for layer, activator in model.activators.items()
    }


@dataclass(frozen=True)
class FixedList:
    """A network of which the output nodes ``names`` int64 [m] are computed for every input, and no others.

    ``model``: the network with these nodes alone, answered by the compiled call at ``point``, an index.
    """

    model: SloNN
    names: np.ndarray
    point: int

    @classmethod
    def of(cls, model: SloNN, names: np.ndarray, *, int8: bool) -> FixedList:
        """Return a list of ``model``, by float32 weights or by int8 ones with the best scored again."""
        last = model.mlp.layers[-1]
        few = DenseLayer(last.name, last.weights[names], last.bias[names])
        mlp = replace(model.mlp, layers=(*model.mlp.layers[:-1], few))
        order = np.arange(len(names), dtype=np.min_scalar_type(len(names)))
        # A single bucket with an unused list: all nodes are computed in their own order.
        lists = NodeLists(np.zeros((1, 1), dtype=np.uint16), order[None, :1], order)
        activators = {len(mlp.layers) - 1: Activator(RandomOrder(), lists)}
        none = ConfidenceTables(np.zeros((1, 1), dtype=np.float32))
        options: dict[str, Any] = {"int8": int8, "sparse": model.sparse}
        listed = SloNN(model.name, mlp, (1.0,), activators, none, model.calibration, {}, **options)
        return cls(listed, names, 0 if int8 else 1)

    def labels(self, x: Any) -> np.ndarray:
        """Return int64 [n]: the best node of each of ``x``, as ``SloNN.top`` takes them."""
        return self.names[self.model.top(x, point=self.model.points[self.point])[0][:, 0]]


def popular(activator: Activator) -> Activator:
    """Return the baseline that ignores the input: the most popular nodes of the layer of ``activator``."""
    lists = activator.lists
    return Activator(RandomOrder(), NodeLists(np.zeros((1, 1), np.uint16), lists.lists[:1], lists.overall))


def shortest_popularity_list(model: SloNN, validation: Any, allowed_loss: float) -> np.ndarray | None:
    """Return the shortest list of the most popular output nodes, int64 [m], on the k grid, within ``allowed_loss``.

    The split ``validation`` promises that loss with the model's confidence. None if no k does.
    """
    last = len(model.mlp.layers) - 1
    static = popular(model.activators[last])
    correct = right(evaluate_grid(model.mlp, {last: static}, model.shares, flat(validation.x)).labels, validation.y)
    ways = [np.full(len(correct), at) for at in range(correct.shape[1])]
    enough = DiscordantPairs.count(correct, ways).bounds(model.calibration.stated) <= allowed_loss
    at = int(enough.argmax())
    if at == len(model.shares):
        return None
    return static.lists.overall[: static.count(model.mlp.layers[last], model.shares[at])].astype(np.int64)


def promised_loss(correct: np.ndarray, full: np.ndarray, confidence: float) -> float:
    """Return the upper bound on the share of answers lost against the full network, from validation examples.

    ``correct`` and ``full``: masks of right answers, bool [n] (see ``calibration``).
    """
    both = np.stack([correct, full], axis=1)
    ways = [np.zeros(len(both), dtype=np.int64), np.ones(len(both), dtype=np.int64)]
    return float(DiscordantPairs.count(both, ways).bounds(confidence)[0])
