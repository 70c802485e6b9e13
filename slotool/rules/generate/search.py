"""Search of every cascade of up to four versions over a grid of thresholds, exactly and all at once.

Let Xⱼ be the result of an example (its error, time, cost) when it stops at step j. The mean over a table is that of X₁
and, per further step, of Xⱼ₊₁ − Xⱼ over the examples that reach it: those below the threshold at each step before. That
is a cumulative histogram of the examples' ranks among the thresholds, one axis a step. So a grid of thresholds costs
one pass over the examples and one over the grid, whatever the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, permutations

import numpy as np

from slotool.machine import usable_cores
from slotool.rules.generate.candidates import quantiles
from slotool.rules.policies.cascades import MAX_STEPS, Cascade, Step

# Most thresholds at each step, by number of versions in a cascade.
MAX_GRID = {2: 200, 3: 24, 4: 10}
ORDERS_AT_ONCE = 16  # bounds the memory of the cores' results


# By version: thresholds of its confidence, and how many of them each example reaches.
Grids = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ExampleSet:
    """Examples to search over: float64 [examples, versions] each.

    ``best``: the version to compare with. ``shares``: float64 [examples, groups], one over the share of a group for its
    examples, else 0.
    """

    error: np.ndarray
    latency_s: np.ndarray
    cost: np.ndarray
    confidence: np.ndarray
    best: int
    shares: np.ndarray | None = None

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, np.ndarray]:
        """First five arguments of ``search_kernels.cascade_means``, each contiguous."""
        of_versions = (self.error, self.latency_s, self.cost)
        shares = np.empty((len(self.error), 0)) if self.shares is None else self.shares
        numbers = [np.ascontiguousarray(values, dtype=np.float64) for values in (*of_versions, shares)]
        error, latency_s, cost, own_shares = numbers
        return error, latency_s, cost, self.best, own_shares


@dataclass(frozen=True)
class Path:
    """Cascades that ask ``versions`` in this order, one per combination of ``thresholds``.

    ``thresholds``: one axis a step. ``means``: float64 [combinations, 4 + 2 × groups]: error, squared difference of the
    error from the best version's, time, cost; then, group by group, its error and its squared difference.
    """

    versions: tuple[int, ...]
    thresholds: tuple[np.ndarray, ...]
    means: np.ndarray

    def cascade(self, at: int, names: Sequence[str]) -> Cascade:
        """Return the cascade of combination ``at``."""
        steps = np.unravel_index(at, [len(levels) for levels in self.thresholds]) if self.thresholds else ()
        least = [float(levels[step]) for levels, step in zip(self.thresholds, steps, strict=True)]
        return Cascade(
            tuple(Step(names[v], at_least) for v, at_least in zip(self.versions, [*least, None], strict=True))
        )


def paths(examples: ExampleSet, thresholds: int, *, longest: int = MAX_STEPS) -> Iterator[list[Path]]:
    """Yield every path of 1 to ``longest`` versions, in lists with equally many combinations.

    ``thresholds``: most per step, fewer in longer cascades. ``means`` of one list are parts of one array.
    """
    versions = range(examples.error.shape[1])
    with ThreadPoolExecutor(usable_cores()) as cores:
        for length in range(1, min(longest, len(versions)) + 1):
            most = min(thresholds, MAX_GRID[length]) if length > 1 else 0
            grids = [_grid(confidence, most) for confidence in examples.confidence.T]
            every = permutations(versions, length - 1)
            while some := list(islice(every, ORDERS_AT_ONCE)):
                yield from cores.map(partial(_paths_after, examples, grids=grids), some)


def _grid(confidence: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return thresholds, and how many of them each example reaches: int64 [examples]; without an answer, none."""
    thresholds = quantiles(confidence, count)
    reached = np.searchsorted(thresholds, confidence, side="right")
    return thresholds, np.where(np.isnan(confidence), 0, reached)


def _paths_after(examples: ExampleSet, order: tuple[int, ...], grids: Grids) -> list[Path]:
    """Return the paths of ``order`` and one more version."""
    from slotool.rules.generate.search_kernels import cascade_means

    thresholds = tuple(grids[version][0] for version in order)
    if any(not len(levels) for levels in thresholds):
        return []
    lasts = [version for version in range(examples.error.shape[1]) if version not in order]
    sizes = np.array([*map(len, thresholds)], np.int64)
    ranks = [grids[version][1] for version in order]
    reached = np.array(ranks, dtype=np.int64).reshape(len(order), len(examples.error))
    first = np.array(order, dtype=np.int64)
    means = cascade_means(*examples.arrays, first, np.array(lasts), reached, sizes)
    return [Path((*order, last), thresholds, of_one) for last, of_one in zip(lasts, means, strict=True)]
