"""Tolerance tiers: the certified rule for what the query tolerates and wants to save."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from slotool.errors import InputError
from slotool.rules import points
from slotool.rules.ruleset import Rule, RuleSet
from slotool.scheduling.edf import EdfQueue, WorkerState
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import RESPONSE_TIME, Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# Tolerances whose ensembles are remembered: any client may ask for another.
MAX_KNOWN = 1_000


def worst_us(space: ControlSpace, point: OperatingPoint, sizes: Sequence[int]) -> list[float]:
    """µs of a call of each size if every version of ``point`` is consulted for each example, never falling; 0 where
    ``space`` does not know."""
    return list(accumulate((space.latency_us(point, size) or 0.0 for size in sizes), max))


class ToleranceTiers(Policy):
    """The rule of the tier the query asked for; nothing to say on a query without a tolerance.

    A tolerance below the strictest tier is served by the best version, which every tolerance is relative to. When
    the tier's ensemble could miss the deadline, stricter tiers are tried, and at last the best version alone: they keep
    the wider tolerance as well. ``space`` may know the latencies of single versions; an ensemble's is the worst case,
    all versions consulted.
    Waiting queries whose tier names the same ensemble share a call: as many as would be in time with the most urgent of
    them even if every version were consulted for each. Each version then answers a batch, of those that go on to it.
    One of whose versions latencies are known of single examples only takes one query at a time.
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
        # Per tolerance and objective, the ensemble asked for; per ensemble, sizes of its calls and their worst cases.
        self._own: dict[tuple[float, str], OperatingPoint | None] = {}
        self._rooms: dict[OperatingPoint, tuple[tuple[int, ...], list[float]]] = {}
        self.points = tuple(dict.fromkeys([*own, *self._in_turn.values(), self._best]))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None:
            return None
        decision = self.decide_alone(now_us, query, queue)
        if len(queue) > 1 and isinstance(decision, Decision):
            room = self._room(decision.point, query.slack_us(now_us))
            return decision._replace(batch_size=max(room, query.examples))
        return decision

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

    def own_point(self, query: Query) -> OperatingPoint | None:
        """The ensemble of its tier, its versions in turn."""
        if query.tolerance is None:
            return None
        key = query.tolerance, query.objective
        if key not in self._own:
            first = next(self._candidates(query), None) if query.objective in self._tiers else None
            if len(self._own) > MAX_KNOWN:
                self._own.clear()
            self._own[key] = None if first is None else self._in_turn.get(first.point, first.point)
        return self._own[key]

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        own = self.own_point(query)
        return own is not None and own == self._in_turn.get(point, point)

    def decision_for(self, query: Query, decision: Decision) -> Decision:
        if self.serves(decision.point, query):
            own = next(self._candidates(query))
            return decision._replace(reason=own.reason, rule=own.rule)
        return decision

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._space.latency_us(point, examples) or 0.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({size for point in self.points for size in self._space.call_sizes(point)}))

    def _room(self, point: OperatingPoint, slack_us: float) -> int:
        """The most examples of a call at ``point`` within ``slack_us``."""
        found = self._rooms.get(point)
        if found is None:
            sizes = self._space.call_sizes(point)
            found = self._rooms[point] = sizes, worst_us(self._space, point, sizes)
        sizes, taken_us = found
        return sizes[max(0, bisect_right(taken_us, slack_us) - 1)]

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
