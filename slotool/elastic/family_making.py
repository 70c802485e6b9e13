"""A model family measured on labelled examples: its versions in order, what each is like, calibrations learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from slotool.data.dataset import LabelSets, Split
from slotool.data.sequences import RaggedColumns, concatenated
from slotool.data.stored import StoredExamples
from slotool.elastic.evaluation import summary, version_name
from slotool.elastic.family_evaluation import Responses, ask_versions, outcome_table, true_answers
from slotool.elastic.model_family import ModelFamily
from slotool.models.calibration import NONE, Calibration, expected_calibration_error, learn, rightness
from slotool.tables import OperatingPoint, OutcomeTable

# Examples that a version answers in one call where nothing is timed.
BATCH = 64


class Steps(Protocol):
    def advance(self, steps: int = 1) -> None: ...


class Reporter(Protocol):
    def progress(self, text: str, total: int | None = None) -> AbstractContextManager[Steps]: ...


@dataclass(frozen=True)
class Measuring:
    """What is measured: ``examples``; ``learning``: those that the ``calibration`` is learnt from, which measure
    nothing. ``prices``: of one answer by version."""

    family: ModelFamily
    examples: Split
    learning: Split | None
    calibration: str
    repeats: int
    prices: Mapping[str, float]
    provenance: Mapping[str, Any]

    def run(self, reporter: Reporter) -> tuple[ModelFamily, OutcomeTable, list[dict[str, Any]]]:
        """The family with its versions in order and their calibrations, its outcome table, and what each version is
        like (``by_cost``). Raises ``InputError`` when examples, answers and task do not fit each other."""
        family = self.family
        if self.learning is not None:
            with reporter.progress(f"learning a calibration on {len(self.learning):,} examples") as steps:
                family = family.with_calibrations(self._learnt(self.learning, steps))
        title = f"evaluating {len(family.points)} versions on {len(self.examples):,} examples"
        with reporter.progress(title, total=len(self.examples)) as steps:
            taken = ask_versions(family, self.examples.x, family.points, self.repeats, steps.advance)
        table = outcome_table(family, taken, self.examples.y, self.prices, self.provenance)
        rows = by_cost(self._rows(family, taken, table))
        return family.in_order([row["version"] for row in rows]), table, rows

    def _learnt(self, learning: Split, steps: Steps) -> dict[str, Calibration]:
        """A calibration of each version."""
        family, truth, made = self.family, true_answers(self.family, learning.y), {}
        names = [name for name in (family.task.output, family.task.confidence_output) if name is not None]
        for point in family.points:
            outputs = _answered(family, learning.x, point).joined(point, names)
            made[version_name(point)] = learn(self.calibration, family.task, outputs, truth)
            steps.advance()
        return made

    def _rows(self, family: ModelFamily, taken: Responses, table: OutcomeTable) -> list[dict[str, Any]]:
        rows = summary(table)
        error, cost, sure = (table.matrix(column) for column in ("error", "cost", "confidence"))
        for p, (row, point) in enumerate(zip(rows, taken.outputs, strict=True)):
            row |= {"error": float(error[:, p].mean()), "cost": float(cost[:, p].mean())}
            row |= {"calibration_error_before": None, "calibration_error": None}
            if self.calibration == NONE:
                continue
            right = rightness(error[:, p])
            before = np.array([float(found[0]) for found in map(family.task.confidences, taken.outputs[point])])  # type: ignore[index]
            row["calibration_error_before"] = expected_calibration_error(before, right)
            row["calibration_error"] = expected_calibration_error(sure[:, p], right)
        return rows


def by_cost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fastest first, but the one of least error last; ``dominated``: another is no slower and errs less."""
    rows = sorted(rows, key=lambda row: row["median_latency_s"])
    best = min(rows, key=lambda row: (row["error"], row["median_latency_s"]))
    rows = [row for row in rows if row is not best] + [best]
    for row in rows:
        row["dominated"] = any(
            other["median_latency_s"] <= row["median_latency_s"] and other["error"] < row["error"] for other in rows
        )
    return rows


def joined(splits: Sequence[Split]) -> Split:
    """The examples of all ``splits``, one after another."""
    x, y = ([getattr(split, side) for split in splits] for side in ("x", "y"))
    together: Any = StoredExamples.joined(x) if isinstance(x[0], StoredExamples) else None
    if together is None:
        together = np.concatenate(x) if isinstance(x[0], np.ndarray) else concatenated(x)
    if not isinstance(y[0], LabelSets):
        return Split(together, np.concatenate(y))
    counts = np.concatenate([sets.counts for sets in y])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Split(together, LabelSets(indptr, np.concatenate([sets.indices for sets in y])))


def _answered(family: ModelFamily, x: Any, point: OperatingPoint) -> Responses:
    """What a version answers to all of ``x``, untimed; in batches where their lengths agree."""
    outputs = []
    for start in range(0, len(x), BATCH):
        part = x[start : start + BATCH]
        size = 1 if isinstance(part, RaggedColumns) else BATCH
        outputs += [family.respond(part[at : at + size], point) for at in range(0, len(part), size)]
    return Responses({point: outputs}, np.empty((1, 0)))
