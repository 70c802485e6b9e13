"""Fleets of two kinds of workers: a few small ones in place of large ones that would be half idle.

Each kind is a pool of its own behind the port of one server, with its own queue and policy and a fixed share of the
requests, which it gets in turn. So a pool is simulated, and served, like a fleet of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from slotool.planning.fleet import Fleet, Found, Pool
from slotool.planning.fleet_search import FleetSearch, ranked
from slotool.planning.traffic import Traffic

# Workers of the larger kind that smaller ones may replace: with many workers a fraction of one saves little.
MAX_REPLACED = 4
# What is tried of a pool's share of the requests, beyond its part of what all workers can do; the likeliest first.
SHARE_STEPS = (0.0, -0.04, 0.04, -0.09, 0.09)
MIN_SHARE = 0.01
# With latencies drawn anew a fleet may need so many more small workers.
MAX_MORE = 3


class MixedFleetSearch(FleetSearch):
    """As ``FleetSearch``, and of pools of two kinds of workers."""

    def mixed(self, found: Sequence[Found], advance: Callable[[], None] = lambda: None) -> list[Found]:
        """Fleets of two kinds that are cheaper than all of ``found``, which are of one kind each.

        Of each kind the best policy serves. The larger kind gives up to ``MAX_REPLACED`` workers of the least that it
        needs by itself, for the least of the smaller kind that hold the promise with the rest. ``advance`` is called
        for each pair.
        """
        best: dict[object, Found] = {}
        for each in ranked(found, self.promise):
            best.setdefault(self._alternative(each.tried.pools[0]), each)
        cheaper: list[Found] = []
        holding = [each for each in best.values() if each.holds]
        rank = min((each.rank for each in holding), default=0.0)
        limit = min((each.tried.cost for each in holding if each.rank == rank), default=math.inf)
        for large, small in permutations(best.values(), 2):
            pools = large.tried.pools[0], small.tried.pools[0]
            if pools[0].worker.price <= pools[1].worker.price or large.rank > rank or not self._may_share(*pools):
                continue
            advance()
            for pair in self._replacing(large, small, limit):
                cheaper.append(pair)
                limit = pair.tried.cost
        return cheaper

    def _alternative(self, pool: Pool) -> object:
        """Of pools that are alike in this the best is tried: of each type of workers, under any policy."""
        return pool.worker.name

    def _may_share(self, large: Pool, small: Pool) -> bool:
        """Whether requests may go to either. Policies answer any, each as it can."""
        return True

    def confirmed(self, found: Found) -> Found:
        """With latencies drawn anew; with more small workers where that takes them."""
        if len(found.tried.pools) == 1 or not found.holds:
            return super().confirmed(found)
        large, small = found.tried.pools
        fewer: Fleet | None = None
        for more in range(MAX_MORE + 1):
            tried = self._best_shared(large, replace(small, replicas=small.replicas + more), 1, self._confirming)
            if self._holds(tried):
                return Found(tried, holds=True, fewer=fewer or found.fewer, confirmed=True, rank=found.rank)
            fewer = tried
        return Found(tried, holds=False, confirmed=True, rank=found.rank)

    def _replacing(self, large: Found, small: Found, limit: float) -> Iterator[Found]:
        """Fleets of fewer of ``large`` and some of ``small``, each cheaper than ``limit`` and those before it."""
        for_all, filler = large.tried.pools[0], small.tried.pools[0]
        for given in range(1, min(MAX_REPLACED, for_all.replicas - 1) + 1):
            left = replace(for_all, replicas=for_all.replicas - given)
            affordable = math.ceil((limit - left.cost) / filler.worker.price - 1e-9) - 1
            most = min(affordable, filler.replicas if small.holds else self.max_workers, self.max_workers)
            if most < 1:
                continue
            enough = self._best_shared(left, replace(filler, replicas=most))
            if not self._holds(enough):
                continue
            fewer = self.served([left], 0, self._searched)
            low, high = 0, most
            while high - low > 1:
                middle = (low + high) // 2
                tried = self._best_shared(left, replace(filler, replicas=middle))
                if self._holds(tried):
                    high, enough = middle, tried
                else:
                    low, fewer = middle, tried
            limit = enough.cost
            yield Found(enough, holds=True, fewer=fewer, rank=large.rank)

    def _best_shared(self, large: Pool, small: Pool, draw: int = 0, traffic: Traffic | None = None) -> Fleet:
        """These workers with the share of the requests that holds the promise, or comes closest to it."""
        done = [pool.replicas * self._rate_per_s(pool) for pool in (large, small)]
        middle = done[0] / sum(done)
        if small.share < 1:  # found before
            middle = large.share
        tried: list[Fleet] = []
        for step in SHARE_STEPS:
            share = float(np.clip(middle + step, MIN_SHARE, 1 - MIN_SHARE))
            pools = replace(large, share=share), replace(small, share=1 - share)
            tried.append(self.served(pools, draw, traffic or self._searched))
            if self._holds(tried[-1]):
                break
        return min(tried, key=lambda fleet: fleet.verdict.shortfall(self.promise))

    def _rate_per_s(self, pool: Pool) -> float:
        """What a worker can do at the points that are accurate enough, in batches that take half a deadline at most."""
        grid = pool.worker.profile.grid
        rates_per_s = np.where(grid.latency_us <= self._deadline_us / 2, 1e6 * grid.sizes / grid.latency_us, 0.0)
        enough = rates_per_s[grid.accuracy >= self.promise.accuracy]
        return float(enough.max(initial=0.0) or grid.best_rate_per_s.max())
