"""Tolerance tiers: the certified rule for what the query tolerates and wants to save."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

from slotool.errors import InputError
from slotool.rules import points
from slotool.rules.ruleset import Rule, RuleSet
from slotool.scheduling.edf import EdfQueue, WorkerState
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import RESPONSE_TIME, Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint


class ToleranceTiers(Policy):
    """The rule of the tier the query asked for; nothing to say on a query without a tolerance.

    A tolerance below the strictest tier is served by the best version, which every tolerance is relative to. When
    the tier's ensemble could miss the deadline, stricter tiers are tried, and at last the best version alone: they keep
    the wider tolerance as well. ``space`` may know the latencies of single versions; an ensemble's is the worst case,
    all versions consulted.
    Where only one worker is idle, a Conc ensemble is taken one version after the other: the same answers, later.
    Source: tolerance-tiers, §IV.
    """

    decides_alone = True

    def __init__(self, rules: RuleSet, space: ControlSpace):
        self._rules, self._space = rules, space
        self._best = OperatingPoint.of(policy="osfa", version=rules.best_version)
        own = [rule.point for rule in rules.rules]
        self._tiers = {
            objective: sorted((r for r in rules.rules if r.objective == objective), key=lambda rule: -rule.tolerance)
            for objective in {rule.objective for rule in rules.rules}
        }
        self._in_turn = {point: other for point in own if (other := points.in_turn(point)) is not None}
        self.points = tuple(dict.fromkeys([*own, *self._in_turn.values(), self._best]))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        return None if query is None else self.decide_alone(now_us, query, queue)

    def decide_alone(self, now_us: float, query: Query, workers: WorkerState) -> Decision | CannotMeet | None:
        if query.tolerance is None:
            return None
        slack_us = query.slack_us(now_us)
        tried = []
        try:
            for candidate in self._candidates(query):
                in_turn = candidate.concurrent and workers.concurrent_slots() < 2
                decision = self._taken_in_turn(candidate) if in_turn else candidate
                if self._space.fits(decision.point, query.examples, slack_us):
                    return decision
                tried.append(decision.point)
        except InputError as error:
            return CannotMeet(str(error))
        return CannotMeet(self._space.too_slow(tried, query.examples, slack_us))

    def choices(self, tolerance: float, objective: str = RESPONSE_TIME) -> list[tuple[OperatingPoint, OperatingPoint]]:
        """What a query of this tolerance is offered, in the order in which ``decide`` tries it: the ensemble while two
        workers are idle, and while one is. Raises ``InputError`` for an objective without tiers."""
        offered = [decision.point for decision in self._candidates(Query("", 0.0, math.inf, tolerance, objective))]
        return [(point, self._in_turn.get(point, point)) for point in dict.fromkeys(offered)]

    def _candidates(self, query: Query) -> Iterator[Decision]:
        """The tier asked for, then the stricter ones, widest first. Raises ``InputError`` for an unknown objective."""
        assert query.tolerance is not None
        if query.objective not in self._tiers:
            self._rules.rule_for(query.tolerance, query.objective)  # says what there is
        tiers = self._tiers[query.objective]
        if query.tolerance < (strictest := tiers[-1].tolerance):
            reason = f"tolerance {query.tolerance:g} is below the strictest tier, {strictest:g}: the best version"
            yield Decision(self._best, query.examples, reason)
            return
        # Most requests take the first: a hundred tiers are not looked at for it.
        at = bisect_left(tiers, -query.tolerance - 1e-12, key=lambda rule: -rule.tolerance)
        for rule in tiers[at:]:
            yield self._decision(query, rule)
        reason = f"every tier for tolerance {query.tolerance:g} could miss the deadline: the best version"
        yield Decision(self._best, query.examples, reason)

    def _decision(self, query: Query, rule: Rule) -> Decision:
        shown = f" ({rule.note})" if rule.note else ""
        reason = f"tier {rule.tolerance:g} of {rule.objective} for tolerance {query.tolerance:g}{shown}"
        return Decision(rule.point, query.examples, reason, rule.id, concurrent=rule.point in self._in_turn)

    def _taken_in_turn(self, decision: Decision) -> Decision:
        reason = f"{decision.reason}; one version after the other, as one worker is idle"
        return decision._replace(point=self._in_turn[decision.point], reason=reason, concurrent=False)
