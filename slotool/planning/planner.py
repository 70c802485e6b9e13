"""The cheapest fleet that keeps the promise of each model: of one, or of several that share its workers.

Workers are shared as ``slotool serve`` shares them between the models of a service file: the request with the earliest
deadline goes first, whatever its model, and the model's own policy chooses a point and a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.planning.fleet import Fleet, Found, Pool, WorkerType
from slotool.planning.fleet_search import MAX_CONFIRMED, MAX_SEARCHED, FleetSearch, confirm, smallest_fleet
from slotool.planning.interference import Placement
from slotool.planning.promise import Promise
from slotool.planning.tiers import TierFleetSearch, Tiers
from slotool.planning.traffic import Traffic
from slotool.simulation import Scenario, SimulationResult
from slotool.simulation.events import MAX_MODELS, simulate_together
from slotool.simulation.service import Overhead
from slotool.tables import OutcomeTable

# Of each model the policies that do best on workers of its own, and of their combinations the likeliest.
MAX_POLICIES, MAX_COMBINATIONS = 3, 27
# Of a model that gets few of the requests of long traffic at least so many are simulated.
MIN_OF_A_MODEL = 20_000


@dataclass(frozen=True)
class Demand:
    """Requests for one model. ``arrival_s``: float64 [n], ascending from about 0; ``workers``: by name of the type,
    with this model's latencies; ``policies``: names of those to try; ``placement``: where workers share machines, how
    they slow down this model's calls, None: each is as if alone; ``tiers``: what requests ask for of rules, which then
    choose in place of policies; ``files``: by key, what a service file names besides latencies; ``data``: examples that
    are sent to verify."""

    name: str
    arrival_s: np.ndarray
    promise: Promise
    workers: Mapping[str, WorkerType]
    policies: Sequence[str]
    outcomes: OutcomeTable | None = None
    placement: Placement | None = None
    tiers: Tiers | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    data: Any = "auto"


@dataclass(frozen=True)
class Fleets:
    """Fleets that were searched. ``apart``: of each model by itself, ranked; ``shared``: of several models those that
    all of them share, of a single one its own, the best first. ``best``: that serves all models, None where a fleet
    for each costs less."""

    apart: Mapping[str, Sequence[Found]]
    shared: Sequence[Found]
    best: Found | None

    @property
    def of_models(self) -> dict[str, Fleet]:
        """Fleet that serves each model."""
        return {name: found[0].tried if self.best is None else self.best.tried for name, found in self.apart.items()}


class Planner:
    """Search of fleets for the models of ``demands``. ``reserve_us``: of each deadline, kept for the front end and the
    network; ``max_workers``: of all models, be they shared or not; ``seed``: of the latencies drawn.

    Raises ``InputError`` for more models than can be simulated, and traffic that is too short to show a promise.
    """

    def __init__(self, demands: Sequence[Demand], *, reserve_us: float = 0.0, max_workers: int = 1_000, seed: int = 0):
        self.demands = {demand.name: demand for demand in demands}
        if not 1 <= len(demands) <= MAX_MODELS:
            raise InputError(f"{len(demands)} models cannot be planned together; 1 to {MAX_MODELS} can")
        self.alone: dict[str, FleetSearch] = {}
        for demand in demands:
            settings: dict[str, Any] = {
                "reserve_us": reserve_us,
                "max_workers": max_workers,
                "seed": seed,
                "name": demand.name,
            }
            try:
                self.alone[demand.name] = _search_of(demand, settings)
            except InputError as error:
                raise InputError(f"{demand.name}: {error}" if len(demands) > 1 else str(error)) from error
        self.promises = {demand.name: demand.promise for demand in demands}
        if not self.worker_types:
            types = {
                own.name: [f"threads {each.threads} on {each.device}" for each in own.workers.values()]
                for own in demands
            }
            of = "; ".join(f"{name}: {', '.join(own)}" for name, own in types.items())
            raise InputError(f"no worker serves all of the models, as their latency tables have none in common ({of})")
        self.max_workers, self.seed, self._reserve_us = max_workers, seed, reserve_us

    @property
    def worker_types(self) -> list[str]:
        """Names of the types whose latencies are known of every model."""
        (first, *others) = self.demands.values()
        return [name for name in first.workers if all(name in demand.workers for demand in others)]

    @property
    def requests(self) -> int:
        """Requests of all models."""
        return sum(search.requests for search in self.alone.values())

    @property
    def is_of_one(self) -> bool:
        """True if there is one model."""
        return len(self.alone) == 1

    def only(self, name: str) -> Self:
        """Return the planner of one of the models by itself."""
        other = copy(self)
        other.demands, other.alone = {name: self.demands[name]}, {name: self.alone[name]}
        other.promises = {name: self.promises[name]}
        for cached in ("searched", "confirming"):
            other.__dict__.pop(cached, None)
        return other

    @cached_property
    def searched(self) -> Mapping[str, Traffic]:
        """Traffic by model that a fleet is looked for on."""
        return self._sampled(MAX_SEARCHED)

    @cached_property
    def confirming(self) -> Mapping[str, Traffic]:
        """Traffic by model that a fleet is confirmed on."""
        return self._sampled(MAX_CONFIRMED)

    @property
    def whole(self) -> dict[str, Traffic]:
        """All of the traffic by model."""
        return {name: search.whole for name, search in self.alone.items()}

    def _sampled(self, most: int) -> dict[str, Traffic]:
        arrivals = {name: self.demands[name].arrival_s for name in self.alone}
        deadline_s = max(search.computing_us for search in self.alone.values()) / 1e6
        return sampled_together(arrivals, most, deadline_s)

    def choices_of(self, name: str) -> list[tuple[WorkerType, str]]:
        """Return the types and policies that may serve the model by itself; none where none can answer in time, or is
        accurate enough."""
        demand, search = self.demands[name], self.alone[name]
        return [
            (worker, policy)
            for worker in demand.workers.values()
            for policy in search.policies(worker, demand.policies)
        ]

    def apart(self, name: str, advance: Callable[[], None] = lambda: None) -> list[Found]:
        """Return fleets of the model by itself, of each type and policy, ranked as ``confirm`` has it: the first holds
        if any does."""
        search, found = self.alone[name], []
        for worker, policy in self.choices_of(name):
            found.append(search.cheapest(worker, policy))
            advance()
        return confirm(search, found)

    def search(self, advance: Callable[[], None] = lambda: None) -> Fleets:
        """Return fleets of each model by itself, each of which some worker serves, and of all together."""
        apart = {name: self.apart(name, advance) for name in self.alone}
        fleets = [found[0].tried for found in apart.values()]
        if self.is_of_one:
            (own,) = apart.values()
            return Fleets(apart, own, own[0])
        if not all(found[0].holds for found in apart.values()):
            return Fleets(apart, (), None)
        shared = []
        for worker_type in self.worker_types:
            if (found := self.shared(worker_type, apart)) is not None:
                shared.append(found)
            advance()
        shared.sort(key=lambda each: (not each.holds, each.tried.shortfall(self.promises), each.tried.cost))
        # Of equal cost the shared one: one service in place of several.
        is_best = (
            shared
            and shared[0].holds
            and (
                shared[0].tried.cost <= sum(fleet.cost for fleet in fleets)
                or sum(fleet.replicas for fleet in fleets) > self.max_workers
            )
        )
        return Fleets(apart, shared, shared[0] if is_best else None)

    def shared(self, worker_type: str, apart: Mapping[str, Sequence[Found]]) -> Found | None:
        """Return the least workers of this type that hold all promises, of no more than cost as much as the fleets
        ``apart`` (by model), all of which hold. None where a model cannot be served by the type at all.

        It is confirmed with latencies drawn anew, on more of long traffic, whether it holds or not, as the verdict on a
        fleet is to be the same whatever else was tried."""
        found = self._cheapest(worker_type, apart)
        if found is None:
            return None
        most = max(self._most(worker_type, apart), found.tried.replicas)
        return self._smallest(found.tried.pools, found.tried.replicas, most, 1)

    def _cheapest(self, worker_type: str, apart: Mapping[str, Sequence[Found]]) -> Found | None:
        choices = [self._choices(worker_type, found) for found in apart.values()]
        if not all(choices):
            return None
        most = self._most(worker_type, apart)
        combinations = sorted(
            product(*(range(len(each)) for each in choices)), key=lambda ranks: (sum(ranks), max(ranks))
        )[:MAX_COMBINATIONS]
        first = max(each[0].tried.replicas for each in choices)
        best: Found | None = None
        for ranks in combinations:
            pools = {name: each[rank].tried.pool for name, each, rank in zip(apart, choices, ranks, strict=True)}
            limit = most if best is None or not best.holds else best.tried.replicas - 1
            if limit < 1:
                break
            fleet = self.served(pools, limit, 0)
            tried = Found(fleet, holds=False)
            # Workers that slow each other down may hold where more of them do not.
            if self.holds(fleet) or any(search.placement for search in self.alone.values()):
                tried = self._smallest(pools, min(first, limit), limit, 0)
            if tried.holds:
                best = tried
            elif best is None or not best.holds:
                best = min(best or tried, tried, key=lambda each: self._distance(each.tried))
            elif best.fewer is None or fleet.shortfall(self.promises) < best.fewer.shortfall(self.promises):
                best = replace(best, fewer=fleet)
        return best

    def _most(self, worker_type: str, apart: Mapping[str, Sequence[Found]]) -> int:
        """Workers to be tried: that cost no more than a fleet for each model, where these are within the limit."""
        fleets = [found[0].tried for found in apart.values()]
        if sum(fleet.replicas for fleet in fleets) > self.max_workers:
            return self.max_workers
        price = next(iter(self.demands.values())).workers[worker_type].price
        cost = sum(fleet.cost for fleet in fleets)
        return min(self.max_workers, max(1, math.floor(cost / price + 1e-9)))

    def _choices(self, worker_type: str, found: Sequence[Found]) -> list[Found]:
        """The best policies of a model on this type by itself, and the one that leaves most of the workers' time to
        other models: where the best buy accuracy with all the time that there is, models of later deadlines get none.
        """
        own = [each for each in found if each.tried.pool.worker.name == worker_type]
        holding = [each for each in own if each.holds]
        if not holding:
            return own[:1]
        modest = min(holding, key=lambda each: each.tried.replicas * each.tried.verdict.utilisation)
        best = [each for each in holding if each is not modest][: MAX_POLICIES - 1]
        return sorted([*best, modest], key=holding.index)

    def _smallest(self, pools: Mapping[str, Pool], first: int, most: int, draw: int) -> Found:
        """Search from ``first`` workers on, up to ``most``."""

        def run(replicas: int) -> Fleet:
            return self.served(pools, replicas, draw)

        return smallest_fleet(run, run(first), most, self.holds, self._distance, self._small_sizes(pools, most))

    def _small_sizes(self, pools: Mapping[str, Pool], most: int) -> Iterator[int]:
        """To be tried where the search by growing steps fails; none where each worker is as if alone."""
        name, pool = next(iter(pools.items()))
        placement = self.alone[name].placement
        if placement is not None:
            yield 1
            yield from placement.sizes(pool.worker, 1, most)

    def holds(self, fleet: Fleet) -> bool:
        """True if the promise of every model holds."""
        return self._fits(fleet.pools) and not fleet.misses(self.promises)

    def _fits(self, pools: Mapping[str, Pool]) -> bool:
        """True if of each model a call may begin that is over within a deadline."""
        return all(self.alone[name].fits(pool) for name, pool in pools.items())

    def _distance(self, fleet: Fleet) -> tuple[bool, float]:
        """Return the distance from the promises; calls that do not fit into a deadline are farther than all others."""
        return not self._fits(fleet.pools), fleet.shortfall(self.promises)

    def served(
        self, pools: Mapping[str, Pool], replicas: int, draw: int, traffic: Mapping[str, Traffic] | None = None
    ) -> Fleet:
        """Simulate so many workers, under each model's policy. ``draw``: of the latencies; ``traffic``: by default what
        searches, or what confirms where they are drawn anew."""
        traffic = traffic or (self.confirming if draw else self.searched)
        pools = {name: replace(pools[name], replicas=replicas) for name in self.alone if name in pools}
        results = self.results(pools, draw, traffic)
        verdicts = {name: self.alone[name].judged(result, traffic[name]) for name, result in results.items()}
        return Fleet(pools, verdicts)

    def results(
        self, pools: Mapping[str, Pool], draw: int, traffic: Mapping[str, Traffic],
        overheads: Mapping[str, Overhead] | None = None,
    ) -> dict[str, SimulationResult]:  # fmt: skip
        """Simulate the requests of each model. ``overheads``: in place of the reserve."""
        if self.is_of_one:
            ((name, pool),) = pools.items()
            overhead = None if overheads is None else overheads[name]
            return {name: self.alone[name].run(pool, draw, traffic[name], overhead)}
        overheads = overheads or dict.fromkeys(pools, Overhead(self._reserve_us))
        policies, scenarios, times = [], [], []
        for at, (name, pool) in enumerate(pools.items()):
            service, overhead = self.alone[name].batching(pool), overheads[name]
            deadline_us = max(self.promises[name].deadline_us - overhead.reserve_us, service.fastest_us)
            policies.append(service.policy)
            scenarios.append(Scenario.of(traffic[name].arrival_s, deadline_us / 1e6, pool.replicas))
            # Each model's latencies are drawn apart; those of the first as in a fleet of its own.
            times.append(service.times(self.seed + draw + at * 1_000_003, overhead, pool.replicas))
        return dict(zip(pools, simulate_together(policies, scenarios, times), strict=True))

    def max_queue(self, pools: Mapping[str, Pool]) -> int:
        """Return how many requests may wait for the workers, of all models: see ``FleetSearch.max_queue``."""
        return sum(self.alone[name].max_queue(pool) for name, pool in pools.items())

    def busiest(self, duration_s: float) -> dict[str, np.ndarray]:
        """Return by model the arrivals of the stretch of this length with the most of all of them, from 0."""
        times_s = np.sort(np.concatenate([self.demands[name].arrival_s for name in self.alone]))
        ends = np.searchsorted(times_s, times_s + duration_s)
        first_s = float(times_s[int(np.argmax(ends - np.arange(len(times_s))))])
        return {
            name: _within(self.demands[name].arrival_s, first_s, first_s + duration_s) - first_s for name in self.alone
        }


def _search_of(demand: Demand, settings: dict[str, Any]) -> FleetSearch:
    if demand.tiers is None:
        search = FleetSearch(demand.arrival_s, demand.promise, outcomes=demand.outcomes, **settings)
    else:
        assert demand.outcomes is not None
        search = TierFleetSearch(demand.arrival_s, demand.promise, demand.tiers, demand.outcomes, **settings)
    search.placement = demand.placement
    return search


def _within(arrival_s: np.ndarray, begin_s: float, end_s: float) -> np.ndarray:
    first, last = np.searchsorted(arrival_s, (begin_s, end_s))
    found: np.ndarray = arrival_s[first:last]
    return found


def sampled_together(arrival_s: Mapping[str, np.ndarray], most: int, deadline_s: float) -> dict[str, Traffic]:
    """Sample about ``most`` requests of all models, as ``Traffic.sampled_together`` does: more where a model gets
    few of them, so that ``MIN_OF_A_MODEL`` of its requests are left, or all."""
    total, fewest = sum(map(len, arrival_s.values())), min(map(len, arrival_s.values()))
    found = Traffic.sampled_together(arrival_s, max(most, math.ceil(MIN_OF_A_MODEL * total / fewest)), deadline_s)
    if any(found[name].counted.sum() < min(MIN_OF_A_MODEL, len(own)) / 2 for name, own in arrival_s.items()):
        return {name: Traffic.whole(own) for name, own in arrival_s.items()}  # of one whose requests come in bursts
    return found
