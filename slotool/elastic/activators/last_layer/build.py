"""Learn tables for the last layer of a network of any library, and say whether choosing its nodes pays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from slotool.data import numbered
from slotool.elastic.activators.assessment import (
    QUERIES,
    PointPredictions,
    aclo_sweep,
    by_point,
    ideal_k,
    latencies_us,
)
from slotool.elastic.activators.build import MIN_CLASSES_TO_RANK, TableSubject, right
from slotool.elastic.activators.last_layer.alternatives import Alternative, alternatives
from slotool.elastic.activators.last_layer.cutting import Cut, Features
from slotool.elastic.activators.last_layer.model import LastLayerSloNN
from slotool.elastic.activators.mlp import MLP
from slotool.elastic.activators.promises import Promise
from slotool.elastic.activators.slo_nn import SloNN
from slotool.errors import InputError
from slotool.process import collector_off

# Of a query's time, the last layer must take this share: less can never be saved.
MIN_SHARE = 0.05
WARM_UP_CALLS = 5
# Timed per network, within so many seconds.
TIMED_QUERIES, TIMED_S = 300, 4.0


@dataclass(frozen=True)
class LayerShare:
    """What a query costs on one thread, median µs: the unmodified network, and its part before the last layer, both by
    their own library. ``nodes``: of the last layer."""

    whole_us: float
    front_us: float
    nodes: int

    @property
    def share(self) -> float:
        """Of the unmodified network's time, what its last layer takes; at least 0."""
        return max(0.0, 1 - self.front_us / self.whole_us)

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes cannot pay, in one sentence; None where it may."""
        measured = (
            f"its {self.nodes:,} nodes take {self.share:.1%} of the {self.whole_us:,.1f} µs of a query, and the rest "
            f"of the network {self.front_us:,.1f} µs"
        )
        if self.nodes < MIN_CLASSES_TO_RANK:
            return f"choosing nodes of the last layer cannot pay: it has fewer than {MIN_CLASSES_TO_RANK}; {measured}"
        if self.share < MIN_SHARE:
            return f"choosing nodes of the last layer cannot pay: {measured}, which no choice of nodes shortens"
        return None


class LastLayerSource:
    """A cut network with its data: ``data`` holds features in place of inputs, for the tables to be learnt from.

    Where the data lack some of the network's classes, their labels are numbers of classes, as of words in a vocabulary.
    Raises ``InputError`` for sparse inputs, and for labels that are no classes of the network.
    """

    def __init__(self, cut: Cut, data: Any):
        if getattr(data, "sparse", False):
            raise InputError(f"{data.name} has sparse inputs; a network that another library runs takes dense ones")
        data = numbered(data, cut.layer.units)
        self.cut, self.original, self.features = cut, data, cut.features(data.input_shape)
        self.whole = Features(cut.whole, data.input_shape)

    @cached_property
    def data(self) -> Any:
        splits = {name: getattr(self.original, name) for name in ("train", "validation", "test")}
        made = {name: replace(split, x=self.features(split.x)) for name, split in splits.items()}
        return replace(self.original, **made)

    @property
    def subject(self) -> TableSubject:
        return TableSubject(MLP((self.cut.layer.inputs,), (self.cut.layer,), partial=True), self.data)

    def share(self) -> LayerShare:
        """Measured on the first test examples."""
        x = np.asarray(self.original.test.x[:TIMED_QUERIES])
        with one_thread():
            whole_us, front_us = _medians_us([self.whole, self.features], x)
        return LayerShare(whole_us, front_us, self.cut.layer.units)

    def model(self, name: str, head: SloNN) -> LastLayerSloNN:
        return LastLayerSloNN(name, self.features, head, self.cut.front)

    def assessed(self, model: LastLayerSloNN, allowed_loss: float) -> dict[str, Any]:
        """Accuracy and latency of every point on the test split, beside the unmodified network and other ways to
        answer, in the same run.

        A point's ``latency_us`` is the front's and the last layer's; the others were measured end to end.
        """
        head, test = model.head, self.data.test
        answers, promise = PointPredictions.of(head, test), Promise.of(head, allowed_loss)
        others = alternatives(head, self.features, self.data.validation, allowed_loss, self.cut.whole_file)
        x = np.asarray(self.original.test.x[:TIMED_QUERIES])
        promised = head.fixed_for(allowed_loss)
        calls: list[Callable[[np.ndarray], Any]] = [
            self.whole,
            self.features,
            lambda one: model.top(one, point=model.full),
            lambda one: model.top(one, point=promised),
            lambda one: model.top(one, accuracy=promise.target),
        ]
        with one_thread():
            layer_us = latencies_us(head, test.x, QUERIES)
            whole_us, front_us, full_us, promised_us, per_input_us, *other_us = _medians_us(
                [*calls, *(other.answer for other in others)], x
            )
        points = by_point(head, answers, layer_us)
        for point in points:
            point["layer_us"] = point["latency_us"]
            point["latency_us"] += front_us
            point["speedup"] = whole_us / point["latency_us"]
        return {
            "runtime": self.cut.runtime,
            "layer": self.cut.layer.name,
            "nodes": self.cut.layer.units,
            "features": self.cut.layer.inputs,
            "examples": len(test),
            "ranker": head.ranker,
            "weight_dtype": "int8" if head.int8 else "float32",
            "table_bytes": head.table_bytes,
            "table_share": head.table_share,
            "whole_us": whole_us,
            "front_us": front_us,
            "full_us": full_us,
            "promised_point": promise.point,
            "promised_us": promised_us,
            "per_input_us": per_input_us if promise.target_saves else None,
            "alternatives": self._scored(head, others, other_us, whole_us, answers.correct[:, -1]),
            "longest_list_tried": max(point["nodes"] for point in points[:-1]),
            "points": points,
            "accuracy_targets": aclo_sweep(head, test.x, answers.correct),
            "ideal_mean_k": ideal_k(head, answers.correct),
        }

    def _scored(
        self, head: SloNN, others: list[Alternative], other_us: list[float], whole_us: float, full: np.ndarray
    ) -> list[dict[str, Any]]:
        validation = self.data.validation
        by_split = {"test": full, "validation": right(head.top(validation.x)[0], validation.y)[:, 0]}
        return [
            {**other.scored(head, self.original, by_split), "latency_us": us, "speedup": whole_us / us}
            for other, us in zip(others, other_us, strict=True)
        ]


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread; other libraries have been told when their models were loaded."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _medians_us(calls: Sequence[Callable[[np.ndarray], Any]], x: np.ndarray) -> list[float]:
    """Median µs of each call on one example after the other; calls alternate, because drift then affects all alike."""
    for call in calls:
        for _ in range(WARM_UP_CALLS):
            call(x[:1])
    taken_s: list[list[float]] = []
    end = time.perf_counter() + TIMED_S
    with collector_off():
        for at in range(len(x)):
            row = []
            for call in calls:
                started = time.perf_counter()
                call(x[at : at + 1])
                row.append(time.perf_counter() - started)
            taken_s.append(row)
            if time.perf_counter() > end:
                break
    medians: list[float] = (1e6 * np.median(taken_s, axis=0)).tolist()
    return medians
