"""A model family measured on labelled examples: its versions in order, and figures of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slotool.data.dataset import Split
from slotool.elastic.evaluation import Responses, ask_versions, outcome_table, summary
from slotool.elastic.family import Family
from slotool.elastic.model import identities
from slotool.errors import InputError
from slotool.models.tasks import reads_scores, scores_held, with_scores
from slotool.printable import counted
from slotool.progress import Reporter
from slotool.tables import OutcomeTable
from slotool.timing.turns import Turns


@dataclass(frozen=True)
class Measuring:
    """Measurement of a family on ``examples``.

    ``prices``: of one answer by version. ``is_stated``: the task is right about the scores although their values
    contradict. ``kept``: further columns of the outcome table, text by example.
    """

    family: Family
    examples: Split
    repeats: int
    prices: Mapping[str, float]
    provenance: Mapping[str, Any]
    is_stated: bool = False
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)

    def run(self, reporter: Reporter) -> tuple[Family, OutcomeTable, list[dict[str, Any]]]:
        """Return the family in order, its outcome table, and a summary of each version (``by_cost``).

        Raises ``InputError`` if examples, answers and task do not fit each other.
        """
        family = self.family
        versions, examples = counted(len(family.points), "version"), counted(len(self.examples), "example")
        title = f"evaluating {versions} on {examples}"
        with reporter.progress(title, total=len(self.examples)) as steps:
            answered = ask_versions(family, self.examples, family.points, self.repeats, steps.advance)
        family = self._reading(answered)
        provenance = {**self.provenance, "models": identities(family)}
        table = outcome_table(family, answered, self.examples.y, self.prices, provenance, self.kept)
        rows = by_cost(_rows(table), answered.turns)
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


def _rows(table: OutcomeTable) -> list[dict[str, Any]]:
    rows = summary(table)
    error, cost = (table.matrix(column).mean(axis=0) for column in ("error", "cost"))
    return [{**row, "variant": p, "error": float(error[p]), "cost": float(cost[p])} for p, row in enumerate(rows)]


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
