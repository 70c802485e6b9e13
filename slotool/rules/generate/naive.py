"""Naive-OSFA: the single version that looks best on the whole table (tolerance-tiers, §V-B)."""

from __future__ import annotations

from typing import ClassVar

from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
from slotool.rules.policies.routing import OSFA


class NaiveOSFA(RuleGenerator):
    """The degradation observed on the table as if it were the true one; single versions only. A baseline."""

    name: ClassVar[str] = "naive"

    def assess(self, problem: Problem) -> Assessment:
        candidates = problem.candidates(policies=(OSFA.kind,))
        means = candidates.means()
        bound = problem.degradation(means.error, float(means.error[candidates.best]))
        return Assessment(candidates, bound, means.response_time_s, means.cost, note="as observed, without a guarantee")
