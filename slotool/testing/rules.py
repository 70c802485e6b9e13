"""What every rule generator must satisfy, as a class of tests to inherit from.

``class TestMine(RuleGeneratorConformance): make = staticmethod(Mine)`` is all a new generator needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from slotool import strict_json
from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
from slotool.rules.policies.cascades import TableAsked
from slotool.rules.policies.conditions import Condition, condition_of
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import RuleSet
from slotool.tables import OutcomeTable


def family_outcomes(
    examples: int = 600, seed: int = 0, error: tuple[float, ...] = (0.2, 0.12, 0.08), continuous: bool = False
) -> OutcomeTable:
    """A made-up family, fastest version first: harder examples are wrong more often and answered less surely."""
    draw = np.random.default_rng(seed)
    hard = draw.beta(0.4, 3.0, examples)
    frames = []
    for rank, rate in enumerate(error):
        wrong_at = np.clip(hard * rate / (0.4 / 3.4), 0.0, 1.0)
        wrong = (draw.random(examples) < wrong_at).astype(float)
        values = {
            "example": [f"e{i}" for i in range(examples)],
            "version": ("small", "medium", "large", "huge")[rank],
            "error": wrong * draw.random(examples) if continuous else wrong,
            "confidence": np.round(1.0 - 0.9 * hard * draw.uniform(0.7, 1.0, examples), 3),
            "latency_s": 0.001 * 3**rank * draw.lognormal(0.0, 0.1, examples),
        }
        frames.append(pd.DataFrame(values))
    return OutcomeTable(pd.concat(frames, ignore_index=True))


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
        holds = self.condition.holds(TableAsked(outcomes))
        assert holds.dtype == bool
        assert 0 < holds.sum() < len(holds)
        for row in range(0, 200, 9):
            alone = self.condition.holds(TableAsked(outcomes.examples_at(np.array([row]))))
            assert alone.tolist() == [holds[row]]
        assert [self.condition.holds_one(_One(outcomes, row)) for row in range(200)] == holds.tolist()

    def test_it_does_not_hold_where_no_answer_was_given(self) -> None:
        class Silent(TableAsked):
            def confidence(self, version: str) -> np.ndarray:
                return np.full_like(super().confidence(version), np.nan)

        class SilentOne(_One):
            def confidence(self, version: str) -> float:
                return math.nan

        outcomes = answered_outcomes()
        assert not self.condition.holds(Silent(outcomes)).any()
        assert not any(self.condition.holds_one(SilentOne(outcomes, row)) for row in range(200))


class _One:
    """A single request of a table, as a server looks at it."""

    def __init__(self, outcomes: OutcomeTable, row: int):
        self._asked, self._row = TableAsked(outcomes), row

    def confidence(self, version: str) -> float:
        return float(self._asked.confidence(version)[self._row])

    def label(self, version: str) -> str:
        return str(self._asked.label(version)[self._row])

    def feature(self, name: str) -> float:
        return float(self._asked.feature(name)[self._row])


Population = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def rare_one_sided(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Unsure of 5 % the fast versions are wrong; so they are, surely, on 0.2 %, and a table of 500 may show none.

    Like every population: errors and confidences of three versions, float64 [examples, 3].
    """
    rare, unsure, hopeless = (draw.random(examples) < rate for rate in (0.002, 0.05, 0.05))
    error = np.stack([rare | unsure | hopeless, rare | unsure | hopeless, hopeless], axis=1)
    sure = np.where(unsure, 0.3, 0.8)[:, None] + 0.1 * draw.random((examples, 3))
    return error.astype(float), sure + np.array([0.0, 0.0, 0.1])


def common(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Every tenth to fourth answer is wrong, mostly the same ones, and confidence tells a little."""
    hard = draw.random((examples, 1))
    error = hard * draw.uniform(0.8, 1.2, (examples, 3)) > np.array([0.74, 0.8, 0.84])
    return error.astype(float), 1.0 - 0.5 * hard * draw.random((examples, 3))


def common_and_tied(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """A quarter wrong, versions nearly equal (the best one is a draw of luck), four levels of confidence."""
    error = draw.random((examples, 3)) < [0.26, 0.25, 0.25]
    return error.astype(float), np.round(3 * (0.7 - 0.1 * error + 0.3 * draw.random((examples, 3)))) / 3


def continuous(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors as of speech recognition: mostly small, correlated across versions."""
    hard = draw.random((examples, 1))
    error = np.clip(hard * [1.0, 0.95, 0.93] * draw.random((examples, 3)), 0, 1) ** 2
    return error, np.round(1 - 0.5 * hard - 0.3 * draw.random((examples, 3)), 2)


POPULATIONS: dict[str, Population] = {
    "rare one-sided": rare_one_sided,
    "common": common,
    "common, tied": common_and_tied,
    "continuous": continuous,
}


def population_outcomes(error: np.ndarray, sure: np.ndarray) -> OutcomeTable:
    """What a population drew as a table; latencies as of ``family_outcomes``."""
    rows = family_outcomes(len(error), error=(0.1,) * error.shape[1]).rows
    return OutcomeTable(rows.assign(error=error.T.ravel(), confidence=sure.T.ravel()))


def excesses_over_bound(rules: RuleSet, truth: OutcomeTable) -> Iterator[np.ndarray]:
    """Per ensemble of ``rules`` with a bound how far above it each answer's degradation is: float64 [examples].

    The best version is the truly best one where the rules' bounds lie above that."""
    name = min(rules.references(truth), key=lambda own: OSFA(own).replay(truth).error.mean())
    truth = rules.losses(truth, name)
    best = OSFA(name).replay(truth).error
    for point, bound in {rule.point: rule.bound for rule in rules.rules}.items():
        if bound is None:
            continue
        allowed = bound * (best if rules.tolerance_kind == "relative" else 1.0)
        yield from_point(point).replay(truth).error - best - allowed


class RuleGeneratorConformance:
    """The promises of ``RuleGenerator``, on ordinary tables and on those where a statistic is undefined."""

    make: Callable[[], RuleGenerator]

    def _assess(
        self, outcomes: OutcomeTable, kind: str = "relative", reference: str | None = None
    ) -> tuple[Problem, Assessment]:
        tolerances = (0.0, 0.05, 0.1)
        problem = Problem(outcomes, tolerances, kind, 0.95, thresholds=8, reference=reference)  # type: ignore[arg-type]
        return problem, self.make().assess(problem)

    def test_it_assesses_every_candidate(self) -> None:
        for kind in ("relative", "absolute"):
            _, found = self._assess(family_outcomes(), kind)
            for values in (found.bound, found.response_time_s, found.cost):
                assert values.shape == (len(found.candidates),)
                assert not np.isnan(values).any()
            assert np.isfinite(found.response_time_s).all()
            assert np.isfinite(found.cost).all()

    def test_the_version_that_tolerances_are_relative_to_may_always_serve_alone(self) -> None:
        for reference in ("medium", "large"):
            problem, found = self._assess(family_outcomes(), reference=reference)
            best = found.candidates.best
            assert found.bound[best] <= 0.0
            assert problem.outcomes.versions[problem.best] == reference
            assert found.candidates.policy(best).versions == (reference,)

    def test_the_best_version_in_the_table_is_bounded_without_a_reference_only_by_a_proof(self) -> None:
        problem, found = self._assess(family_outcomes())
        best = found.candidates.best
        assert found.bound[best] <= 0.0 or self.make().any_best
        assert found.candidates.policy(best).versions == (problem.outcomes.versions[problem.best],)

    def test_no_bound_is_below_what_was_observed(self) -> None:
        for kind in ("relative", "absolute"):
            problem, found = self._assess(family_outcomes(2000), kind)
            error = found.candidates.means().error
            observed = problem.degradation(error, float(error[found.candidates.best]))
            assert (found.bound >= observed - 1e-9).all()

    def test_the_same_seed_gives_the_same_assessment(self) -> None:
        _, once = self._assess(family_outcomes())
        _, again = self._assess(family_outcomes())
        np.testing.assert_array_equal(once.bound, again.bound)

    def test_tables_without_any_spread_are_assessed_too(self) -> None:
        for error in (0.0, 1.0):
            rows = family_outcomes(60).rows.assign(error=error, latency_s=0.001, cost=0.001)
            _, found = self._assess(OutcomeTable(rows), reference="large")
            assert found.bound[found.candidates.best] <= 0.0
            assert not np.isnan(found.bound).any()
