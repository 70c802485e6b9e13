"""Models that share workers as planned with the front end of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slotool.planning.fleet import Pool
from slotool.planning.front_end import FrontEnd, read_in_turn
from slotool.planning.pool_service import all_busy
from slotool.planning.shared import SharedFleetSearch
from slotool.planning.traffic import Traffic
from slotool.planning.verification import figures


def planned_together(
    search: SharedFleetSearch,
    pools: Mapping[str, Pool],
    draw: int,
    traffic: Mapping[str, Traffic],
    front_ends: Mapping[str, FrontEnd],
    cores: int | None = None,
) -> dict[str, dict[str, Any]]:
    """By model what ``verification.figures`` says of its requests. ``cores``: as of ``verification.planned``.

    One server reads the requests of all models, one by one, each behind those before it. Its headroom is that of the
    model whose answers come latest, as it keeps one for all.
    """
    arrival_s = {name: own.arrival_s for name, own in traffic.items()}
    longer = 1.0 if cores is None else all_busy(sum(mean_cpu_us(traffic, front_ends)), rate_per_s(traffic), cores)
    read_us = read_together(arrival_s, front_ends)
    reserve_us = max(each.overhead.reserve_us for each in front_ends.values())
    of_all = {
        name: replace(each, overhead=each.overhead._replace(reserve_us=reserve_us)) for name, each in front_ends.items()
    }
    overheads = {name: each.overhead_within(search.promises[name].deadline_us, longer) for name, each in of_all.items()}
    results = search.results(pools, draw, {name: own / 1e6 for name, own in read_us.items()}, overheads)
    found = {}
    for name, result in results.items():
        random = np.random.default_rng((search.seed, draw, len(arrival_s[name])))
        took_us = result.done_us - 1e6 * arrival_s[name] + random.choice(front_ends[name].outside_us, len(result.row))
        took_us = np.where(np.isnan(took_us), np.inf, took_us)
        found[name] = figures(took_us <= search.promises[name].deadline_us, result.right, took_us)
    return found


def mean_cpu_us(traffic: Mapping[str, Traffic], front_ends: Mapping[str, FrontEnd]) -> tuple[float, float]:
    """CPU time that the server's own process and the client spend on a request, of whichever model: the mean."""
    parts = [(own.rate_per_s / rate_per_s(traffic), front_ends[name]) for name, own in traffic.items()]
    return sum(part * each.cpu_us for part, each in parts), sum(part * each.client_us for part, each in parts)


def rate_per_s(traffic: Mapping[str, Traffic]) -> float:
    """Of all models."""
    return sum(own.rate_per_s for own in traffic.values())


def read_together(arrival_s: Mapping[str, np.ndarray], front_ends: Mapping[str, FrontEnd]) -> dict[str, np.ndarray]:
    """By model the instants at which its requests have been read, float64 µs: all by one loop, as ``read_in_turn``."""
    names = list(arrival_s)
    counts = [len(arrival_s[name]) for name in names]
    of, due_us = np.repeat(np.arange(len(names)), counts), np.concatenate([1e6 * arrival_s[name] for name in names])
    each_us, first_us = np.array([(front_ends[name].each_us, front_ends[name].first_us) for name in names]).T
    order = np.argsort(due_us, kind="stable")
    read_us = read_in_turn(due_us[order], each_us[of[order]], first_us[of[order]])
    return {name: read_us[of[order] == at] for at, name in enumerate(names)}
