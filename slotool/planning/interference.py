"""Workers that share a machine: by how much the calls of one are longer while others compute.

Each worker has cores of its own, but caches, memory and the clock are shared. What co-runners cost is a ratio of
latencies, co-located over alone, at the same point, batch size and quantile: measured by ``profile points --placement
split``, or predicted. The latencies that a fleet is planned with are raised by it.
Source: T(k, β) of slo-aware-neural-networks, section 2.3; β here is how many other workers are busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import ArgumentError, InputError
from slotool.planning.fleet import Pool, WorkerType
from slotool.scheduling.batching import ControlGrid, Profile
from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.tables import LatencyTable, OperatingPoint
from slotool.tables.latency import copies_in

# Quantiles at which latencies are compared: beyond them a table of some hundred samples says nothing.
QUANTILES = np.linspace(0.05, 0.95, 10)
SPLIT = "split"


@dataclass(frozen=True)
class Interference:
    """Slowdown of a worker's calls by busy neighbours.

    ``ratios``: by number of busy co-runners, point key and batch size, float64 [QUANTILES], co-located over alone.
    ``quantile``: of the latencies, for policies' plans.
    """

    ratios: Mapping[int, Mapping[tuple[str, int], np.ndarray]]
    quantile: float = PLANNING_QUANTILE

    @classmethod
    def of(cls, interference: LatencyTable | float, worker: WorkerType, quantile: float) -> Interference:
        """Return what workers like ``worker`` do to each other, by a table or as one ratio.

        One ratio is that of all calls next to one busy worker, and as much again for each other. Raises
        ``ArgumentError`` for a ratio below 1, and as ``of_table``.
        """
        if isinstance(interference, LatencyTable):
            return cls.of_table(interference, worker.profile.subject, threads=worker.threads, quantile=quantile)
        if not interference >= 1:
            raise ArgumentError("interference", f"a ratio of {interference:g} is not 1 or more")
        return cls({1: {("", 1): np.full(len(QUANTILES), float(interference))}}, quantile)

    @classmethod
    def of_table(
        cls, table: LatencyTable, subject: str, *, threads: int = 1, quantile: float = PLANNING_QUANTILE
    ) -> Interference:
        """Read interference off rows of ``subject`` alone and co-located with copies of itself, measured or predicted.

        Raises ``InputError`` without co-located rows of so many threads, for rows whose co-runners had the same cores,
        and for a co-located row whose latency alone is not known.
        """
        rows = table.where(subject=subject, status="ok", threads=threads).rows
        copies = [copies_in(subject, text) for text in rows["co_runners"]]
        rows = rows.assign(copies=np.array([-1 if count is None else count for count in copies], dtype=np.int64))
        colocated = rows[rows["copies"] > 0]
        if colocated.empty:
            raise InputError(
                f"{table.source}: no row of {subject} with {threads} thread{'s' if threads > 1 else ''} is co-located "
                "with copies of it: slotool profile points ARTIFACT --co-runners 0,1 --placement split"
            )
        if "placement" in colocated:
            colocated = colocated[colocated["placement"].isin((SPLIT, "", None))]
            if colocated.empty:
                raise InputError(
                    f"{table.source}: its co-runners had the same cores, and workers have cores of their own: measure "
                    "with --placement split"
                )
        alone = {(row["point"], row["batch_size"]): row["samples_s"] for row in _records(rows[rows["copies"] == 0])}
        ratios: dict[int, dict[tuple[str, int], np.ndarray]] = {}
        for row in _records(colocated):
            cell = str(row["point"]), int(row["batch_size"])
            solo = row.get("solo_s")
            alone_s = alone.get(cell) if solo is None or not len(solo) else solo
            if alone_s is None:
                raise InputError(f"{table.source}: {subject} at {cell[0]}, batch size {cell[1]}, has no row alone")
            ratios.setdefault(int(row["copies"]), {})[cell] = _ratio(row["samples_s"], alone_s)
        return cls(ratios, quantile)

    @property
    def max_co_runners(self) -> int:
        """Beyond which it is in proportion."""
        return max(self.ratios)

    def ratio(self, point: OperatingPoint, batch_size: int, co_runners: int) -> np.ndarray:
        """Return float64 [QUANTILES], 1 at least: how many times as long a call takes next to so many busy workers.

        Between numbers of co-runners that are known, and beyond them, it grows in proportion. A point or batch size
        that is not known takes the ratio of the nearest batch size of the point, else the mean of all (``remarks``).
        """
        if not co_runners:
            return np.ones(len(QUANTILES))
        slowdowns = {0: np.ones(len(QUANTILES))}
        slowdowns |= {count: self._at(count, point.key, batch_size) for count in sorted(self.ratios)}
        counts = list(slowdowns)
        if co_runners >= counts[-1]:
            slowdown = 1 + (slowdowns[counts[-1]] - 1) * co_runners / counts[-1]
        else:
            above = next(count for count in counts if count >= co_runners)
            below = max(count for count in counts if count < co_runners)
            share = (co_runners - below) / (above - below)
            slowdown = (1 - share) * slowdowns[below] + share * slowdowns[above]
        return np.maximum(slowdown, 1.0)

    def remarks(self, profile: Profile) -> Iterator[str]:
        """Say what stands in for unknown points and batch sizes of ``profile``, and which ratios count as 1."""
        grid = profile.grid
        for count, cells in sorted(self.ratios.items()):
            if any(not key for key, _ in cells):  # one ratio for all
                continue
            beside = f"next to {count} co-runner{'s' if count > 1 else ''}"
            other: dict[tuple[int, ...], list[str]] = defaultdict(list)
            for point in grid.points:
                other[tuple(sorted(size for key, size in cells if key == point.key))].append(str(point))
            for sizes, points in other.items():
                lacking = [str(size) for size in grid.sizes.tolist() if size not in sizes]
                if not sizes:
                    measured = ", ".join(dict.fromkeys(key for key, _ in cells))
                    yield f"no interference is known of {', '.join(points)} {beside}: the mean of {measured} stands in"
                elif lacking:
                    yield (
                        f"interference on {', '.join(points)} {beside} is known at batch size "
                        f"{', '.join(map(str, sizes))}, not at {', '.join(lacking)}: the nearest stands in"
                    )
        below = {
            f"{key}, batch size {size}, next to {count}": float(np.median(ratio))
            for count, cells in self.ratios.items()
            for (key, size), ratio in cells.items()
            if np.median(ratio) < 1
        }
        if below:
            least = min(below, key=lambda each: below[each])
            yield (
                f"{len(below)} of {sum(map(len, self.ratios.values()))} ratios of interference are below 1 (the least "
                f"{below[least]:.3g}, of {least}) and count as 1"
            )

    def raised(self, profile: Profile, co_runners: int) -> Profile:
        """Return ``profile`` next to so many busy workers."""
        grid, at = profile.grid.whole, float(self.quantile)
        latency_us = {
            (point, int(size)): float(grid.latency_us[row, column])
            * float(np.interp(at, QUANTILES, self.ratio(point, int(size), co_runners)))
            for row, point in enumerate(grid.points)
            for column, size in enumerate(grid.sizes)
        }
        space = ControlSpace(grid.points, latency_us, dict(zip(grid.points, grid.accuracy.tolist(), strict=True)))
        samples_us = {cell: self.longer(*cell, alone, co_runners) for cell, alone in profile.samples_us.items()}
        return Profile(profile.subject, ControlGrid(space), samples_us)

    def longer(self, point: OperatingPoint, batch_size: int, samples: np.ndarray, co_runners: int) -> np.ndarray:
        """Return ``samples`` of calls alone, each longer by the ratio at its own quantile."""
        samples = np.asarray(samples, dtype=np.float64)
        ranks = np.full(1, 0.5) if len(samples) == 1 else np.argsort(np.argsort(samples)) / (len(samples) - 1)
        return samples * np.interp(ranks, QUANTILES, self.ratio(point, batch_size, co_runners))

    def _at(self, count: int, key: str, batch_size: int) -> np.ndarray:
        cells = self.ratios[count]
        sizes = [size for point, size in cells if point == key]
        if sizes:
            return cells[key, min(sizes, key=lambda size: abs(np.log(size / batch_size)))]
        return np.exp(np.mean([np.log(ratio) for ratio in cells.values()], axis=0))


@dataclass(frozen=True)
class Placement:
    """Placement of workers on machines of ``cores`` each, filled in turn; ``interference``: by name of their type."""

    cores: int
    interference: Mapping[str, Interference]

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ArgumentError("machine_cores", f"{self.cores} is not 1 or more")

    def per_machine(self, worker: WorkerType, replicas: int) -> int:
        """Return the workers of a machine that is full, or of the only one."""
        return min(replicas, max(1, self.cores // worker.threads))

    def sizes(self, worker: WorkerType, fewest: int, most: int) -> Iterator[int]:
        """Yield sizes above ``fewest``, by steps of an eighth, up to the workers that fill a machine.

        Until then each further worker slows down all others.
        """
        replicas, full = fewest, self.per_machine(worker, most)
        while replicas < full:
            replicas = min(full, replicas + max(1, replicas // 8))
            yield replicas

    def placed(self, worker: WorkerType, replicas: int) -> WorkerType:
        """Return ``worker`` as one of ``replicas``: policies plan with all neighbours busy, calls take actual ones."""
        effect, together = self.interference.get(worker.name), self.per_machine(worker, replicas)
        if effect is None or together == 1:
            return worker
        profiles = [effect.raised(worker.profile, count) for count in range(together)]
        name, beside = f"{worker.name}, {together} to a machine", tuple(each.samples_us for each in profiles)
        return replace(worker, name=name, profile=profiles[-1], beside=beside)

    def remarks(self, pool: Pool) -> Iterator[str]:
        """Say what is not known of the workers of ``pool`` that share a machine."""
        together, slowdown = self.per_machine(pool.worker, pool.replicas), self.interference.get(pool.worker.name)
        if slowdown is not None and together * pool.worker.threads >= self.cores:
            yield (
                f"the workers take all {self.cores} cores of a machine, and the front end of their server takes a part "
                "of these, as --verify measures: leave it a core"
            )
        if slowdown is None and together > 1:
            yield (
                f"{together} workers share a machine, and are planned with the latency of one alone; --interference "
                "says what they do to each other"
            )
        elif slowdown is not None and together - 1 > slowdown.max_co_runners:
            yield (
                f"{together} workers share a machine, and interference is known next to {slowdown.max_co_runners} at "
                "most: next to more it counts in proportion"
            )


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def _ratio(colocated_s: np.ndarray, alone_s: np.ndarray) -> np.ndarray:
    """Return the ratio at each quantile; of one estimate on either side the same at all."""
    if min(len(colocated_s), len(alone_s)) == 1:
        return np.full(len(QUANTILES), float(np.median(colocated_s)) / float(np.median(alone_s)))
    return np.quantile(colocated_s, QUANTILES) / np.quantile(alone_s, QUANTILES)
