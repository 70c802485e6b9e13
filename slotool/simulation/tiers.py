"""Requests of tolerance tiers on a virtual clock, compiled: each has an example, which says how far its cascade goes.

What a server of rules does with a request is in four places: ``ToleranceTiers`` chooses the ensemble and how many
share the call, ``Dispatcher`` takes those from the queue, a worker asks one version after the other (``PointRunner``),
and two workers ask both of a Conc ensemble (``EnsembleCall``). Here the choice is a table of
``ToleranceTiers.choices``, and how many versions an example takes is ``RoutingPolicy.asked``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.rules.cascades import MAX_STEPS
from slotool.rules.points import from_point
from slotool.rules.policies import Conc
from slotool.rules.ruleset import RuleSet
from slotool.scheduling.dispatcher import MAX_PASSED
from slotool.scheduling.space import ControlSpace, errors_at
from slotool.scheduling.tolerance_tiers import (
    LARGE_ENOUGH,
    LAST_CALL,
    MAX_AHEAD,
    ToleranceTiers,
    first_us,
    worst_us,
)
from slotool.simulation.events import ROUNDING_US
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SimulationResult
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import draw_us
from slotool.tables import OperatingPoint, OutcomeTable


class Ensembles:
    """Ensembles of versions as arrays; ``points`` name them.

    ``versions``: names, V of them, all that any consults. ``asks``: int16 [P, 4], which are asked, in turn; −1 behind
    the last. ``at_once``: bool [P], the first two begin together. ``taken``: int8 [P, examples], how many of them an
    example takes. ``correct``: float32 [P, examples], 1 less the answer's error; ``accuracy``: float64 [P], its mean.
    ``sizes``: int64 [S], ascending, of the calls that any may have, beginning with 1; ``worst_us``: float64 [P, S], all
    consulted for each example, as a server plans; 0 where ``space`` does not know, ``inf`` beyond what an ensemble
    takes. ``first_us``: float64 [P, S], of the version asked first.
    Raises ``InputError`` for versions that ``outcomes`` lack.
    """

    def __init__(self, points: Sequence[OperatingPoint], space: ControlSpace, outcomes: OutcomeTable):
        policies = [from_point(point) for point in points]
        self.points = tuple(points)
        self.versions = tuple(dict.fromkeys(version for policy in policies for version in policy.versions))
        self.asks = np.full((len(points), MAX_STEPS), -1, dtype=np.int16)
        for row, policy in enumerate(policies):
            self.asks[row, : len(policy.versions)] = [self.versions.index(version) for version in policy.versions]
        self.at_once = np.array([policy.kind == Conc.kind for policy in policies])
        self.taken = np.array([policy.asked(outcomes) for policy in policies], dtype=np.int8)
        correct = 1.0 - errors_at(points, outcomes)
        self.accuracy, self.correct = correct.mean(axis=0), np.ascontiguousarray(correct.T, dtype=np.float32)
        each = [space.call_sizes(point) for point in points]
        self.sizes = np.array(sorted({size for sizes in each for size in sizes}), dtype=np.int64)
        self.worst_us = np.full((len(points), len(self.sizes)), np.inf)
        self.first_us = np.full((len(points), len(self.sizes)), np.inf)
        for row, (point, own) in enumerate(zip(points, each, strict=True)):
            held = self.sizes <= own[-1]
            self.worst_us[row, held] = worst_us(space, point, self.sizes[held].tolist())
            self.first_us[row, held] = first_us(space, point, self.sizes[held].tolist())


def _samples(samples_us: Mapping[tuple[str, int], np.ndarray], version: str, size: int) -> np.ndarray:
    """µs measured of calls of ``version`` with ``size`` examples, or with the next larger number; beyond that of the
    largest. Raises ``InputError`` where there are none."""
    there = sorted(own for name, own in samples_us if name == version and len(samples_us[name, own]))
    if not there:
        known = ", ".join(dict.fromkeys(name for name, _ in samples_us)) or "no version"
        raise InputError(f"the latency table does not know version {version!r} of the rules; it has {known}")
    return np.asarray(samples_us[version, next((own for own in there if own >= size), there[-1])], dtype=np.float64)


@dataclass(frozen=True)
class Asked:
    """Per request, int64 [n]: ``example``, its row of the outcome table; ``tier``: which of a service's tolerances it
    asks for."""

    example: np.ndarray
    tier: np.ndarray


@dataclass(frozen=True)
class TierResult(SimulationResult):
    """``row`` is of the ensembles, and ``calls`` are of ensembles. ``versions``: names; ``version_calls``: int64, how
    often each was called. ``other_tier``: how many requests were answered by another ensemble than their tier's own.
    ``example``: int64 [n], as asked: an example that takes longer to answer is also answered wrong more often."""

    versions: tuple[str, ...]
    version_calls: np.ndarray
    other_tier: int
    example: np.ndarray

    @property
    def right(self) -> np.ndarray:
        assert isinstance(self.grid, Ensembles)
        found: np.ndarray = np.where(self.row >= 0, self.grid.correct[self.row, self.example], 0.0).astype(np.float64)
        return found


class TieredService:
    """``rules`` as workers serve them to requests of ``tiers``: pairs of a tolerance and an objective.

    ``offered``: per tier, ``ToleranceTiers.choices``. ``space``: latencies of single versions, by which a server plans;
    ``samples_us``: µs measured of calls, by version and batch size; a size that was not counts as the next larger one
    that was. ``outcomes``: the examples that requests are of. ``cancels``: a
    version that is not needed any more ends at once; else its worker is busy to its end.
    Raises ``InputError`` for an objective without tiers, and for a version without latencies or outcomes.
    """

    def __init__(
        self,
        rules: RuleSet,
        space: ControlSpace,
        samples_us: Mapping[tuple[str, int], np.ndarray],
        outcomes: OutcomeTable,
        tiers: Sequence[tuple[float, str]],
        *,
        cancels: bool = False,
    ):
        policy = ToleranceTiers(rules, space)
        self.offered = [tuple(policy.choices(tolerance, objective)) for tolerance, objective in tiers]
        rows: dict[OperatingPoint, int] = {}
        for choices in self.offered:
            for point in (point for pair in choices for point in pair):
                rows.setdefault(point, len(rows))
        self.ensembles = Ensembles(list(rows), space, outcomes)
        self.cancels = cancels
        self._choices = np.full((len(tiers), max(map(len, self.offered)), 2), -1, dtype=np.int16)
        for tier, choices in enumerate(self.offered):
            self._choices[tier, : len(choices)] = [[rows[point] for point in pair] for pair in choices]
        samples = [
            _samples(samples_us, version, size) for version in self.ensembles.versions for size in self.ensembles.sizes
        ]
        self._values, self._starts = np.concatenate(samples), np.cumsum([0, *map(len, samples)])

    def fastest_us(self, tier: int) -> float:
        """The least deadline with which a server lets a request of this tier begin."""
        return float(min(self.ensembles.worst_us[row, 0] for row in self._choices[tier, :, 1] if row >= 0))

    def rows(self, tier: int) -> list[int]:
        """Of ``ensembles``, those that a request of this tier may be answered by."""
        return sorted({int(row) for row in self._choices[tier].ravel() if row >= 0})

    def worker_us(self, tier: int) -> float:
        """Worker time that a request of this tier takes by its own ensemble, on average over the examples and in the
        best batches: its versions one after the other, as while other workers are busy."""
        row, ensembles = self._choices[tier, 0, 1], self.ensembles
        values, starts, sizes = self._values, self._starts, ensembles.sizes
        mean_us = np.array([values[first:end].mean() for first, end in pairwise(starts)]).reshape(-1, len(sizes))
        taken = ensembles.taken[row]
        asked = [
            (version, float((taken > step).mean())) for step, version in enumerate(ensembles.asks[row]) if version >= 0
        ]
        each_us = [
            sum(
                float(np.interp(share * size, sizes, mean_us[version])) * min(1.0, share * size)
                for version, share in asked
            )
            / size
            for size in sizes[np.isfinite(ensembles.worst_us[row])]
        ]
        return float(min(each_us))

    def simulate(
        self, scenario: Scenario, asked: Asked, *, seed: int = 0, call_us: float = 0.0, slower: float = 0.0
    ) -> TierResult:
        """Requests in order of arrival, those of one ensemble that wait together in batches, on the workers of
        ``scenario``; ``call_us``: what a worker's call takes besides its versions; ``slower``: by which share these
        take longer than sampled.

        Raises ``InputError`` for deadlines out of that order, priorities, minimum accuracies and workers that die.
        """
        if len(scenario.order) or scenario.min_accuracy is not None or np.isfinite(scenario.death_us).any():
            raise InputError("tiers are simulated in order of arrival, without priorities and on workers that live")
        count, ensembles = len(scenario), self.ensembles
        found = _Found(
            np.full(count, EXPIRED, dtype=np.int8),
            np.full(count, np.nan),
            np.full(count, np.nan),
            np.full(count, -1, dtype=np.int16),
            np.zeros(count, dtype=np.int16),
            np.zeros(len(ensembles.versions), dtype=np.int64),
        )
        busy_us, calls, other_tier = _run(
            _Asked(
                np.ascontiguousarray(scenario.arrival_us),
                np.ascontiguousarray(scenario.deadline_us),
                np.ascontiguousarray(asked.example),
                np.ascontiguousarray(asked.tier),
                np.zeros(count, dtype=np.bool_),
                self._choices,
            ),
            _Ensembles(
                ensembles.asks,
                ensembles.at_once,
                ensembles.taken,
                ensembles.worst_us,
                ensembles.sizes,
                ensembles.first_us,
            ),
            _Service((1 + slower) * self._values, self._starts, seed, call_us, self.cancels),
            np.zeros(len(scenario.death_us)),
            found,
        )
        return TierResult(
            ensembles, scenario, found.status, found.started_us, found.done_us, found.row, found.batch, busy_us, calls,
            ensembles.versions, found.version_calls, other_tier, asked.example,
        )  # fmt: skip


class _Asked(NamedTuple):
    """Of the requests; ``is_taken``: into a call; ``choices``: int16 [tiers, any, 2], rows of ensembles, −1 behind the
    last."""

    arrival_us: Any
    deadline_us: Any
    example: Any
    tier: Any
    is_taken: Any
    choices: Any


class _Ensembles(NamedTuple):
    asks: Any
    at_once: Any
    taken: Any
    worst_us: Any
    sizes: Any
    first_us: Any


class _Service(NamedTuple):
    """``values``, ``starts``, ``seed``: as of ``ServiceTimes``, of versions × sizes."""

    values: Any
    starts: Any
    seed: Any
    call_us: Any
    cancels: Any


class _Found(NamedTuple):
    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    version_calls: Any


@njit(cache=True)
def _busy_until(free_us: Any, at: int, until_us: float) -> None:
    """Of a heap of the instants at which workers become idle, the one at ``at`` becomes a later one."""
    count = len(free_us)
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and free_us[below + 1] < free_us[below]:
            below += 1
        if free_us[below] >= until_us:
            break
        free_us[at] = free_us[below]
        at = below
    free_us[at] = until_us


@njit(cache=True)
def _chosen(choices: Any, worst_us: Any, slack_us: float, one_idle: int) -> int:
    """The first of a tier's ensembles that fits, as ``ToleranceTiers`` has it; −1: none."""
    for at in range(len(choices)):
        row = choices[at, one_idle]
        if row < 0:
            break
        if worst_us[row, 0] <= slack_us:
            return int(row)
    return -1


@njit(cache=True)
def _room(row: int, slack_us: float, ensembles: _Ensembles) -> int:
    """The most requests of a call within ``slack_us``."""
    room = 1
    for column in range(len(ensembles.sizes)):
        if ensembles.worst_us[row, column] <= slack_us:
            room = max(room, ensembles.sizes[column])
    return room


@njit(cache=True)
def _learn(on: Any, row: int, took_us: float, column: Any, ensembles: _Ensembles) -> None:
    """``Calls.observe``: a call of an ensemble took so long; ``on``: as learnt of each, NaN before its first."""
    first_us, worst_us = ensembles.first_us[row, column], ensembles.worst_us[row, column]
    share = (took_us - first_us) / (worst_us - first_us) if worst_us > first_us else 0.0
    on[row] = share if np.isnan(on[row]) else on[row] + LAST_CALL * (share - on[row])


@njit(cache=True)
def _expected_us(row: int, column: Any, on: Any, ensembles: _Ensembles) -> float:
    """``Calls.expected_us``."""
    first_us, share = ensembles.first_us[row, column], 1.0 if np.isnan(on[row]) else max(0.0, on[row])
    return float(first_us + share * (ensembles.worst_us[row, column] - first_us))


@njit(cache=True)
def _enough(row: int, on: Any, ensembles: _Ensembles) -> int:
    """``Calls.enough``."""
    best_us, sizes = np.inf, ensembles.sizes
    for column in range(len(sizes)):
        if ensembles.worst_us[row, column] < np.inf:
            best_us = min(best_us, _expected_us(row, column, on, ensembles) / sizes[column])
    for column in range(len(sizes)):
        if LARGE_ENOUGH * _expected_us(row, column, on, ensembles) / sizes[column] <= best_us:
            return int(sizes[column])
    return 1


@njit(cache=True)
def _gather(
    asked: _Asked, head: int, end: int, row: int, room: int, now: float, ensembles: _Ensembles, members: Any
) -> tuple[int, bool, float]:
    """Put the requests before ``end`` that share the call of ``head``, ``room`` at most, into ``members``, as
    ``Dispatcher`` takes them; how many, whether these are all that could, and the longest that one it passes needs."""
    worst_us, sizes, choices = ensembles.worst_us, ensembles.sizes, asked.choices
    members[0], count, passed, ends_by_us, passed_us = head, 1, 0, np.inf, 0.0
    for query in range(head + 1, end):
        if asked.is_taken[query]:
            continue
        # Its own ensemble: both versions at once, and in turn.
        first, in_turn = choices[asked.tier[query], 0, 0], choices[asked.tier[query], 0, 1]
        if row not in (first, in_turn):
            needs_us, passed = worst_us[in_turn, 0], passed + 1
            ends_by_us, passed_us = min(ends_by_us, asked.deadline_us[query] - needs_us), max(passed_us, needs_us)
            if passed > MAX_PASSED:
                break
        elif count == room or now + worst_us[row, np.searchsorted(sizes, count + 1)] > ends_by_us:
            return count, False, passed_us
        else:
            members[count] = query
            count += 1
    return count, True, passed_us


@njit(cache=True)
def _loses_others(
    asked: _Asked, head: int, end: int, passed_us: float, one_idle: int, workers: int, now: float, on: Any,
    ensembles: _Ensembles,
) -> bool:  # fmt: skip
    """Whether calls like that of ``head`` would make a request late, as ``ToleranceTiers`` thinks ahead."""
    choices, idle_us, query = asked.choices[asked.tier[head]], now, head
    left = int((~asked.is_taken[head:end]).sum())
    for _ in range(MAX_AHEAD):
        if left == 0:
            break
        while asked.is_taken[query]:
            query += 1
        slack_us = asked.deadline_us[query] - idle_us
        row = _chosen(choices, ensembles.worst_us, slack_us, one_idle)
        if row < 0:
            return True
        size = min(_room(row, slack_us - passed_us, ensembles), left)
        needed = 2 if ensembles.at_once[row] else 1
        idle_us += needed * _expected_us(row, np.searchsorted(ensembles.sizes, size), on, ensembles) / workers
        left -= size
        while size > 0:
            size -= not asked.is_taken[query]
            query += 1
    return False


@njit(cache=True)
def _take(
    row: int, members: Any, example: Any, ensembles: _Ensembles, service: _Service, drawn: int, found: _Found
) -> tuple[float, float, int]:
    """µs that an ensemble's versions take for a batch, those of the second at once with the first apart; and the number
    of the next call of a version. Each version has those that go on to it."""
    asks, taken, sizes = ensembles.asks, ensembles.taken, ensembles.sizes
    both, took_us, second_us, steps = ensembles.at_once[row], 0.0, 0.0, 0
    for query in members:
        steps = max(steps, taken[row, example[query]])
    for step in range(2 if both else steps):
        version, count = asks[row, step], 0
        for query in members:
            count += both or taken[row, example[query]] > step
        cell = version * len(sizes) + np.searchsorted(sizes, count)
        one_us = draw_us(service.values, service.starts, cell, service.seed, drawn)
        drawn += 1
        found.version_calls[version] += count
        if step == 1 and both:
            second_us = one_us
        else:
            took_us += one_us
    return took_us, second_us, drawn


@njit(cache=True)
def _run(
    asked: _Asked, ensembles: _Ensembles, service: _Service, free_us: Any, found: _Found
) -> tuple[float, int, int]:
    at_once, taken, worst_us = ensembles.at_once, ensembles.taken, ensembles.worst_us
    call_us, members = service.call_us, np.empty(ensembles.sizes[-1], dtype=np.int64)
    now, busy_us, drawn, calls, others, workers, end = 0.0, 0.0, 0, 0, 0, len(free_us), 0
    on = np.full(len(ensembles.worst_us), np.nan)
    for query in range(len(asked.arrival_us)):
        if asked.is_taken[query]:
            continue
        now = max(now, asked.arrival_us[query], free_us[0])
        while end < len(asked.arrival_us) and asked.arrival_us[end] <= now:
            end += 1
        slack_us = asked.deadline_us[query] - now
        if slack_us <= 0:
            continue
        other = 0 if workers == 1 else 2 if workers > 2 and free_us[2] < free_us[1] else 1
        one_idle = 0 if other and free_us[other] <= now else 1
        choices = asked.choices[asked.tier[query]]
        row, own = _chosen(choices, worst_us, slack_us, one_idle), choices[0, one_idle]
        if row < 0:
            found.status[query] = REJECTED
            continue
        room = _room(row, slack_us, ensembles)
        size, is_all, passed_us = _gather(asked, query, end, row, room, now, ensembles, members)
        is_large = row == own and (is_all or size >= _enough(row, on, ensembles))
        if not (is_large or np.isnan(on[own]) or asked.is_taken[query + 1 : end].all()) and _loses_others(
            asked, query, end, passed_us, one_idle, workers, now, on, ensembles
        ):
            found.status[query] = REJECTED
            continue
        batch = members[:size]
        took_us, second_us, drawn = _take(row, batch, asked.example, ensembles, service, drawn, found)
        calls += 1
        done, both = now + took_us + call_us, at_once[row]
        busy_us += done - now
        if both:
            is_needed = False
            for each in batch:
                is_needed |= taken[row, asked.example[each]] > 1
            second = now + second_us + call_us
            if not is_needed and service.cancels:
                second = min(second, done)
            busy_us += second - now
            _busy_until(free_us, other, second)
            _busy_until(free_us, 0, done)
            if is_needed:
                done = max(done, second)
        else:
            _busy_until(free_us, 0, done)
        _learn(on, row, done - now, np.searchsorted(ensembles.sizes, size), ensembles)
        for each in batch:
            others += row != asked.choices[asked.tier[each], 0, one_idle]
            asked.is_taken[each] = True
            found.status[each] = IN_TIME if done <= asked.deadline_us[each] + ROUNDING_US else LATE
            found.started_us[each], found.done_us[each] = now, done
            found.row[each], found.batch[each] = row, size
    return busy_us, calls, others
