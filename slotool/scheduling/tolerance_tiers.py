"""Tolerance tiers: the certified rule for what the query tolerates and wants to save."""

from __future__ import annotations

from dataclasses import replace

from slotool.errors import InputError
from slotool.rules.points import in_turn
from slotool.rules.ruleset import Rule, RuleSet
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint


class ToleranceTiers(Policy):
    """The rule of the tier the query asked for; nothing to say on a query without a tolerance.

    A tolerance below the strictest tier is served by the best version, which every tolerance is relative to. When
    the tier's ensemble could miss the deadline, stricter tiers are tried: they keep the wider tolerance as well.
    ``space`` may know the latencies of single versions; an ensemble's is the worst case, both versions consulted.
    Where only one worker is idle, a Conc ensemble is taken one version after the other: the same answers, later.
    Source: tolerance-tiers, §IV.
    """

    def __init__(self, rules: RuleSet, space: ControlSpace):
        self._rules, self._space = rules, space
        self._best = OperatingPoint.of(policy="osfa", version=rules.best_version)
        own = [rule.point for rule in rules.rules]
        self._in_turn = {point: other for point in own if (other := in_turn(point)) is not None}
        self.points = tuple(dict.fromkeys([*own, *self._in_turn.values(), self._best]))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None or query.tolerance is None:
            return None
        slack_us = query.slack_us(now_us)
        try:
            candidates = self._candidates(query)
        except InputError as error:
            return CannotMeet(str(error))
        if any(decision.concurrent for decision in candidates) and queue.concurrent_slots() < 2:
            candidates = [self._taken_in_turn(decision) for decision in candidates]
        for decision in candidates:
            if self._space.fits(decision.point, query.examples, slack_us):
                return decision
        return CannotMeet(self._space.too_slow((d.point for d in candidates), query.examples, slack_us))

    def _candidates(self, query: Query) -> list[Decision]:
        """The tier asked for, then the stricter ones, widest first. Raises ``InputError`` for an unknown objective."""
        assert query.tolerance is not None
        tiers = [rule for rule in self._rules.rules if rule.objective == query.objective]
        strictest = min((rule.tolerance for rule in tiers), default=0.0)
        if tiers and query.tolerance < strictest:
            reason = f"tolerance {query.tolerance:g} is below the strictest tier, {strictest:g}: the best version"
            return [Decision(self._best, query.examples, reason)]
        asked = self._rules.rule_for(query.tolerance, query.objective)
        stricter = sorted((r for r in tiers if r.tolerance < asked.tolerance), key=lambda r: -r.tolerance)
        return [self._decision(query, rule) for rule in (asked, *stricter)]

    def _decision(self, query: Query, rule: Rule) -> Decision:
        shown = f" ({rule.note})" if rule.note else ""
        reason = f"tier {rule.tolerance:g} of {rule.objective} for tolerance {query.tolerance:g}{shown}"
        return Decision(rule.point, query.examples, reason, rule.id, concurrent=rule.point in self._in_turn)

    def _taken_in_turn(self, decision: Decision) -> Decision:
        if not decision.concurrent:
            return decision
        reason = f"{decision.reason}; one version after the other, as one worker is idle"
        return replace(decision, point=self._in_turn[decision.point], reason=reason, concurrent=False)
