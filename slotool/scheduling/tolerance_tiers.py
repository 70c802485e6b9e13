"""Tolerance tiers: the certified rule for what the query tolerates and wants to save."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from slotool.elastic.model import version_name
from slotool.errors import InputError
from slotool.rules.policies import points
from slotool.rules.policies.points import from_point
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling.dispatcher import MAX_PASSED
from slotool.scheduling.edf import RESPONSE_TIME, EdfQueue, Query, WorkerState
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# Tolerances whose ensembles are remembered: any client may ask for another.
MAX_KNOWN = 1_000
# A call of this share of the best rate in batches is large enough.
LARGE_ENOUGH = 0.9
# Calls that are thought ahead.
MAX_AHEAD = 32
# The weight of the last call in what is learnt of an ensemble's calls.
LAST_CALL = 0.05


def worst_us(space: ControlSpace, point: OperatingPoint, sizes: Sequence[int]) -> list[float]:
    """Return µs of a call of each size with every version of ``point`` on each example, never falling; 0 if unknown."""
    return list(accumulate((space.latency_us(point, size) or 0.0 for size in sizes), max))


def first_us(space: ControlSpace, point: OperatingPoint, sizes: Sequence[int]) -> list[float]:
    """Return µs of a call of each size of the first version of ``point``, as ``worst_us``."""
    version = from_point(point).versions[0]
    first = next((candidate for candidate in space.points if version_name(candidate) == version), point)
    longest_us = worst_us(space, point, sizes)
    return [min(pair) for pair in zip(worst_us(space, first, sizes), longest_us, strict=True)]


class EnsembleCalls:
    """Calls of an ensemble: ``sizes``, ascending from 1, with µs ``worst_us``, ``first_us`` and ``expected_us``.

    ``observe`` learns the last; until then they are the worst cases, and not ``is_known``. ``workers``: number that a
    call takes.
    """

    def __init__(self, space: ControlSpace, point: OperatingPoint, *, concurrent: bool):
        """Set up calls; ``concurrent``: the versions begin together, on a worker each."""
        self.sizes = space.call_sizes(point)
        self.worst_us, self.first_us = worst_us(space, point, self.sizes), first_us(space, point, self.sizes)
        self.workers = 2 if concurrent else 1
        self.is_known, self._share = False, 1.0

    def observe(self, examples: int, took_us: float) -> None:
        """Learn from a call's time the share of their worst case that versions after the first take.

        The first one's batches count in full, as it answers all examples.
        """
        if examples > self.sizes[-1]:
            return
        at = bisect_left(self.sizes, examples)
        first_us, longest_us = self.first_us[at], self.worst_us[at]
        share = (took_us - first_us) / (longest_us - first_us) if longest_us > first_us else 0.0
        self._share = self._share + LAST_CALL * (share - self._share) if self.is_known else share
        self.is_known = True

    def room(self, slack_us: float) -> int:
        """Return the most examples of a call within ``slack_us``; 1 where none fits."""
        return self.sizes[max(0, bisect_right(self.worst_us, slack_us) - 1)]

    def longest_us(self, examples: int) -> float:
        """Return the worst case of a call of so many; ``inf`` of more than a call takes."""
        at = bisect_left(self.sizes, examples)
        return self.worst_us[at] if at < len(self.sizes) else math.inf

    def expected_us(self, at: int) -> float:
        """Return µs of a call of the size at this place of ``sizes``."""
        first_us = self.first_us[at]
        return first_us + max(0.0, self._share) * (self.worst_us[at] - first_us)

    @property
    def enough(self) -> int:
        """The smallest size whose expected rate is ``LARGE_ENOUGH`` of the best."""
        each_us = [self.expected_us(at) / size for at, size in enumerate(self.sizes)]
        best_us = min(each_us)
        return next(size for us, size in zip(each_us, self.sizes, strict=True) if LARGE_ENOUGH * us <= best_us)


def _keeps(bound: float | None, rule: Rule) -> bool:
    """True if what has this bound may answer in place of ``rule``'s ensemble, also if that promises nothing."""
    return not rule.promised or (bound is not None and bound <= rule.tolerance + 1e-9)


class ToleranceTiers(Policy):
    """Policy by the rule of the query's tier; it decides nothing without a tolerance.

    A tolerance below the strictest tier is served by the rules' best version. When the tier's ensemble could miss the
    deadline, stricter tiers are tried, and at last that version alone, as far as their bounds keep the tolerance too.
    ``space`` may know the latencies of single versions; an ensemble's is the worst case, all versions consulted.
    Waiting queries whose tier names the same ensemble share a call: as many as would be in time with the most urgent of
    them even if every version were consulted for each. Each version then answers a batch, of those that go on to it.
    One of whose versions latencies are known of single examples only takes one query at a time. Where the most urgent
    query, or one that its call passes, leaves time for a small call only, or it leaves none for its tier's ensemble,
    and calls like it would lose others that wait, it is rejected. So calls become large again, and the time is not
    spent on the best version alone. Whether a call fits is its worst case; what it leaves to others is what it is
    expected to take, learnt by ``observe``. Where only one worker is idle, a Conc ensemble is taken one version after
    the other: the same answers, later. Source: tolerance-tiers, §IV.
    """

    def __init__(self, rules: RuleSet, space: ControlSpace):
        self._rules, self._space = rules, space
        self._best = OperatingPoint.of(policy="osfa", version=rules.best_version)
        ensembles = [rule.point for rule in rules.rules]
        self._tiers = {
            objective: sorted((r for r in rules.rules if r.objective == objective), key=lambda rule: -rule.tolerance)
            for objective in {rule.objective for rule in rules.rules}
        }
        self._in_turn = {point: other for point in ensembles if (other := points.in_turn(point)) is not None}
        # Per tolerance and objective, what is offered, as points and as calls; per ensemble, its calls.
        self._offered: dict[tuple[float, str], list[tuple[OperatingPoint, OperatingPoint]]] = {}
        self._offered_calls: dict[tuple[float | None, str], list[tuple[EnsembleCalls, EnsembleCalls]]] = {}
        self._calls: dict[OperatingPoint, EnsembleCalls] = {}
        self.points = tuple(dict.fromkeys([*ensembles, *self._in_turn.values(), self._best]))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None:
            return None
        decision = self._of_tier(now_us, query, queue)
        if len(queue) == 1 or not isinstance(decision, Decision):
            return decision
        room = self._calls_of(decision.point).room(query.slack_us(now_us))
        if (lost := self._lost_to(query, decision.point, room, now_us, queue)) is not None:
            return lost
        return decision._replace(batch_size=max(room, query.examples))

    def _of_tier(self, now_us: float, query: Query, workers: WorkerState) -> Decision | CannotMeet | None:
        """Return the decision for ``query`` where no other waits."""
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
        """Return the ensemble of its tier, its versions in turn."""
        if query.tolerance is None:
            return None
        offered = self._offered_to(query)
        return offered[0][1] if offered else None

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        preferred = self.own_point(query)
        return preferred is not None and preferred == self._in_turn.get(point, point)

    def decision_for(self, query: Query, decision: Decision) -> Decision:
        if self.serves(decision.point, query):
            preferred = next(self._candidates(query))
            return decision._replace(reason=preferred.reason, rule=preferred.rule)
        return decision

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._space.latency_us(point, examples) or 0.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({size for point in self.points for size in self._space.call_sizes(point)}))

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        if point in self.points:
            self._calls_of(point).observe(examples, took_us)

    def _lost_to(
        self, query: Query, point: OperatingPoint, room: int, now_us: float, queue: EdfQueue
    ) -> CannotMeet | None:
        """Return the reason to reject ``query`` for others, rather than answer at ``point`` in a call of ``room``."""
        one_idle = queue.concurrent_slots() < 2
        pairs = self._calls_offered(query)
        preferred = pairs[0][one_idle]
        if not preferred.is_known or query.alone:
            return None
        is_own = self._calls_of(point) is preferred
        size, is_all, passed_us = self._gathered(pairs[0], one_idle, room, now_us, queue)
        if is_own and (is_all or size >= preferred.enough):
            return None
        if not self._loses_others([pair[one_idle] for pair in pairs], passed_us, now_us, queue):
            return None
        reason_part = f"for a call of more than {size}" if is_own else "for its tier's ensemble"
        return CannotMeet(f"it leaves no time {reason_part}, and such calls would lose some of {len(queue)} that wait")

    def _gathered(
        self, pair: tuple[EnsembleCalls, EnsembleCalls], one_idle: bool, room: int, begins_us: float, queue: EdfQueue
    ) -> tuple[int, bool, float]:
        """Return the number of examples that share a call of ``pair`` with the most urgent query, as in ``Dispatcher``.

        Also True if no other could, and the longest time in µs that a passed query needs after it.
        """
        first, calls = queue.peek(), pair[one_idle]
        assert first is not None
        examples, passed, ends_by_us, passed_us = 0, 0, math.inf, 0.0
        tolerance, objective, preferred = first.tolerance, first.objective, self._own_calls(first)
        for query in queue:
            if query.tolerance != tolerance or query.objective != objective:
                # The tier mostly equals the previous query's.
                tolerance, objective, preferred = query.tolerance, query.objective, self._own_calls(query)
            if preferred is not pair[1] or query.alone or query.batch_key != first.batch_key:
                if preferred is not None:
                    needs_us = preferred.longest_us(query.examples)
                    ends_by_us, passed_us = min(ends_by_us, query.deadline_us - needs_us), max(passed_us, needs_us)
                passed += 1
                if passed > MAX_PASSED:
                    break
                continue
            count = examples + query.examples
            if count > room or (passed and begins_us + calls.longest_us(count) > ends_by_us):
                return examples, False, passed_us
            examples = count
        return examples, True, passed_us

    def _loses_others(self, offered: list[EnsembleCalls], passed_us: float, now_us: float, queue: EdfQueue) -> bool:
        """True if a query would be late with each next call the first of ``offered`` in time for the most urgent.

        Each call is as large as the most urgent query, and one that needs ``passed_us`` afterwards, have time for.
        """
        ends_by_us, idle_us, at = queue.deadlines_us, now_us, 0
        workers = max(1, int((queue.free_us < math.inf).sum()))
        for _ in range(MAX_AHEAD):
            if at >= len(ends_by_us):
                break
            slack_us = float(ends_by_us[at]) - idle_us
            calls = next((calls for calls in offered if calls.worst_us[0] <= slack_us), None)
            if calls is None:
                return True
            size = min(calls.room(slack_us - passed_us), len(ends_by_us) - at)
            idle_us += calls.workers * calls.expected_us(bisect_left(calls.sizes, size)) / workers
            at += size
        return False

    def _own_calls(self, query: Query) -> EnsembleCalls | None:
        """Return the calls of ``own_point``."""
        offered = self._calls_offered(query)
        return offered[0][1] if offered else None

    def _calls_of(self, point: OperatingPoint) -> EnsembleCalls:
        calls = self._calls.get(point)
        if calls is None:
            calls = self._calls[point] = EnsembleCalls(self._space, point, concurrent=point in self._in_turn)
        return calls

    def _calls_offered(self, query: Query) -> list[tuple[EnsembleCalls, EnsembleCalls]]:
        """Return the calls of ``choices`` of its tier; none without a tolerance, and where its objective has none."""
        key = query.tolerance, query.objective
        cached = self._offered_calls.get(key)
        if cached is None:
            if len(self._offered_calls) > MAX_KNOWN:
                self._offered_calls.clear()
            points = [] if query.tolerance is None else self._offered_to(query)
            cached = self._offered_calls[key] = [(self._calls_of(both), self._calls_of(one)) for both, one in points]
        return cached

    def _offered_to(self, query: Query) -> list[tuple[OperatingPoint, OperatingPoint]]:
        """Return ``choices`` of the query's tier; none if its objective has none."""
        assert query.tolerance is not None
        key = query.tolerance, query.objective
        cached = self._offered.get(key)
        if cached is None:
            if len(self._offered) > MAX_KNOWN:
                self._offered.clear()
            has_objective = query.objective in self._tiers
            cached = self._offered[key] = self.choices(*key) if has_objective else []
        return cached

    def choices(self, tolerance: float, objective: str = RESPONSE_TIME) -> list[tuple[OperatingPoint, OperatingPoint]]:
        """Return ensembles for two idle workers and for one, in the order in which ``decide`` tries them.

        Raises ``InputError`` for an objective without tiers.
        """
        offered = [decision.point for decision in self._candidates(Query("", 0.0, math.inf, tolerance, objective))]
        return [(point, self._in_turn.get(point, point)) for point in dict.fromkeys(offered)]

    def _candidates(self, query: Query) -> Iterator[Decision]:
        """Yield the requested tier, then stricter ones, widest first. Raises ``InputError`` for an unknown one."""
        assert query.tolerance is not None
        if query.objective not in self._tiers:
            self._rules.rule_for(query.tolerance, query.objective)  # says what there is
        tiers = self._tiers[query.objective]
        if query.tolerance < (strictest := tiers[-1].tolerance):
            reason = f"tolerance {query.tolerance:g} is below the strictest tier, {strictest:g}: the best version"
            yield Decision(self._best, query.examples, reason)
            return
        # Most requests take the first: do not search a hundred tiers for it.
        at = bisect_left(tiers, -query.tolerance - 1e-12, key=lambda rule: -rule.tolerance)
        requested = tiers[at]
        for rule in tiers[at:]:
            if rule is requested or _keeps(rule.bound, requested):
                yield self._decision(query, rule)
        if not _keeps(self._rules.best_bound, requested):
            return
        reason = f"every tier for tolerance {query.tolerance:g} could miss the deadline: the best version"
        yield Decision(self._best, query.examples, reason)

    def _decision(self, query: Query, rule: Rule) -> Decision:
        shown = f" ({rule.note})" if rule.note else ""
        reason = f"tier {rule.tolerance:g} of {rule.objective} for tolerance {query.tolerance:g}{shown}"
        return Decision(rule.point, query.examples, reason, rule.id, concurrent=rule.point in self._in_turn)

    def _taken_in_turn(self, decision: Decision) -> Decision:
        reason = f"{decision.reason}; one version after the other, as one worker is idle"
        return decision._replace(point=self._in_turn[decision.point], reason=reason, concurrent=False)
