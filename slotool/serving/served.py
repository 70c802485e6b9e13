"""What is served under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel
from slotool.rules.policies.points import in_turn
from slotool.scheduling import ControlSpace, Policy
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.rules.ruleset.rules import RuleSet

# The only version of every model.
VERSION = "1"


@dataclass(frozen=True)
class ServedModel:
    """A model and the policy that chooses its operating points.

    ``rules``: the tolerance tiers the policy follows, if any. ``path``: the artifact it came from, for engines that
    load it in worker processes. ``accuracy``: mean accuracy by point, as far as it is known.
    ``space``: points with the latencies of the table, before any correction. ``manifest``: the artifact's when it was
    read, by which another one at the same path is noticed.
    """

    name: str
    model: ElasticModel
    policy: Policy
    rules: RuleSet | None = None
    path: Path | None = None
    accuracy: Mapping[OperatingPoint, float] = field(default_factory=dict)
    space: ControlSpace | None = None
    manifest: bytes = b""

    @cached_property
    def objectives(self) -> frozenset[str]:
        """Objectives that the rules have tiers for."""
        return frozenset(rule.objective for rule in self.rules.rules) if self.rules is not None else frozenset()

    @cached_property
    def expected_accuracy(self) -> Mapping[OperatingPoint, float]:
        """Mean accuracy of the points and of the tiers' ensembles, as far as it is known.

        An ensemble's error is the best version's and the degradation its rule was observed to have, where that is one
        of the mean error.
        """
        known = dict(self.accuracy)
        if self.rules is None or self.rules.tolerance_kind == "quantile":
            return known
        for rule in self.rules.rules:
            best = self.rules.best_error
            more = rule.degradation * (best if self.rules.tolerance_kind == "relative" else 1.0)
            for point in (rule.point, in_turn(rule.point)):
                if point is not None:
                    known.setdefault(point, 1.0 - best - more)
        return known

    def accuracy_for(self, x: Inputs) -> dict[OperatingPoint, float] | None:
        """Per point the lowest that is expected of any example of ``x``: a request's minimum must hold for each. None
        where the model does not say."""
        if not self.model.estimates_each:
            return None
        rows: Any = x
        each = [self.model.expected_accuracy(rows[i : i + 1]) for i in range(len(x))]
        known = [expected for expected in each if expected is not None]
        if len(known) < len(each):
            return None
        return {point: min(expected.get(point, 0.0) for expected in known) for point in known[0]}
