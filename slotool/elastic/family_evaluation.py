"""What the versions of a model family answer to labelled examples, by their task, and how long each answer takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.dataset import LabelSets
from slotool.elastic.evaluation import BLOCK, WARM_UP_CALLS, version_name
from slotool.elastic.model_family import ModelFamily
from slotool.errors import InputError
from slotool.process import collector_off
from slotool.tables import OperatingPoint, OutcomeTable


@dataclass(frozen=True)
class Responses:
    """``outputs``: by point, of each example its outputs by name, [1, …]. ``latency_s``: float64 [points, n]."""

    outputs: Mapping[OperatingPoint, Sequence[Mapping[str, np.ndarray]]]
    latency_s: np.ndarray

    def joined(self, point: OperatingPoint, names: Sequence[str]) -> dict[str, np.ndarray]:
        """These outputs of all examples, [n, …]. Raises ``InputError`` where their shapes differ."""
        try:
            return {name: np.concatenate([output[name] for output in self.outputs[point]]) for name in names}
        except ValueError:
            raise InputError(f"{point}: outputs {', '.join(names)} have another shape for each example") from None


def ask_versions(
    family: ModelFamily,
    x: Any,
    points: Sequence[OperatingPoint],
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Responses:
    """Ask each version for each example of ``x``, one at a time, in the order of ``evaluation.ask_all``."""
    n = len(x)
    outputs: dict[OperatingPoint, list[Mapping[str, np.ndarray]]] = {point: [] for point in points}
    latency_s = np.empty((len(points), n, repeats))
    first = x[:1]
    for point in points:
        for _ in range(WARM_UP_CALLS):
            family.respond(first, point)
    with collector_off():
        for start in range(0, n, BLOCK):
            block = range(start, min(n, start + BLOCK))
            part = x[start : start + BLOCK]
            queries = {i: part[i - start : i - start + 1] for i in block}
            for repeat in range(repeats):
                for i, (p, point) in itertools.product(block, enumerate(points)):
                    started = time.perf_counter()
                    made = family.respond(queries[i], point)
                    latency_s[p, i, repeat] = time.perf_counter() - started
                    if repeat == 0:
                        outputs[point].append(made)
            for _ in block:
                progress()
    return Responses(outputs, np.median(latency_s, axis=2))


def evaluate_family(
    family: ModelFamily,
    split: Any,
    *,
    points: Sequence[OperatingPoint] | None = None,
    repeats: int = 3,
    prices: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> OutcomeTable:
    """Every example at every version: error and confidence by the family's task, median latency of ``repeats``.

    ``prices``: of one answer, by version; without one it costs its seconds. Raises ``InputError`` when examples do not
    fit the models or answers do not fit the truth.
    """
    chosen = tuple(points or family.points)
    if not len(split):
        raise InputError("there is no example to evaluate on")
    taken = ask_versions(family, split.x, chosen, repeats, progress)
    return outcome_table(family, taken, split.y, prices or {}, provenance)


def outcome_table(
    family: ModelFamily,
    taken: Responses,
    truth: Any,
    prices: Mapping[str, float],
    provenance: Mapping[str, Any] | None = None,
) -> OutcomeTable:
    """The outcome table of ``taken`` responses to examples whose answers should be ``truth``."""
    truth = true_answers(family, truth)
    parts = []
    for p, point in enumerate(taken.outputs):
        name = version_name(point)
        each = taken.outputs[point]
        errors = [family.errors(outputs, truth[i : i + 1])[0] for i, outputs in enumerate(each)]
        sure = np.array([_confidence(family.confidences_of(outputs, point)) for outputs in each])
        if not np.isfinite(sure).all():
            at = int((~np.isfinite(sure)).argmax())
            raise InputError(f"version {name}: its confidence in example {at} is {sure[at]}, which is no number")
        part = {"example": [str(i) for i in range(len(each))], "version": name, "error": errors, "confidence": sure}
        cost = {"cost": prices[name]} if name in prices else {}
        parts.append(pd.DataFrame({**part, "latency_s": taken.latency_s[p], **cost}))
    return OutcomeTable(pd.concat(parts, ignore_index=True), provenance)


def true_answers(family: ModelFamily, y: Any) -> np.ndarray:
    """What a split says is right, as the family's task compares it: sets of labels become bool [n, labels]."""
    return y.matrix(family.classes) if isinstance(y, LabelSets) else np.asarray(y)


def _confidence(known: np.ndarray | None) -> float:
    """Of one answer. One without a confidence is as sure as any: no other version is asked."""
    return 1.0 if known is None else float(known[0])
