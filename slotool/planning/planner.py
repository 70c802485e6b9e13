"""The cheapest fleet that keeps the promise of each model: of one, or of several that share its workers.

Workers are shared as ``slotool serve`` shares them between the models of a service file: the request with the earliest
deadline goes first, whatever its model, and the model's own policy chooses a point and a batch.

The least number of workers is searched by growing steps and bisection, as more workers never serve less, unless they
share a machine: then more may do worse until one is full, and where the search fails, sizes up to that are tried by
smaller steps. What is found is confirmed with latencies drawn anew, since the search took the least that did well once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from typing import Self

import numpy as np

from slotool.errors import InputError
from slotool.planning.fleet import Fleet, Pool, SmallestFleet, WorkerType
from slotool.planning.model_on_workers import BatchingService, Demand, ModelOnWorkers
from slotool.planning.promise import Promise
from slotool.planning.tiers_on_workers import TierService, TiersOnWorkers
from slotool.planning.traffic import Traffic
from slotool.scheduling.batching import FixedBatching
from slotool.simulation import Scenario, SimulationResult
from slotool.simulation.events import MAX_MODELS, simulate_together
from slotool.simulation.service import Overhead

# Requests of longer traffic in a search, and in its confirmation.
MAX_SEARCHED, MAX_CONFIRMED = 200_000, 1_000_000
# Number of each model's best policies on its own workers, and of their most promising combinations.
MAX_POLICIES, MAX_COMBINATIONS = 3, 27
# Least number of simulated requests of a model with few of long traffic.
MIN_OF_A_MODEL = 20_000


@dataclass(frozen=True)
class Fleets:
    """Results of a search. ``apart``: fleets of each model by itself, ranked; ``shared``: fleets of all, best first.

    For a single model ``shared`` are its own. ``best``: serves all models, None if a fleet for each costs less.
    """

    apart: Mapping[str, Sequence[SmallestFleet]]
    shared: Sequence[SmallestFleet]
    best: SmallestFleet | None

    @property
    def of_models(self) -> dict[str, Fleet]:
        """Fleet that serves each model."""
        return {name: result[0].fleet if self.best is None else self.best.fleet for name, result in self.apart.items()}


class Planner:
    """Search of fleets for the models of ``demands``.

    ``reserve_us``: part of each deadline for the front end and the network; ``max_workers``: of all models, shared or
    not; ``seed``: of the latencies drawn; ``least_energy``: the best fleet of a model takes the fewest joules a request
    in place of the cheapest workers. Raises ``InputError`` for too many models, traffic too short to show a promise,
    and unknown joules.
    """

    def __init__(
        self, demands: Sequence[Demand], *, reserve_us: float = 0.0, max_workers: int = 1_000, seed: int = 0,
        least_energy: bool = False,
    ):  # fmt: skip
        self.demands = {demand.name: demand for demand in demands}
        if not 1 <= len(demands) <= MAX_MODELS:
            raise InputError(f"{len(demands)} models cannot be planned together; 1 to {MAX_MODELS} can")
        self.models: dict[str, ModelOnWorkers] = {}
        for demand in demands:
            kind = ModelOnWorkers if demand.tiers is None else TiersOnWorkers
            try:
                self.models[demand.name] = kind(demand, reserve_us=reserve_us)
            except InputError as error:
                raise InputError(f"{demand.name}: {error}" if len(demands) > 1 else str(error)) from error
        if not self.worker_types:
            types = {
                entry.name: [f"threads {each.threads} on {each.device}" for each in entry.workers.values()]
                for entry in demands
            }
            of = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in types.items())
            raise InputError(f"no worker serves all of the models, as their latency tables have none in common ({of})")
        self.max_workers, self.seed, self._reserve_us = max_workers, seed, reserve_us
        self._least_energy = least_energy
        for worker in (each for demand in demands for each in demand.workers.values() if least_energy):
            if not worker.profile.energy_j:
                raise InputError(
                    f"no energy is known of {worker.name}: measure with slotool profile on a machine that counts "
                    "joules (RAPL of processors, NVML of GPUs)"
                )

    @property
    def promises(self) -> dict[str, Promise]:
        """Promise of each model."""
        return {name: demand.promise for name, demand in self.demands.items()}

    @property
    def worker_types(self) -> list[str]:
        """Names of the types whose latencies are known of every model."""
        (first, *others) = self.demands.values()
        return [name for name in first.workers if all(name in demand.workers for demand in others)]

    @property
    def requests(self) -> int:
        """Requests of all models."""
        return sum(model.requests for model in self.models.values())

    def only(self, name: str) -> Self:
        """Return the planner of one of the models by itself."""
        other = copy(self)
        other.demands, other.models = {name: self.demands[name]}, {name: self.models[name]}
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
        """Whole traffic, by model."""
        return {name: model.whole for name, model in self.models.items()}

    def _sampled(self, most: int) -> dict[str, Traffic]:
        arrivals = {name: self.demands[name].arrival_s for name in self.models}
        deadline_s = max(model.computing_us for model in self.models.values()) / 1e6
        return sampled_together(arrivals, most, deadline_s)

    def choices_of(self, name: str, policies: Sequence[str] | None = None) -> list[tuple[WorkerType, str]]:
        """Return types and policies that answer the model by itself in time and accurately enough.

        ``policies``: None: those of its demand that are tried in any case.
        """
        demand, model = self.demands[name], self.models[name]
        names = demand.policies if policies is None else policies
        return [(worker, policy) for worker in demand.workers.values() for policy in model.policies(worker, names)]

    def apart(self, name: str, advance: Callable[[], None] = lambda: None) -> list[SmallestFleet]:
        """Return fleets of the model by itself, of each type and policy, ranked: the first holds if any does.

        The first is confirmed; where all of the traffic was searched, all that hold are.
        """
        alone, demand, model = self.only(name), self.demands[name], self.models[name]
        rate_per_s = alone.searched[name].rate_per_s
        least_cost = min(worker.price * model.least(worker, rate_per_s) for worker in demand.workers.values())
        result: list[SmallestFleet] = []
        for policies in (demand.policies, demand.slow_policies):
            if not policies or any(each.holds and each.fleet.cost <= least_cost for each in result):
                break
            for worker, policy in self.choices_of(name, policies):
                result.append(alone._cheapest_under(worker, policy))
                advance()
        ranks = alone._ranked(result)
        while True:
            at = next((at for at, each in enumerate(ranks) if not each.confirmed and (each.holds or at == 0)), None)
            if at is None or (at > 0 and alone.requests > MAX_SEARCHED):
                return ranks
            ranks[at] = alone._confirmed(ranks[at], self.max_workers)
            ranks = alone._ranked(ranks)

    def _ranked(self, result: Sequence[SmallestFleet]) -> list[SmallestFleet]:
        """Sort: holding fleets first, by cost or energy and then by right answers in time; others by distance."""

        def order(each: SmallestFleet) -> tuple[bool, float, float, float, float]:
            right = sum(verdict.effective_accuracy for verdict in each.fleet.verdicts.values())
            rank = each.rank if each.holds else 0.0
            joules = [verdict.energy_j or math.inf for verdict in each.fleet.verdicts.values()]
            cost = sum(joules) if self._least_energy else each.fleet.cost
            return not each.holds, each.fleet.shortfall(self.promises), rank, cost, -right

        return sorted(result, key=order)

    def _cheapest_under(self, worker: WorkerType, policy: str) -> SmallestFleet:
        """Return the least workers of this type and policy that hold the only model's promise on a traffic sample."""
        ((name, model),) = self.models.items()
        least = min(self.max_workers, model.least(worker, self.searched[name].rate_per_s))
        pools = {name: Pool(worker, policy, least)}
        first = self.served(pools, least, 0)
        most = model.judge.most_accurate(model.service(worker, policy).points)
        if most.shown < model.promise.accuracy:  # more workers do not make points more accurate
            result = SmallestFleet(first, holds=False, most=most, limited=True)
        elif (
            policy.startswith(FixedBatching.name)
            and first.verdict.attainment > 0
            and "accuracy" in first.verdict.misses(model.promise)
        ):
            result = SmallestFleet(first, holds=False, limited=True)
        else:
            result = self._smallest(pools, first, self.max_workers, 0)
        return replace(result, rank=model.rank(policy))

    def _confirmed(self, result: SmallestFleet, most: int) -> SmallestFleet:
        """Simulate a fleet, holding or not, on more of the traffic with latencies drawn anew.

        Its figures are then those of that size whatever else was tried.
        """
        pools = result.fleet.pools
        again = self.served(pools, result.fleet.replicas, 1)
        if not result.holds and (result.most is not None or not self.holds(again)):
            return replace(result, fleet=again, confirmed=True)
        return replace(self._smallest(pools, again, most, 1), confirmed=True, rank=result.rank)

    def search(self, advance: Callable[[], None] = lambda: None) -> Fleets:
        """Return fleets of each model by itself, each of which some worker serves, and of all together."""
        apart = {name: self.apart(name, advance) for name in self.models}
        fleets = [result[0].fleet for result in apart.values()]
        if len(apart) == 1:
            (ranked,) = apart.values()
            return Fleets(apart, ranked, ranked[0])
        if not all(result[0].holds for result in apart.values()):
            return Fleets(apart, (), None)
        shared = []
        for worker_type in self.worker_types:
            if (result := self.shared(worker_type, apart)) is not None:
                shared.append(result)
            advance()
        shared = self._ranked(shared)
        # Prefer the shared one at equal cost: one service in place of several.
        is_best = (
            shared
            and shared[0].holds
            and (
                shared[0].fleet.cost <= sum(fleet.cost for fleet in fleets)
                or sum(fleet.replicas for fleet in fleets) > self.max_workers
            )
        )
        return Fleets(apart, shared, shared[0] if is_best else None)

    def shared(self, worker_type: str, apart: Mapping[str, Sequence[SmallestFleet]]) -> SmallestFleet | None:
        """Return the least workers of this type that hold all promises at no more cost than the fleets ``apart``.

        All of ``apart``, by model, hold. None if the type cannot serve some model at all. The result is confirmed with
        latencies drawn anew, on more of long traffic, holding or not, so that a fleet's verdict never depends on what
        else was tried.
        """
        result = self._cheapest(worker_type, apart)
        if result is None:
            return None
        return self._confirmed(result, max(self._most(worker_type, apart), result.fleet.replicas))

    def _cheapest(self, worker_type: str, apart: Mapping[str, Sequence[SmallestFleet]]) -> SmallestFleet | None:
        choices = [self._choices(worker_type, result) for result in apart.values()]
        if not all(choices):
            return None
        most = self._most(worker_type, apart)
        combinations = sorted(
            product(*(range(len(each)) for each in choices)), key=lambda ranks: (sum(ranks), max(ranks))
        )[:MAX_COMBINATIONS]
        first = max(each[0].fleet.replicas for each in choices)
        best: SmallestFleet | None = None
        for ranks in combinations:
            pools = {name: each[rank].fleet.pool for name, each, rank in zip(apart, choices, ranks, strict=True)}
            limit = most if best is None or not best.holds else best.fleet.replicas - 1
            if limit < 1:
                break
            fleet = self.served(pools, limit, 0)
            tried = SmallestFleet(fleet, holds=False)
            # Workers that slow each other down may hold where more of them do not.
            if self.holds(fleet) or any(model.placement for model in self.models.values()):
                tried = self._smallest(pools, self.served(pools, min(first, limit), 0), limit, 0)
            if tried.holds:
                best = tried
            elif best is None or not best.holds:
                best = min(best or tried, tried, key=lambda each: self._distance(each.fleet))
            elif best.fewer is None or fleet.shortfall(self.promises) < best.fewer.shortfall(self.promises):
                best = replace(best, fewer=fleet)
        return best

    def _most(self, worker_type: str, apart: Mapping[str, Sequence[SmallestFleet]]) -> int:
        """Return the largest number of workers that costs no more than a fleet for each model, within the limit."""
        fleets = [result[0].fleet for result in apart.values()]
        if sum(fleet.replicas for fleet in fleets) > self.max_workers:
            return self.max_workers
        price = next(iter(self.demands.values())).workers[worker_type].price
        cost = sum(fleet.cost for fleet in fleets)
        return min(self.max_workers, max(1, math.floor(cost / price + 1e-9)))

    def _choices(self, worker_type: str, result: Sequence[SmallestFleet]) -> list[SmallestFleet]:
        """Return a model's best policies on this type, and the one that leaves most time to other models.

        If the best buy accuracy with all the time that there is, models of later deadlines get none.
        """
        of_type = [each for each in result if each.fleet.pool.worker.name == worker_type]
        holding = [each for each in of_type if each.holds]
        if not holding:
            return of_type[:1]
        modest = min(holding, key=lambda each: each.fleet.replicas * each.fleet.verdict.utilisation)
        best = [each for each in holding if each is not modest][: MAX_POLICIES - 1]
        return sorted([*best, modest], key=holding.index)

    def _smallest(self, pools: Mapping[str, Pool], first: Fleet, most: int, draw: int) -> SmallestFleet:
        """Search from ``first`` up to ``most`` workers; on shared machines then by smaller steps up to a full one."""

        def run(replicas: int) -> Fleet:
            return self.served(pools, replicas, draw)

        name, pool = next(iter(pools.items()))
        placement = self.models[name].placement
        sizes = () if placement is None else chain((1,), placement.sizes(pool.worker, 1, most))
        result = smallest_fleet(run, first, most, self._is_enough, self._distance, sizes)
        if result.holds and not self.holds(result.fleet):
            return SmallestFleet(result.fleet, holds=False, limited=True)
        return result

    def _is_enough(self, fleet: Fleet) -> bool:
        """True if more workers would not help."""
        enough = (self.models[name].is_enough(verdict) for name, verdict in fleet.verdicts.items())
        return self._fits(fleet.pools) and all(enough)

    def holds(self, fleet: Fleet) -> bool:
        """True if the promise of every model holds."""
        return self._fits(fleet.pools) and not fleet.misses(self.promises)

    def _fits(self, pools: Mapping[str, Pool]) -> bool:
        """True if of each model a call may begin that is over within a deadline."""
        return all(self.models[name].fits(pool) for name, pool in pools.items())

    def _distance(self, fleet: Fleet) -> tuple[bool, float]:
        """Return the distance from the promises; calls that do not fit into a deadline are farther than all others."""
        return not self._fits(fleet.pools), fleet.shortfall(self.promises)

    def served(
        self, pools: Mapping[str, Pool], replicas: int, draw: int, traffic: Mapping[str, Traffic] | None = None
    ) -> Fleet:
        """Simulate so many workers, under each model's policy.

        ``draw``: of the latencies; ``traffic``: by default that of the search, or of the confirmation if drawn anew.
        """
        traffic = traffic or (self.confirming if draw else self.searched)
        pools = {name: replace(pools[name], replicas=replicas) for name in self.models if name in pools}
        verdicts = {
            name: self.models[name].judged(result, traffic[name], pools[name].worker)
            for name, result in self.results(pools, draw, traffic).items()
        }
        return Fleet(pools, verdicts)

    def results(
        self, pools: Mapping[str, Pool], draw: int, traffic: Mapping[str, Traffic],
        overheads: Mapping[str, Overhead] | None = None,
    ) -> dict[str, SimulationResult]:  # fmt: skip
        """Simulate the requests of each model. ``overheads``: in place of the reserve."""
        policies, scenarios, times = [], [], []
        for at, (name, pool) in enumerate(pools.items()):
            model, overhead = self.models[name], Overhead(self._reserve_us) if overheads is None else overheads[name]
            service = model.of_pool(pool)
            deadline_us = max(model.promise.deadline_us - overhead.reserve_us, service.fastest_us)
            scenario = Scenario.of(traffic[name].arrival_s, deadline_us / 1e6, pool.replicas)
            # Draw each model's latencies apart; the first's as in a fleet of its own.
            seed = self.seed + draw + at * 1_000_003
            if isinstance(service, TierService):  # by rules one model is planned at a time
                return {name: service.run(scenario, seed, overhead)}
            assert isinstance(service, BatchingService)
            policies.append(service.policy)
            scenarios.append(scenario)
            times.append(service.times(seed, overhead, pool.replicas))
        return dict(zip(pools, simulate_together(policies, scenarios, times), strict=True))

    def max_queue(self, pools: Mapping[str, Pool]) -> int:
        """Return how many requests may wait for the workers, of all models: see ``ModelOnWorkers.max_queue``."""
        return sum(self.models[name].max_queue(pool) for name, pool in pools.items())

    def busiest(self, duration_s: float) -> dict[str, np.ndarray]:
        """Return by model the arrivals of the stretch of this length with the most of all of them, from 0."""
        times_s = np.sort(np.concatenate([self.demands[name].arrival_s for name in self.models]))
        ends = np.searchsorted(times_s, times_s + duration_s)
        first_s = float(times_s[int(np.argmax(ends - np.arange(len(times_s))))])
        busiest = {}
        for name in self.models:
            arrival_s = self.demands[name].arrival_s
            begin, end = np.searchsorted(arrival_s, (first_s, first_s + duration_s))
            busiest[name] = arrival_s[begin:end] - first_s
        return busiest


def sampled_together(arrival_s: Mapping[str, np.ndarray], most: int, deadline_s: float) -> dict[str, Traffic]:
    """Sample about ``most`` requests of all models, more if one gets fewer than ``MIN_OF_A_MODEL``."""
    total, fewest = sum(map(len, arrival_s.values())), min(map(len, arrival_s.values()))
    result = Traffic.sampled_together(arrival_s, max(most, math.ceil(MIN_OF_A_MODEL * total / fewest)), deadline_s)
    if any(result[name].counted.sum() < min(MIN_OF_A_MODEL, len(times_s)) / 2 for name, times_s in arrival_s.items()):
        # A model's requests come in bursts.
        return {name: Traffic.whole(times_s) for name, times_s in arrival_s.items()}
    return result


def smallest_fleet(
    run: Callable[[int], Fleet],
    first: Fleet,
    most: int,
    is_enough: Callable[[Fleet], bool],
    distance: Callable[[Fleet], tuple[bool, float]],
    small_sizes: Iterable[int] = (),
) -> SmallestFleet:
    """Return the smallest fleet that is enough, or else the one nearest to it.

    The search goes from ``first`` in steps of 1, 2, 4 … workers up or down to where fleets begin to be enough, and then
    bisects the last step. If that fails, because workers of one machine slow each other down, it tries ``small_sizes``.

    Args:
        run: Function that returns the fleet of a number of workers.
        first: Fleet to begin with.
        most: Maximum number of workers.
        is_enough: True for a fleet that is enough.
        distance: Distance of a fleet from being enough.
        small_sizes: Numbers of workers to try if growing steps fail, ascending.
    """
    step, is_limited = 1, False
    fewer, enough = (None, first) if is_enough(first) else (first, None)
    while enough is None and fewer is not None and fewer.replicas < most and not is_limited:
        tried = run(min(fewer.replicas + step, most))
        if is_enough(tried):
            enough = tried
        elif _served_alike(fewer, tried):
            is_limited = True
        else:
            fewer, step = tried, 2 * step
    while enough is not None and fewer is None and enough.replicas > 1:
        tried = run(max(1, enough.replicas - step))
        fewer, enough, step = (None, tried, 2 * step) if is_enough(tried) else (tried, enough, step)
    if enough is not None:
        return _bisected(run, fewer, enough, is_enough)
    assert fewer is not None
    nearest, fewer = fewer, None
    for replicas in small_sizes:
        tried = run(replicas)
        if is_enough(tried):
            return _bisected(run, fewer, tried, is_enough)
        fewer, nearest = tried, min(nearest, tried, key=distance)
    return SmallestFleet(nearest, holds=False, limited=is_limited)


def _bisected(
    run: Callable[[int], Fleet], fewer: Fleet | None, enough: Fleet, is_enough: Callable[[Fleet], bool]
) -> SmallestFleet:
    """Between ``fewer`` workers, which are not enough (None: there are none), and ``enough``, which are."""
    while fewer is not None and enough.replicas - fewer.replicas > 1:
        tried = run((fewer.replicas + enough.replicas) // 2)
        fewer, enough = (fewer, tried) if is_enough(tried) else (tried, enough)
    return SmallestFleet(enough, holds=True, fewer=fewer)


def _served_alike(fewer: Fleet, more: Fleet) -> bool:
    """True if more workers answer all alike, as no request waits for one any more."""
    pairs = ((fewer.verdicts[name], verdict) for name, verdict in more.verdicts.items())
    return all(replace(one, utilisation=0.0) == replace(other, utilisation=0.0) for one, other in pairs)
