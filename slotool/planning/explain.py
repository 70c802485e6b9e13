"""Why a plan is as it is: what fails with one worker fewer, with other workers and policies that cost less, and how
far what it depends on may change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from slotool.planning.fleet import Fleet, Found, Pool
from slotool.planning.fleet_search import FleetSearch
from slotool.planning.lateness import Lateness, lateness
from slotool.planning.promise import Part, Promise, Verdict, attainment_bounds, words_of
from slotool.planning.sensitivity import MAX_TIMES, TRIALS, Advance, Limit, lowest_without_misses
from slotool.planning.traffic import Traffic
from slotool.scheduling.batching import ControlGrid, FixedBatching
from slotool.simulation.result import IN_TIME

# Which draw of the latencies: the one that confirmed the plan.
CONFIRMED = 1
# Other workers and policies that are tried at less cost, the cheapest that hold first.
MAX_ALTERNATIVES = 8
# What changes: the words a reader tells them by.
WORKERS, WORKER_TYPE, POLICY, POINT, BATCH_LIMIT = "workers", "worker type", "policy", "point", "batch limit"
ATTAINMENT = "attainment"
# What counts while one worker fewer, or how far the plan holds, is explained: a fleet and two limits.
TRIALS_OF_FEWER = 1 + 2 * TRIALS


@dataclass(frozen=True)
class Tried:
    """A fleet that the plan is not. ``change``: what it differs in; ``verdict``: what the simulation shows of it, on
    the traffic and with the latencies that confirmed the plan; ``misses``: of the promise."""

    change: str
    worker: str
    policy: str
    replicas: int
    cost: float
    max_batch: int
    verdict: Verdict
    misses: tuple[str, ...]


@dataclass(frozen=True)
class Fewer:
    """One worker fewer. ``bounds``: of its attainment, by name; the lesser counts. ``deadline_us``: the shortest at
    which that many hold the promise; ``traffic``: the greatest share of the rate at which they do, None of requests
    that all come at one instant."""

    tried: Tried
    lateness: Lateness
    bounds: dict[str, float]
    deadline_us: Limit
    traffic: Limit | None


@dataclass(frozen=True)
class Margins:
    """How far the plan itself holds.

    ``deadline_us``: the shortest deadline; ``traffic``: the greatest rate, times that of the traffic, at which the same
    requests may come, None where all come at one instant; ``accurate_per_s``: what its workers answer at the fastest
    point that is accurate enough in their best batches of those whose calls fit into the deadline, 0 without one, and
    ``fastest_per_s`` at the fastest of all; ``fastest_us``: the fastest call, as policies plan it; ``reserve_us``: what
    is kept for the front end; ``may_wait_us``: what a deadline leaves besides both; ``point_shares``: of the requests
    that were in time, by the point that answered; ``max_queue``: as served.
    """

    lateness: Lateness
    verdict: Verdict
    deadline_us: Limit
    traffic: Limit | None
    accurate_per_s: float
    fastest_per_s: float
    fastest_us: float
    reserve_us: float
    may_wait_us: float
    point_shares: dict[str, float]
    max_queue: int


@dataclass(frozen=True)
class Reasons:
    """``fewer``: None where one worker is all there is; ``alternatives``: that would cost less, and do not hold;
    ``as_cheap``: the first that holds at the same cost."""

    fewer: Fewer | None
    alternatives: tuple[Tried, ...]
    as_cheap: Tried | None
    margins: Margins


def reasons(search: FleetSearch, found: Sequence[Found], advance: Advance = lambda steps: None) -> Reasons:
    """Of the first of ``found``, which holds. ``advance`` is called with ``trials_of`` in all."""
    best = found[0]
    why = _Why(search, best.tried, advance)
    return Reasons(
        None if best.fewer is None else why.fewer(best.fewer),
        tuple(why.cheaper(found)),
        why.as_cheap(found),
        why.margins(),
    )


def trials_of(search: FleetSearch, found: Sequence[Found]) -> int:
    """What ``reasons`` counts while it goes on."""
    why = _Why(search, found[0].tried, lambda steps: None)
    others = len(list(why.less(found))) + (why.alike(found) is not None)
    fewer = 0 if found[0].fewer is None else TRIALS_OF_FEWER
    return fewer + others + TRIALS_OF_FEWER


def closest(search: FleetSearch, found: Sequence[Found], advance: Advance = lambda steps: None) -> Fewer:
    """Of the first of ``found``, which comes closest where none holds: what it lacks, and with what it would hold.

    ``advance`` is called with ``TRIALS_OF_FEWER`` in all."""
    return _Why(search, found[0].tried, advance).fewer(found[0].tried)


class _Why:
    def __init__(self, search: FleetSearch, chosen: Fleet, advance: Advance):
        self._search, self._chosen, self._advance = search, chosen, advance
        self._promise: Promise = search.promise

    def fewer(self, fleet: Fleet) -> Fewer:
        traffic = self._search.confirming
        return fewer_of(
            self._search,
            self._tried(WORKERS, fleet.pools),
            self._search.parts(fleet.pools, CONFIRMED, traffic),
            traffic,
            self._shortest_deadline_us(fleet.pools, 1.0, MAX_TIMES),
            self._greatest_traffic(fleet.pools, 1 / MAX_TIMES, 1.0),
        )

    def cheaper(self, found: Sequence[Found]) -> Iterator[Tried]:
        """What ``less`` names."""
        own = self._chosen.pools[0].worker.name
        for change, pool in self.less(found):
            tried = self._tried(change, [pool])
            yield replace(tried, worker=own) if change == BATCH_LIMIT else tried

    def less(self, found: Sequence[Found]) -> Iterator[tuple[str, Pool]]:
        """Each other worker type and policy with as many workers as cost less than the plan; one worker fewer at the
        next faster point; the plan with smaller batches: with what it changes."""
        own = self._chosen.pools[0]
        for each in [each for each in found[1:] if len(each.tried.pools) == 1][:MAX_ALTERNATIVES]:
            (pool,) = each.tried.pools
            replicas = math.ceil(self._chosen.cost / pool.worker.price - 1e-9) - 1
            if 1 <= replicas < each.tried.replicas or not each.holds:
                yield self._change(pool), replace(pool, replicas=max(1, replicas))
        if len(self._chosen.pools) > 1:
            return
        if own.replicas > 1 and (policy := self._faster_point(own)) is not None:
            yield POINT, replace(own, policy=policy, replicas=own.replicas - 1)
        if (smaller := smaller_batches(own)) is not None and self._search.fits(smaller):
            yield BATCH_LIMIT, smaller

    def as_cheap(self, found: Sequence[Found]) -> Tried | None:
        """The first other that holds at the same cost."""
        pool = self.alike(found)
        return None if pool is None else self._tried(self._change(pool), [pool])

    def alike(self, found: Sequence[Found]) -> Pool | None:
        """What ``as_cheap`` tries."""
        for each in found[1:]:
            if each.holds and each.tried.cost == self._chosen.cost and len(each.tried.pools) == 1:
                return each.tried.pools[0]
        return None

    def margins(self) -> Margins:
        pools, traffic = self._chosen.pools, self._search.confirming
        parts = self._search.parts(pools, CONFIRMED, traffic)
        self._advance(1)
        return margins_of(
            self._search,
            pools,
            parts,
            traffic,
            self._shortest_deadline_us(pools, 1 / MAX_TIMES, 1.0),
            self._greatest_traffic(pools, 1.0, MAX_TIMES),
            sum(self._search.max_queue(pool) for pool in pools),
        )

    def _change(self, pool: Pool) -> str:
        return POLICY if pool.worker.name == self._chosen.pools[0].worker.name else WORKER_TYPE

    def _faster_point(self, pool: Pool) -> str | None:
        """The policy of always the next faster point than those that are accurate enough; None where all are, or
        requests choose by their tolerance."""
        grid = pool.worker.profile.grid
        enough = grid.accuracy >= self._promise.accuracy
        if self._search.terms(pool) or enough.all() or not enough.any():
            return None
        slowest_allowed = grid.best_rate_per_s[enough].max()
        faster = [row for row in np.flatnonzero(~enough) if grid.best_rate_per_s[row] > slowest_allowed]
        if not faster:
            return None
        return f"{FixedBatching.name}@{grid.points[min(faster, key=lambda row: grid.best_rate_per_s[row])].key}"

    def _tried(self, change: str, pools: Sequence[Pool]) -> Tried:
        fleet = self._search.served(pools, CONFIRMED, self._search.confirming)
        self._advance(1)
        return Tried(
            change,
            " + ".join(pool.worker.name for pool in pools),
            " + ".join(pool.policy for pool in pools),
            fleet.replicas,
            fleet.cost,
            max(pool.max_batch for pool in pools),
            fleet.verdict,
            tuple(fleet.verdict.misses(self._promise)),
        )

    def _shortest_deadline_us(self, pools: Sequence[Pool], low: float, high: float) -> Limit:
        """Of ``low`` to ``high`` times the promise's."""

        def missed(times: float, policies_as_promised: bool = False) -> tuple[str, ...]:
            search = self._search.with_deadline(times * self._promise.deadline_us, policies_as_promised)
            return self._missed(search, pools, search.searched)

        # A policy that is made for another deadline decides about alike, and is there already.
        stand_in = partial(missed, policies_as_promised=True) if self._search.plans_by_deadline(pools) else None
        least = lowest_without_misses(low, high, missed, self._advance, stand_in)
        return least if least.value is None else replace(least, value=least.value * self._promise.deadline_us)

    def _greatest_traffic(self, pools: Sequence[Pool], low: float, high: float) -> Limit | None:
        """Of ``low`` to ``high`` times the rate: the same requests, closer to each other or further apart."""
        search = self._search
        if not np.ptp(search.searched.arrival_s):
            self._advance(TRIALS)
            return None

        def missed(slower: float) -> tuple[str, ...]:
            return self._missed(search, pools, search.searched.faster(1 / slower))

        least = lowest_without_misses(1 / high, 1 / low, missed, self._advance)
        return least if least.value is None else replace(least, value=1 / least.value)

    def _missed(self, search: FleetSearch, pools: Sequence[Pool], traffic: Traffic) -> tuple[str, ...]:
        if not all(map(search.fits, pools)):
            return (ATTAINMENT,)
        return tuple(search.served(pools, CONFIRMED, traffic).verdict.misses(search.promise))


def fewer_of(
    search: FleetSearch, tried: Tried, parts: Sequence[Part], traffic: Traffic, deadline_us: Limit, most: Limit | None
) -> Fewer:
    """``tried``, as simulated in ``parts`` of ``traffic``, and how far ``deadline_us`` and rate (``most``) may go."""
    in_time = np.zeros(len(traffic.arrival_s), dtype=bool)
    for part in parts:
        in_time[part.at] = part.result.status == IN_TIME
    return Fewer(
        tried,
        lateness(parts, traffic, search.whole, search.promise.deadline_us),
        attainment_bounds(in_time[traffic.counted], search.judge.significance),
        deadline_us,
        most,
    )


def margins_of(
    search: FleetSearch,
    pools: Sequence[Pool],
    parts: Sequence[Part],
    traffic: Traffic,
    deadline_us: Limit,
    most: Limit | None,
    max_queue: int,
) -> Margins:
    """``pools``, as simulated in ``parts`` of ``traffic``; the rest as of ``Margins``."""
    grids = [search.placed(pool.worker, pool.replicas).profile.grid for pool in pools]
    fastest_us = min(grid.fastest_us for grid in grids)
    rates_per_s = [_rates_per_s(grid, search.computing_us) for grid in grids]
    enough = [
        rates[grid.accuracy >= search.promise.accuracy].max(initial=0.0)
        for grid, rates in zip(grids, rates_per_s, strict=True)
    ]
    fastest = [rates.max() for rates in rates_per_s]
    return Margins(
        lateness(parts, traffic, search.whole, search.promise.deadline_us),
        search.judged(parts, traffic),
        deadline_us,
        most,
        sum(pool.replicas * float(rate) for pool, rate in zip(pools, enough, strict=True)),
        sum(pool.replicas * float(rate) for pool, rate in zip(pools, fastest, strict=True)),
        fastest_us,
        search.promise.deadline_us - search.computing_us,
        search.computing_us - fastest_us,
        point_shares(parts),
        max_queue,
    )


def _rates_per_s(grid: ControlGrid, computing_us: float) -> np.ndarray:
    """What one worker answers at each point in the best batches that fit into this time: float64 [points]."""
    fits = grid.latency_us <= computing_us
    rates: np.ndarray = np.where(fits, 1e6 * grid.sizes / grid.latency_us, 0.0).max(axis=1)
    return rates


def smaller_batches(pool: Pool) -> Pool | None:
    """The same workers with batches up to the next smaller size; None where there is none."""
    sizes = pool.worker.profile.grid.sizes
    if len(sizes) < 2:
        return None
    limit = int(sizes[-2])
    name = f"{pool.worker.name}, batches of up to {limit}"  # services are kept by the name of their workers
    return replace(pool, worker=replace(pool.worker, name=name, profile=pool.worker.profile.up_to(limit)))


def point_shares(parts: Sequence[Part]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for part in parts:
        rows = part.result.row[part.result.status == IN_TIME]
        for row, count in zip(*np.unique(rows, return_counts=True), strict=True):
            counts[words_of(part.result.grid.points[row])] += int(count)
    return {key: count / counts.total() for key, count in counts.most_common()}
