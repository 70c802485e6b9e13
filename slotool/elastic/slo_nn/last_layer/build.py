"""Learn tables for the last layer of a network of any library, and say whether choosing its nodes pays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slotool.data import DataSource, numbered
from slotool.elastic.slo_nn.assessment import (
    FixedList,
    PointPredictions,
    Timed,
    aclo_sweep,
    by_point,
    difference,
    ideal_k,
    points_timed,
    promised_loss,
    shortest_popularity_list,
    timed,
)
from slotool.elastic.slo_nn.build import MIN_CLASSES_TO_RANK, TableSubject, right
from slotool.elastic.slo_nn.importers.cutting import BATCH, Cut, Features
from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
from slotool.elastic.slo_nn.mlp import MLP
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.payoff import MIN_SHARE
from slotool.elastic.slo_nn.promises import Promise
from slotool.elastic.slo_nn.trained_source import load_data
from slotool.errors import InputError
from slotool.progress import Reporter
from slotool.timing.turns import Saving, Turns, plausible


@dataclass(frozen=True)
class Alternative:
    """``answer``: labels int64 [n] of inputs float32 [n, *input_shape]; ``nodes``: computed in the last layer."""

    name: str
    nodes: int
    answer: Callable[[np.ndarray], np.ndarray]

    def scored(self, head: SloNN, data: Any, full: dict[str, np.ndarray]) -> dict[str, Any]:
        """Accuracy on the test split against the full network, and the loss that the validation split promises.

        ``data``: splits of the network's own inputs; ``full``: per split, whether all nodes are right, bool [n].
        """
        test, validation = (
            right(self.answer(split.x)[:, None], split.y)[:, 0] for split in (data.test, data.validation)
        )
        return {
            "way": self.name,
            "nodes": self.nodes,
            "accuracy": float(test.mean()),
            **difference(test, full["test"]),
            "promised_loss": promised_loss(validation, full["validation"], head.calibration.stated),
        }


def alternatives(
    head: SloNN, features: Features, validation: Any, allowed_loss: float, whole_file: Path | None
) -> list[Alternative]:
    """Return the alternatives available here.

    ``validation``: the split with features as inputs. ``whole_file``: the unmodified network as an ONNX file, None for
    another library.
    """
    result = []
    popular = shortest_popularity_list(head, validation, allowed_loss)
    lists = [] if popular is None else [(popular, False), (popular, True)]
    for names, int8 in (*lists, (np.arange(head.classes), True)):
        listed = FixedList.of(head, names, int8=int8)
        what = "all nodes" if len(names) == head.classes else f"the {len(names):,} most popular nodes"
        name = f"{what}, {'int8' if int8 else 'float32'}"
        result.append(Alternative(name, len(names), _behind(features, listed)))
    if whole_file is not None and (whole := _int8_of(whole_file, features.input_shape)) is not None:
        result.append(Alternative("the whole network, ONNX Runtime int8", head.classes, whole))
    return result


def _behind(features: Features, listed: FixedList) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: listed.labels(features(x))


def _int8_of(path: Path, input_shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the network with dynamically quantised int8 products, or None if ONNX Runtime cannot."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from slotool.models.adapters.onnx import OnnxModel

    level = logging.root.manager.disable
    # It advises to preprocess every network.
    logging.disable(logging.WARNING)
    try:
        with TemporaryDirectory(prefix="slotool-int8-") as folder:
            quantised = Path(folder) / "int8.onnx"
            quantize_dynamic(path, quantised, weight_type=QuantType.QInt8)
            scores = Features(OnnxModel(quantised, threads=1), input_shape)
    except (InputError, ValueError, RuntimeError, NotImplementedError, KeyError, AttributeError):
        # Errors of its quantiser for unknown operators; none is ours.
        return None
    finally:
        logging.disable(level)

    def answer(x: np.ndarray) -> np.ndarray:
        # Scores of all classes for all examples at once would be gigabytes.
        parts = [scores(x[at : at + BATCH]).argmax(axis=1) for at in range(0, len(x), BATCH)]
        return np.concatenate(parts)

    return answer


# Timed per network, within so many seconds.
TIMED_QUERIES, TIMED_S = 300, 4.0


def cut(source: str, input_shape: tuple[int, ...], folder: Path) -> Cut:
    """Cut the network ``source`` (.onnx, .keras, or module:factory of a torch module), writing its front to ``folder``.

    Raises ``InputError`` naming the last layer if that is no dense layer on features.
    """
    suffix = Path(source).suffix
    if suffix == ".onnx":
        from slotool.elastic.slo_nn.importers.onnx import cut_onnx

        return cut_onnx(Path(source), folder)
    if suffix == ".keras":
        from slotool.elastic.slo_nn.importers.keras import cut_keras

        return cut_keras(Path(source), folder)
    from slotool.elastic.slo_nn.importers.torch import cut_torch

    return cut_torch(source, input_shape, folder)


@dataclass(frozen=True)
class LayerShare:
    """Cost of a query on one thread, median µs, by the library: unmodified network, and part before the last layer.

    ``nodes``: of the last layer. ``saving``: the most that choosing nodes can save, which is all of the last layer.
    ``timing``: see ``Turns.document``.
    """

    whole_us: float
    front_us: float
    nodes: int
    saving: Saving
    timing: dict[str, Any]

    @classmethod
    def of(cls, turns: Turns, nodes: int) -> LayerShare:
        """Return the timing of the calls of the network and of its part before the last layer."""
        whole_us, front_us = (1e6 * turns.medians_s).tolist()
        return cls(whole_us, front_us, nodes, turns.saving(0, 1), turns.document)

    @property
    def share(self) -> float:
        """Last layer's share of the unmodified network's time, at least 0."""
        return max(0.0, self.saving.share)

    @property
    def decided(self) -> bool:
        return self.nodes < MIN_CLASSES_TO_RANK or self.saving.reaches(MIN_SHARE) is not None

    @property
    def verdict(self) -> str | None:
        """Reason why choosing nodes cannot pay, or is undecided, in one sentence; None if it may."""
        measured = (
            f"its {self.nodes:,} nodes take {self.share:.1%} of the {self.whole_us:,.1f} µs of a query, and the rest "
            f"of the network {self.front_us:,.1f} µs"
        )
        if self.nodes < MIN_CLASSES_TO_RANK:
            return f"choosing nodes of the last layer cannot pay: it has fewer than {MIN_CLASSES_TO_RANK}; {measured}"
        if self.saving.reaches(MIN_SHARE):
            return None
        if not self.decided:
            return f"{self.saving.doubt}; {measured}"
        return f"choosing nodes of the last layer cannot pay: {measured}, which no choice of nodes shortens"


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
        featured = {name: replace(split, x=self.features(split.x)) for name, split in splits.items()}
        return replace(self.original, **featured)

    @property
    def subject(self) -> TableSubject:
        return TableSubject(MLP((self.cut.layer.inputs,), (self.cut.layer,), partial=True), self.data)

    def share(self) -> LayerShare:
        """Measured on the first test examples."""
        calls = self._timed([self.whole, self.features])
        return LayerShare.of(plausible(lambda: timed(calls, TIMED_QUERIES, TIMED_S), [(1, 0)]), self.cut.layer.units)

    def _timed(self, calls: Sequence[Callable[[np.ndarray], Any]]) -> list[Timed]:
        """Return ``calls`` to be timed on the first test examples, one at a time."""
        x = np.asarray(self.original.test.x[:TIMED_QUERIES])
        return [(call, lambda i: (x[i % len(x)][None],)) for call in calls]

    def model(self, name: str, head: SloNN) -> LastLayerSloNN:
        return LastLayerSloNN(name, self.features, head, self.cut.front)

    def assessed(self, model: LastLayerSloNN, allowed_loss: float) -> dict[str, Any]:
        """Return accuracy and latency of every point on the test split, beside all alternatives in the same run.

        A point's ``latency_us`` is the front's plus the last layer's; the others were measured end to end.
        """
        head, test = model.head, self.data.test
        answers, promise = PointPredictions.of(head, test), Promise.of(head, allowed_loss)
        others = alternatives(head, self.features, self.data.validation, allowed_loss, self.cut.whole_file)
        promised = head.fixed_for(allowed_loss)
        calls: list[Callable[[np.ndarray], Any]] = [
            self.whole,
            self.features,
            lambda one: model.top(one, point=model.full),
            lambda one: model.top(one, point=promised),
            lambda one: model.top(one, accuracy=promise.target),
        ]
        whole_calls = self._timed([*calls, *(other.answer for other in others)])
        variants = [*whole_calls, *points_timed(head, test.x)]
        # The network up to its last layer is a part of every answer that has tables.
        turns = plausible(lambda: timed(variants, TIMED_QUERIES, TIMED_S), [(1, at) for at in range(len(calls))])
        medians_us = (1e6 * turns.medians_s).tolist()
        whole_us, front_us, full_us, promised_us, per_input_us, *other_us = medians_us[: len(whole_calls)]
        layer_us = medians_us[len(whole_calls) :]
        scored = self._scored(head, others, other_us, whole_us, answers.correct[:, -1])
        ways = {"all nodes, the last layer by slotool": 2}
        ways |= {row["way"]: at for at, row in enumerate(scored, len(calls)) if row["promised_loss"] <= allowed_loss}
        ways |= {f"tables at {promise.point}": 3} if promise.saves else {}
        ways |= {"tables with k per input, from Python": 4} if promise.target_saves else {}
        quickest = min(ways, key=lambda way: medians_us[ways[way]])
        tables = [at for way, at in ways.items() if way.startswith("tables")]
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
            "alternatives": scored,
            "timing": turns.document,
            "quickest": {"way": quickest, **_gain(turns, ways[quickest])},
            "tables": _gain(turns, min(tables, key=lambda at: medians_us[at])) if tables else None,
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


def _gain(turns: Turns, way: int) -> dict[str, Any]:
    """Return a way's latency beside the unmodified network's, and if it saves ``MIN_SHARE``; None: not decided."""
    saving = turns.saving(0, way)
    return {
        "latency_us": float(1e6 * turns.medians_s[way]),
        "speedup": float(turns.medians_s[0] / turns.medians_s[way]),
        "pays": saving.reaches(MIN_SHARE),
        "doubt": saving.doubt if saving.reaches(MIN_SHARE) is None else None,
    }


def measured_cut(
    network: Path, data: str | DataSource, folder: Path, reporter: Reporter
) -> tuple[LastLayerSource, LayerShare]:
    """Return the network cut in two, its front in ``folder``, and what its last layer takes of a query's time."""
    dataset = load_data(data)
    with reporter.progress("measuring the last layer"):
        source = LastLayerSource(cut(str(network), dataset.input_shape, folder), dataset)
        share = source.share()
    if (positions := source.cut.positions) is not None:
        each = f"each of {positions:,} positions" if positions else "each position"
        reporter.note(
            f"{network} scores {each} of a sequence; tables are for the last one, of what comes next, and nodes of its "
            "feed-forward blocks are not chosen: for several tokens at a time int8 is quicker"
        )
    return source, share
