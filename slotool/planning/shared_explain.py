"""Why a plan of several models is as it is: what limits each, and whose calls take whose time.

What is varied is one thing at a time, for all models or for one of them, and a limit is where any promise breaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from slotool.planning.explain import (
    ATTAINMENT,
    CONFIRMED,
    MAX_ALTERNATIVES,
    POLICY,
    WORKER_TYPE,
    WORKERS,
    Fewer,
    Margins,
    Tried,
    fewer_of,
    margins_of,
)
from slotool.planning.fleet import Found, Pool
from slotool.planning.promise import Part
from slotool.planning.sensitivity import MAX_TIMES, TRIALS, Advance, Limit, Missed, lowest_without_misses
from slotool.planning.shared import SharedFleet, SharedFleetSearch, SharedFound
from slotool.planning.traffic import Traffic
from slotool.simulation.result import IN_TIME

# Of other policies than the plan's, so many of each model are tried.
MAX_OTHERS = 2


@dataclass(frozen=True)
class SharedTried:
    """A fleet that the plan is not. ``change``: what it differs in, and ``model``: of which model, empty where of all;
    ``models``: by name, what is simulated of each on the traffic that confirmed the plan."""

    change: str
    model: str
    worker: str
    replicas: int
    cost: float
    models: dict[str, Tried]


@dataclass(frozen=True)
class SharedFewer:
    """One worker fewer for all models.

    ``models``: by name, as of ``Fewer``; of those that are short their ``deadline_us`` is the shortest, and ``traffic``
    the greatest share of their own requests, with which all promises hold. ``traffic``: the greatest share of the rate
    of all requests. ``taken``: by model that is short, by model, the share of the workers' time that its calls take
    while requests of the former that are not in time wait. ``without``: by model, what each of the others that are
    short has in time where that model has no requests.
    """

    replicas: int
    cost: float
    models: dict[str, Fewer]
    traffic: Limit | None
    taken: dict[str, dict[str, float]]
    without: dict[str, dict[str, Tried]]


@dataclass(frozen=True)
class SharedMargins:
    """How far the plan itself holds. ``models``: by name, as of ``Margins``, where their ``traffic`` is how many times
    as many requests of that model alone may come; ``traffic``: how many times as fast those of all may.
    ``busy``: by model, the share of the workers' time that its calls take."""

    models: dict[str, Margins]
    traffic: Limit | None
    busy: dict[str, float]


@dataclass(frozen=True)
class SharedReasons:
    """``fewer``: None where one worker is all there is; ``alternatives``: that would cost less, and do not hold."""

    fewer: SharedFewer | None
    alternatives: tuple[SharedTried, ...]
    margins: SharedMargins


def shared_reasons(
    search: SharedFleetSearch,
    found: Sequence[SharedFound],
    apart: Mapping[str, Sequence[Found]],
    advance: Advance = lambda steps: None,
) -> SharedReasons:
    """Of the first of ``found``, which holds. ``apart``: fleets of each model by itself; ``advance`` is called with
    ``trials_of`` in all."""
    why, best = _Why(search, advance), found[0]
    return SharedReasons(
        None if best.fewer is None else why.fewer(best.fewer),
        tuple(why.cheaper(found, apart)),
        why.margins(best.tried),
    )


def closest_shared(search: SharedFleetSearch, found: SharedFound, advance: Advance = lambda steps: None) -> SharedFewer:
    """Of a fleet that does not hold: what it lacks, and with what it would hold. ``advance`` is called with
    ``trials_of_fewer`` in all."""
    return _Why(search, advance).fewer(found.tried)


def trials_of(search: SharedFleetSearch, found: Sequence[SharedFound], apart: Mapping[str, Sequence[Found]]) -> int:
    """What ``shared_reasons`` counts while it goes on."""
    models = len(found[0].tried.pools)
    margins = 1 + (2 * models + 1) * TRIALS
    others = len(list(_Why(search, lambda steps: None).less(found, apart)))
    return margins + others + (0 if found[0].fewer is None else trials_of_fewer(found[0]))


def trials_of_fewer(found: SharedFound) -> int:
    """What ``closest_shared`` counts while it goes on: a fleet, two limits for each model and one for all, and a fleet
    without each model."""
    models = len(found.tried.pools)
    return 1 + (2 * models + 1) * TRIALS + (models if models > 1 else 0)


class _Why:
    def __init__(self, search: SharedFleetSearch, advance: Advance):
        self._search, self._advance = search, advance

    def fewer(self, fleet: SharedFleet) -> SharedFewer:
        search, traffic = self._search, self._search.confirming
        parts = search.parts(fleet.pools, CONFIRMED, traffic)
        tried = self._tried(WORKERS, "", fleet.pools, fleet.replicas)
        short = [name for name, each in tried.models.items() if each.misses]
        models = {}
        for name, part in parts.items():
            of_one = name in short
            models[name] = fewer_of(
                search.alone[name],
                tried.models[name],
                [part],
                traffic[name],
                self._shortest_deadline_us(fleet, name, 1.0, MAX_TIMES) if of_one else self._no_limit(),
                self._most_requests(fleet, name, 1 / MAX_TIMES, 1.0),
            )
        return SharedFewer(
            fleet.replicas,
            fleet.cost,
            models,
            self._greatest_traffic(fleet, 1 / MAX_TIMES, 1.0),
            {name: taken_from(name, parts, traffic) for name in short},
            self._without(fleet, short),
        )

    def _without(self, fleet: SharedFleet, short: Sequence[str]) -> dict[str, dict[str, Tried]]:
        found: dict[str, dict[str, Tried]] = {}
        for name in fleet.pools if len(fleet.pools) > 1 else ():
            others = self._search.without(name)
            left = _Why(others, self._advance)._tried(WORKERS, "", fleet.pools, fleet.replicas).models
            found[name] = {own: left[own] for own in short if own != name}
        return found

    def cheaper(self, found: Sequence[SharedFound], apart: Mapping[str, Sequence[Found]]) -> Iterator[SharedTried]:
        """What ``less`` names."""
        for each in self.less(found, apart):
            yield self._tried(*each)

    def less(
        self, found: Sequence[SharedFound], apart: Mapping[str, Sequence[Found]]
    ) -> Iterator[tuple[str, str, Mapping[str, Pool], int]]:
        """Each other type with as many workers as cost less than the plan; one worker fewer, with another policy of one
        of the models: with what it changes, of which model."""
        chosen = found[0].tried
        for each in found[1 : MAX_ALTERNATIVES + 1]:
            replicas = math.ceil(chosen.cost / each.tried.worker.price - 1e-9) - 1
            if 1 <= replicas < each.tried.replicas or not each.holds:
                yield WORKER_TYPE, "", each.tried.pools, max(1, replicas)
        if chosen.replicas == 1:
            return
        for name, pool in chosen.pools.items():
            others = [
                other
                for own in apart[name]
                if (other := own.tried.pools[0]).worker.name == pool.worker.name and other.policy != pool.policy
            ]
            for other in others[:MAX_OTHERS]:
                yield POLICY, name, {**chosen.pools, name: other}, chosen.replicas - 1

    def margins(self, fleet: SharedFleet) -> SharedMargins:
        search, traffic = self._search, self._search.confirming
        parts = search.parts(fleet.pools, CONFIRMED, traffic)
        self._advance(1)
        models = {
            name: margins_of(
                search.alone[name],
                [fleet.pools[name]],
                [part],
                traffic[name],
                self._shortest_deadline_us(fleet, name, 1 / MAX_TIMES, 1.0),
                self._most_requests(fleet, name, 1.0, MAX_TIMES),
                search.max_queue(fleet.pools),
            )
            for name, part in parts.items()
        }
        busy = {name: each.verdict.utilisation for name, each in models.items()}
        return SharedMargins(models, self._greatest_traffic(fleet, 1.0, MAX_TIMES), busy)

    def _tried(self, change: str, model: str, pools: Mapping[str, Pool], replicas: int) -> SharedTried:
        search = self._search
        fleet = search.served(pools, replicas, CONFIRMED)
        self._advance(1)
        models = {
            name: Tried(
                change,
                pool.worker.name,
                pool.policy,
                replicas,
                fleet.cost,
                pool.max_batch,
                fleet.verdicts[name],
                tuple(fleet.verdicts[name].misses(search.promises[name])),
            )
            for name, pool in fleet.pools.items()
        }
        return SharedTried(change, model, fleet.worker.name, replicas, fleet.cost, models)

    def _no_limit(self) -> Limit:
        """Where nothing is short: no limit is looked for."""
        self._advance(TRIALS)
        return Limit(None, ())

    def _shortest_deadline_us(self, fleet: SharedFleet, name: str, low: float, high: float) -> Limit:
        """Of one model, of ``low`` to ``high`` times what is promised."""
        promised_us, own = self._search.promises[name].deadline_us, self._search.alone[name]

        def missed(times: float, policies_as_promised: bool = False) -> tuple[str, ...]:
            search = self._search.with_deadline(name, times * promised_us, policies_as_promised)
            return self._missed(search, fleet, search.searched)

        # As in ``explain``: its policy of the promised deadline is there already.
        by_deadline = own.plans_by_deadline([fleet.pools[name]])
        stand_in = partial(missed, policies_as_promised=True) if by_deadline else None
        least = lowest_without_misses(low, high, missed, self._advance, stand_in)
        return least if least.value is None else replace(least, value=least.value * promised_us)

    def _most_requests(self, fleet: SharedFleet, name: str, low: float, high: float) -> Limit | None:
        """Of one model, times what it gets: fewer of its requests, or more beside them."""
        searched = self._search.searched

        def missed(fewer: float) -> tuple[str, ...]:
            own = searched[name].as_many(1 / fewer, self._search.seed)
            return self._missed(self._search, fleet, {**searched, name: own})

        return self._greatest(low, high, missed, bool(np.ptp(searched[name].arrival_s)))

    def _greatest_traffic(self, fleet: SharedFleet, low: float, high: float) -> Limit | None:
        """Of all models, times the rate: the same requests, closer to each other or further apart."""
        searched = self._search.searched

        def missed(slower: float) -> tuple[str, ...]:
            return self._missed(self._search, fleet, {name: each.faster(1 / slower) for name, each in searched.items()})

        return self._greatest(low, high, missed, any(np.ptp(each.arrival_s) for each in searched.values()))

    def _greatest(self, low: float, high: float, missed: Missed, takes_time: bool) -> Limit | None:
        """Of ``low`` to ``high`` times the traffic, where ``missed`` takes its inverse; None of traffic that takes no
        time."""
        if not takes_time:
            self._advance(TRIALS)
            return None
        least = lowest_without_misses(1 / high, 1 / low, missed, self._advance)
        return least if least.value is None else replace(least, value=1 / least.value)

    def _missed(self, search: SharedFleetSearch, fleet: SharedFleet, traffic: Mapping[str, Traffic]) -> tuple[str, ...]:
        if not search.fits(fleet.pools):
            return (ATTAINMENT,)
        served = search.served(fleet.pools, fleet.replicas, CONFIRMED, traffic)
        return tuple(f"{what} of {name}" for name, misses in served.misses(search.promises).items() for what in misses)


def taken_from(name: str, parts: Mapping[str, Part], traffic: Mapping[str, Traffic]) -> dict[str, float]:
    """By model, the share that its calls take of all that the workers compute while requests of ``name`` that are not
    in time wait: from when each comes until a worker has it, or its deadline."""
    result = parts[name].result
    late = (result.status != IN_TIME) & traffic[name].counted
    came_us, until_us = result.scenario.arrival_us[late], result.scenario.deadline_us[late]
    left_us = np.fmin(result.started_us[late], until_us)
    took_us = {
        own: float((_computed_us(part, left_us) - _computed_us(part, came_us)).sum()) for own, part in parts.items()
    }
    total = sum(took_us.values())
    return {own: each / total for own, each in took_us.items()} if total > 0 else dict.fromkeys(took_us, 0.0)


def _computed_us(part: Part, until_us: np.ndarray) -> np.ndarray:
    """What all workers together have computed for a model until each of these instants, float64 [n]. Of a call each
    request counts for its part."""
    result = part.result
    served = ~np.isnan(result.started_us)
    weight = 1.0 / result.batch[served]

    def since(at_us: np.ndarray) -> np.ndarray:
        """Summed over instants that have passed, the time since each, by weight."""
        order = np.argsort(at_us)
        count = np.searchsorted(at_us[order], until_us)
        weights, summed_us = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in (weight, weight * at_us))
        passed_us: np.ndarray = weights[count] * until_us - summed_us[count]
        return passed_us

    computed_us: np.ndarray = since(result.started_us[served]) - since(result.done_us[served])
    return computed_us
