"""Conformance of rule generators, as a class of tests to inherit from.

``class TestMine(RuleGeneratorConformance): make = staticmethod(Mine)`` is all a new generator needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
from slotool.tables import OutcomeTable


def family_outcomes(
    examples: int = 600, seed: int = 0, error: tuple[float, ...] = (0.2, 0.12, 0.08), continuous: bool = False
) -> OutcomeTable:
    """Return a made-up family, fastest version first: harder examples are wrong more often and answered less surely."""
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
            _, assessed = self._assess(family_outcomes(), kind)
            for values in (assessed.bound, assessed.response_time_s, assessed.cost):
                assert values.shape == (len(assessed.candidates),)
                assert not np.isnan(values).any()
            assert np.isfinite(assessed.response_time_s).all()
            assert np.isfinite(assessed.cost).all()

    def test_the_version_that_tolerances_are_relative_to_may_always_serve_alone(self) -> None:
        for reference in ("medium", "large"):
            problem, assessed = self._assess(family_outcomes(), reference=reference)
            best = assessed.candidates.best
            assert assessed.bound[best] <= 0.0
            assert problem.outcomes.versions[problem.best] == reference
            assert assessed.candidates.policy(best).versions == (reference,)

    def test_the_best_version_in_the_table_is_bounded_without_a_reference_only_by_a_proof(self) -> None:
        problem, assessed = self._assess(family_outcomes())
        best = assessed.candidates.best
        assert assessed.bound[best] <= 0.0 or self.make().any_best
        assert assessed.candidates.policy(best).versions == (problem.outcomes.versions[problem.best],)

    def test_no_bound_is_below_what_was_observed(self) -> None:
        for kind in ("relative", "absolute"):
            problem, assessed = self._assess(family_outcomes(2000), kind)
            error = assessed.candidates.means().error
            observed = problem.degradation(error, float(error[assessed.candidates.best]))
            assert (assessed.bound >= observed - 1e-9).all()

    def test_the_same_seed_gives_the_same_assessment(self) -> None:
        _, once = self._assess(family_outcomes())
        _, again = self._assess(family_outcomes())
        np.testing.assert_array_equal(once.bound, again.bound)

    def test_tables_without_any_spread_are_assessed_too(self) -> None:
        for error in (0.0, 1.0):
            rows = family_outcomes(60).rows.assign(error=error, latency_s=0.001, cost=0.001)
            _, assessed = self._assess(OutcomeTable(rows), reference="large")
            assert assessed.bound[assessed.candidates.best] <= 0.0
            assert not np.isnan(assessed.bound).any()
