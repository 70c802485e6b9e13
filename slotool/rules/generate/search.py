"""Search of every cascade of up to four versions over a grid of thresholds, exactly and all at once.

Let Xⱼ be the result of an example (its error, time, cost) when it stops at step j. The mean over a table is that of X₁
and, per further step, of Xⱼ₊₁ − Xⱼ over the examples that reach it: those below the threshold at each step before. That
is a cumulative histogram of the examples' ranks among the thresholds, one axis a step. So a grid of thresholds costs
one pass over the examples and one over the grid, whatever the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, permutations, product

import numpy as np

from slotool.machine import usable_cores
from slotool.rules.generate.candidates import quantiles
from slotool.rules.policies.cascades import ANSWERS, MAX_STEPS, Cascade, Step, Worth
from slotool.rules.policies.conditions import Condition

# Most thresholds at each step, by number of versions in a cascade.
MAX_GRID = {2: 200, 3: 24, 4: 10}
# Most kinds of signals, by number of versions.
MAX_KINDS = {2: 3, 3: 3, 4: 1}
ORDERS_AT_ONCE = 16  # bounds the memory of the cores' results


@dataclass(frozen=True)
class Signal:
    """``values`` (float64 [examples]) that may distinguish answers, and the condition that one reaches a threshold."""

    values: np.ndarray
    condition: Callable[[float], Condition]


# By versions asked in turn: each kind's signal, its thresholds, and how many of them each example reaches.
Grids = dict[tuple[int, ...], list[tuple[Signal, np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class ExampleSet:
    """Examples to search over: float64 [examples, versions] each, except integer ``labels`` (None if unknown).

    ``worth``: probability that each answer is right; ``best``: the version to compare with. ``shares``: float64
    [examples, groups], one over the share of a group for its examples, else 0.
    """

    error: np.ndarray
    latency_s: np.ndarray
    cost: np.ndarray
    worth: np.ndarray
    labels: np.ndarray | None
    best: int
    shares: np.ndarray | None = None

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, np.ndarray]:
        """First seven arguments of ``search_kernels.cascade_means``, each contiguous."""
        of_versions = (self.error, self.latency_s, self.cost, self.worth)
        labels = np.zeros(self.error.shape, dtype=np.int64) if self.labels is None else self.labels
        shares = np.empty((len(self.error), 0)) if self.shares is None else self.shares
        numbers = [np.ascontiguousarray(values, dtype=np.float64) for values in (*of_versions, shares)]
        error, latency_s, cost, worth, own_shares = numbers
        return error, latency_s, cost, worth, np.ascontiguousarray(labels, dtype=np.int64), self.best, own_shares


@dataclass(frozen=True)
class Path:
    """Cascades that ask ``versions`` in this order by these ``signals``, one per combination of ``thresholds``.

    ``thresholds``: one axis a step. ``means``: float64 [combinations, 4 + 2 × groups]: error, squared difference of the
    error from the best version's, time, cost; then, group by group, its error and its squared difference.
    """

    versions: tuple[int, ...]
    signals: tuple[Signal, ...]
    answer: str
    thresholds: tuple[np.ndarray, ...]
    means: np.ndarray

    def cascade(self, at: int, names: Sequence[str], worth: Sequence[Worth]) -> Cascade:
        """Return the cascade of combination ``at``."""
        steps = np.unravel_index(at, [len(levels) for levels in self.thresholds]) if self.thresholds else ()
        conditions: list[Condition | None] = [
            signal.condition(float(levels[step]))
            for signal, levels, step in zip(self.signals, self.thresholds, steps, strict=True)
        ]
        chain = tuple(Step(names[v], accept) for v, accept in zip(self.versions, [*conditions, None], strict=True))
        used = () if self.answer in ("last", "majority") else tuple((names[v], worth[v]) for v in self.versions)
        return Cascade(chain, self.answer, used)


def paths(
    examples: ExampleSet,
    signals: Callable[[tuple[int, ...], int], Sequence[Signal]],
    answers: Sequence[str],
    thresholds: int,
    *,
    longest: int = MAX_STEPS,
) -> Iterator[list[Path]]:
    """Yield every path of 1 to ``longest`` versions, in lists with equally many combinations.

    ``signals``: returns one signal of each of the first kinds after versions were asked in turn; all steps of a path
    use one kind. ``thresholds``: most per step, fewer in longer cascades. ``means`` of one list are parts of one array.
    """
    versions = range(examples.error.shape[1])
    with ThreadPoolExecutor(usable_cores()) as cores:
        for length in range(1, min(longest, len(versions)) + 1):
            grids: Grids = {}
            every = permutations(versions, length - 1)
            while some := list(islice(every, ORDERS_AT_ONCE)):
                for prefix in dict.fromkeys(order[: at + 1] for order in some for at in range(length - 1)):
                    if prefix not in grids:
                        kinds = signals(prefix, MAX_KINDS[length])
                        grids[prefix] = [(s, *_grid(s, min(thresholds, MAX_GRID[length]))) for s in kinds]
                usable = answers if length > 1 else answers[:1]
                for lists in cores.map(partial(_paths_after, examples, grids=grids, answers=usable), some):
                    yield from lists


def _grid(signal: Signal, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return thresholds, and how many of them each example reaches: int64 [examples]; without a value, none."""
    thresholds = quantiles(signal.values, count)
    reached = np.searchsorted(thresholds, signal.values, side="right")
    return thresholds, np.where(np.isnan(signal.values), 0, reached)


def _paths_after(
    examples: ExampleSet, order: tuple[int, ...], grids: Grids, answers: Sequence[str]
) -> list[list[Path]]:
    """Return the paths of ``order`` and one more version: a list for each kind of signal."""
    from slotool.rules.generate.search_kernels import cascade_means

    codes, lists = np.array([ANSWERS.index(answer) for answer in answers]), []
    lasts = [version for version in range(examples.error.shape[1]) if version not in order]
    steps = [grids[order[: at + 1]] for at in range(len(order))]
    for kind in zip(*steps, strict=True) if steps else [()]:
        thresholds = tuple(levels for _, levels, _ in kind)
        if any(not len(levels) for levels in thresholds):
            continue
        reached = np.array([ranks for _, _, ranks in kind], dtype=np.int64).reshape(len(kind), len(examples.error))
        sizes = np.array([len(levels) for levels in thresholds], dtype=np.int64)
        first = np.array(order, dtype=np.int64)
        means = cascade_means(*examples.arrays, first, np.array(lasts), codes, reached, sizes)
        signals, named = tuple(signal for signal, _, _ in kind), product(lasts, answers)
        of_each = zip(named, means.reshape(-1, *means.shape[2:]), strict=True)
        lists.append([Path((*order, last), signals, answer, thresholds, kind) for (last, answer), kind in of_each])
    return lists
