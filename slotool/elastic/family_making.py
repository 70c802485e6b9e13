"""A model family measured on labelled examples: its versions in order, what each is like, calibrations learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slotool.data.columns import RaggedColumns
from slotool.data.dataset import Split
from slotool.elastic.evaluation import Responses, ask_versions, outcome_table, summary, true_answers
from slotool.elastic.family import Family
from slotool.elastic.model import identities, version_name
from slotool.errors import InputError
from slotool.models.calibration import (
    NONE,
    Calibration,
    expected_calibration_error,
    held_back_errors,
    learn,
    rightness,
)
from slotool.models.tasks import reads_scores, scores_held, with_scores
from slotool.printable import counted
from slotool.progress import Progress, Reporter
from slotool.tables import OperatingPoint, OutcomeTable
from slotool.timing.turns import Turns

# Examples that a version answers in one call where nothing is timed.
BATCH = 64


@dataclass(frozen=True)
class _Learnt:
    """A calibration, and the calibration error of examples held back from it, before and after."""

    calibration: Calibration
    before: float | None
    after: float | None

    @property
    def helps(self) -> bool:
        """True if it does no harm, as far as that is known."""
        return self.before is None or self.after is None or self.after <= self.before


@dataclass(frozen=True)
class Measuring:
    """Measurement of a family on ``examples``, with a ``calibration`` learnt from other ones, ``learning``.

    ``keep``: keep a calibration even if it increases the held-out error. ``prices``: of one answer by version.
    ``is_stated``: the task is right about the scores although their values contradict.
    ``kept``: further columns of the outcome table, text by example.
    """

    family: Family
    examples: Split
    learning: Split | None
    calibration: str
    repeats: int
    prices: Mapping[str, float]
    provenance: Mapping[str, Any]
    keep: bool = False
    is_stated: bool = False
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)

    def run(self, reporter: Reporter) -> tuple[Family, OutcomeTable, list[dict[str, Any]]]:
        """Return the calibrated family, its outcome table, and a summary of each version (``by_cost``).

        Raises ``InputError`` if examples, answers and task do not fit each other.
        """
        family, learnt = self.family, dict[str, _Learnt]()
        if self.learning is not None:
            with reporter.progress(f"learning a calibration on {len(self.learning):,} examples") as steps:
                answers = Responses({point: _answered(family, self.learning.x, point) for point in family.points})
                family = self._reading(answers)
                learnt = self._learnt(family, answers, true_answers(family, self.learning.y), steps)
            selected = {name: result.calibration for name, result in learnt.items() if self.keep or result.helps}
            family = family.with_calibrations(selected)
        versions, examples = counted(len(family.points), "version"), counted(len(self.examples), "example")
        title = f"evaluating {versions} on {examples}"
        with reporter.progress(title, total=len(self.examples)) as steps:
            answered = ask_versions(family, self.examples, family.points, self.repeats, steps.advance)
        if self.learning is None:
            family = self._reading(answered)
        provenance = {**self.provenance, "models": identities(family)}
        table = outcome_table(family, answered, self.examples.y, self.prices, provenance, self.kept)
        rows = by_cost(self._rows(family, answered, table, learnt), answered.turns)
        return family.in_order([row["version"] for row in rows]), table, rows

    def _reading(self, answers: Responses) -> Family:
        """Return the family whose task takes scores for what their values are."""
        family, task = self.family, self.family.task
        joined = {point: answers.joined(point, [task.output]) for point in family.points if reads_scores(task)}
        formats = {point: scores_held(task, outputs) for point, outputs in joined.items()}
        for version, (point, scores) in zip(family.versions, formats.items(), strict=False):
            if scores != formats[family.points[0]]:
                name = {ours: native for native, ours in version.outputs.items()}.get(task.output, task.output)
                raise InputError(
                    f"{point}: its output {name!r} holds {scores} by its values, that of {family.points[0]} "
                    f"{formats[family.points[0]]}; save all versions with or all without a softmax at their end"
                )
        return (
            family.with_task(with_scores(task, formats[family.points[0]])) if formats and not self.is_stated else family
        )

    def _learnt(self, family: Family, answers: Responses, truth: np.ndarray, steps: Progress) -> dict[str, _Learnt]:
        """Return a calibration of each version."""
        summaries = {}
        names = [name for name in (family.task.output, family.task.confidence_output) if name is not None]
        for point in family.points:
            outputs = family.numbered(answers.joined(point, names))
            calibration = learn(self.calibration, family.task, outputs, truth)
            held_back = held_back_errors(self.calibration, family.task, outputs, truth)
            summaries[version_name(point)] = _Learnt(calibration, *held_back)
            steps.advance()
        return summaries

    def _rows(
        self, family: Family, answered: Responses, table: OutcomeTable, learnt: Mapping[str, _Learnt]
    ) -> list[dict[str, Any]]:
        rows = summary(table)
        error, cost, sure = (table.matrix(column) for column in ("error", "cost", "confidence"))
        for p, (row, point) in enumerate(zip(rows, answered.outputs, strict=True)):
            row |= {"variant": p, "error": float(error[:, p].mean()), "cost": float(cost[:, p].mean())}
            row |= {"calibration_error_before": None, "calibration_error": None}
            calibration, name = learnt.get(version_name(point)), version_name(point)
            row |= {"calibrated": name in family.calibrations}
            row |= {
                "held_back_before": calibration and calibration.before,
                "held_back_after": calibration and calibration.after,
            }
            if self.calibration == NONE:
                continue
            right = rightness(error[:, p])
            raw = map(family.task.confidences, answered.outputs[point])
            before = np.array([float(each[0]) for each in raw])  # type: ignore[index]
            row["calibration_error_before"] = expected_calibration_error(before, right)
            row["calibration_error"] = expected_calibration_error(sure[:, p], right)
        return rows


def by_cost(rows: list[dict[str, Any]], turns: Turns | None) -> list[dict[str, Any]]:
    """Return rows fastest first, but the one of least error last.

    ``dominated``: another is no slower and errs less; ``undecided``: versions that may be faster or slower, as the
    machine was disturbed. ``turns``: the timed calls, of the version number ``variant``.
    """
    rows = sorted(rows, key=lambda row: row["median_latency_s"])
    best = min(rows, key=lambda row: (row["error"], row["median_latency_s"]))
    rows = [row for row in rows if row is not best] + [best]
    for row in rows:
        row["undecided"] = [
            other["version"]
            for other in rows
            if other is not row and turns is not None and not turns.is_decided(row["variant"], other["variant"])
        ]
        row["dominated"] = any(
            other["median_latency_s"] <= row["median_latency_s"]
            and other["error"] < row["error"]
            and other["version"] not in row["undecided"]
            for other in rows
        )
    for row in rows:
        del row["variant"]
    return rows


def _answered(family: Family, x: Any, point: OperatingPoint) -> list[Mapping[str, np.ndarray]]:
    """Return a version's answers to ``x``, untimed; in batches if their lengths agree."""
    outputs: list[Mapping[str, np.ndarray]] = []
    for start in range(0, len(x), BATCH):
        part = x[start : start + BATCH]
        size = 1 if isinstance(part, RaggedColumns) else BATCH
        outputs += [family.respond(part[at : at + size], point) for at in range(0, len(part), size)]
    return outputs
