"""What the versions of a model family answer to labelled examples, by their task, and how long each answer takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.dataset import LabelSets
from slotool.elastic.evaluation import version_name
from slotool.elastic.family import Family
from slotool.errors import InputError, RunError, SlotoolError, TimedOut
from slotool.tables import OperatingPoint, OutcomeTable
from slotool.timing.turns import Turns, in_turns, timing_columns


@dataclass(frozen=True)
class Responses:
    """``outputs``: by point, of each example its outputs by name, [1, …]. ``turns``: the timed calls, points as
    variants; None where nothing was timed. ``rows``: of the data set's file, one per example, where that is known."""

    outputs: Mapping[OperatingPoint, Sequence[Mapping[str, np.ndarray]]]
    turns: Turns | None = None
    rows: np.ndarray | None = None

    def joined(self, point: OperatingPoint, names: Sequence[str]) -> dict[str, np.ndarray]:
        """These outputs of all examples, [n, …]. Raises ``InputError`` where their shapes differ."""
        try:
            return {name: np.concatenate([output[name] for output in self.outputs[point]]) for name in names}
        except ValueError:
            raise InputError(f"{point}: outputs {', '.join(names)} have another shape for each example") from None


def ask_versions(
    family: Family,
    split: Any,
    points: Sequence[OperatingPoint],
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Responses:
    """Ask each version for each example of ``split``, one at a time. What a version raises names it and the example."""
    x, n, rows = split.x, len(split), getattr(split, "rows", None)
    outputs: dict[OperatingPoint, list[Mapping[str, np.ndarray]]] = {point: [{}] * n for point in points}

    def queries(block: range) -> list[list[tuple[Any, ...]]]:
        part = x[block.start : block.stop]
        examples = [part[at : at + 1] for at in range(len(block))]
        return [[(example, point, i) for example, i in zip(examples, block, strict=True)] for point in points]

    def ask(query: Any, point: OperatingPoint, i: int) -> Mapping[str, np.ndarray]:
        try:
            return family.respond(query, point)
        except SlotoolError as error:
            raise _located(error, point, i, rows) from error

    def received(p: int, i: int, response: Mapping[str, np.ndarray]) -> None:
        outputs[points[p]][i] = response

    turns = in_turns([ask] * len(points), queries, n, repeats=repeats, received=received, progress=progress)
    return Responses(outputs, turns, rows)


def evaluate_family(
    family: Family,
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
    taken = ask_versions(family, split, chosen, repeats, progress)
    return outcome_table(family, taken, split.y, prices or {}, provenance)


def outcome_table(
    family: Family,
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
        errors, sure = np.empty(len(each)), np.empty(len(each))
        # What overflows is found in the confidence.
        with np.errstate(invalid="ignore", over="ignore"):
            for i, outputs in enumerate(each):
                try:
                    errors[i] = family.errors(outputs, truth[i : i + 1])[0]
                    sure[i] = _confidence(family.confidences_of(outputs, point))
                except (InputError, IndexError) as error:
                    # The examples are right, or they could not have been asked: the answer is wrong.
                    raise _located(RunError(str(error)), point, i, taken.rows) from error
        if not np.isfinite(sure).all():
            at = int((~np.isfinite(sure)).argmax())
            wrong = RunError(f"its confidence is {sure[at]}, which is no number")
            raise _located(wrong, point, at, taken.rows)
        part = {"example": [str(i) for i in range(len(each))], "version": name, "error": errors, "confidence": sure}
        cost = {"cost": prices[name]} if name in prices else {}
        assert taken.turns is not None
        parts.append(pd.DataFrame({**part, **timing_columns(taken.turns, p), **cost}))
    return OutcomeTable(pd.concat(parts, ignore_index=True), provenance)


def true_answers(family: Family, y: Any) -> np.ndarray:
    """What a split says is right, as the family's task compares it: sets of labels become bool [n, labels]."""
    return y.matrix(family.classes) if isinstance(y, LabelSets) else np.asarray(y)


def _located(error: SlotoolError, point: OperatingPoint, example: int, rows: np.ndarray | None) -> SlotoolError:
    """``error`` naming the version, and the row or example, from 0, that it is of."""
    kind = next(kind for kind in (RunError, TimedOut, InputError, SlotoolError) if isinstance(error, kind))
    where = f"example {example}" if rows is None else f"row {rows[example]}"
    return kind(f"version {version_name(point)}, {where} of the data: {error}")


def _confidence(known: np.ndarray | None) -> float:
    """Of one answer. One without a confidence is as sure as any: no other version is asked."""
    return 1.0 if known is None else float(known[0])
