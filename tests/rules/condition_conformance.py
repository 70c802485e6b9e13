"""Conformance suite of conditions, on a table of answers."""

from __future__ import annotations

import json
import math

import numpy as np

from slotool import strict_json
from slotool.rules.policies.cascades import TableAnswers
from slotool.rules.policies.conditions import Condition, condition_of
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes


def answered_outcomes(examples: int = 200, seed: int = 0) -> OutcomeTable:
    """``family_outcomes`` with a column ``answer``, "a" or "b", and a number known of each request, ``size``."""
    rows = family_outcomes(examples, seed).rows
    draw = np.random.default_rng(seed + 1)
    truth, size = draw.random(examples) < 0.5, draw.integers(1, 5, examples)
    right = np.tile(truth, 3) ^ (rows["error"] > 0)
    return OutcomeTable(rows.assign(answer=np.where(right, "a", "b"), size=np.tile(size, 3)))


class ConditionConformance:
    """What every kind of condition must satisfy: ``condition`` is one of versions of ``answered_outcomes``."""

    condition: Condition

    def test_its_document_gives_it_back(self) -> None:
        again = condition_of(strict_json.decode(json.dumps(self.condition.document())))
        assert again == self.condition
        assert self.condition.words
        assert self.condition.notation.isascii()
        assert 0 < len(self.condition.notation) <= 24

    def test_it_tells_requests_apart_one_by_one_as_all_at_once(self) -> None:
        outcomes = answered_outcomes()
        holds = self.condition.holds(TableAnswers(outcomes))
        assert holds.dtype == bool
        assert 0 < holds.sum() < len(holds)
        for row in range(0, 200, 9):
            alone = self.condition.holds(TableAnswers(outcomes.examples_at(np.array([row]))))
            assert alone.tolist() == [holds[row]]
        assert [self.condition.holds(_One(outcomes, row)) for row in range(200)] == holds.tolist()

    def test_it_does_not_hold_where_no_answer_was_given(self) -> None:
        class Silent(TableAnswers):
            def confidence(self, version: str) -> np.ndarray:
                return np.full_like(super().confidence(version), np.nan)

        class SilentOne(_One):
            def confidence(self, version: str) -> float:
                return math.nan

        outcomes = answered_outcomes()
        assert not self.condition.holds(Silent(outcomes)).any()
        assert not any(self.condition.holds(SilentOne(outcomes, row)) for row in range(200))


class _One:
    """A single request of a table, as a server looks at it."""

    def __init__(self, outcomes: OutcomeTable, row: int):
        self._asked, self._row = TableAnswers(outcomes), row

    def confidence(self, version: str) -> float:
        return float(self._asked.confidence(version)[self._row])

    def label(self, version: str) -> str:
        return str(self._asked.label(version)[self._row])

    def feature(self, name: str) -> float:
        return float(self._asked.feature(name)[self._row])
