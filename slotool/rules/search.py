"""Every cascade of up to four versions over a grid of thresholds, evaluated exactly and all at once.

Let Xⱼ be what an example gives (its error, time, cost) when it stops at step j. The mean over a table is that of X₁
and, per further step, of Xⱼ₊₁ − Xⱼ over the examples that reach it: those below the threshold at each step before.
That is a cumulative histogram of the examples' ranks among the thresholds, one axis a step. So a grid of thresholds
costs one pass over the examples and one over the grid, whatever the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from slotool.rules.cascades import MAX_STEPS, Cascade, Step, Worth, chosen
from slotool.rules.conditions import Condition

# At most so many thresholds are tried at each step of a cascade of so many versions.
MAX_GRID = {2: 200, 3: 24, 4: 10}
# And so many kinds of signals.
MAX_KINDS = {2: 3, 3: 3, 4: 1}


@dataclass(frozen=True)
class Signal:
    """A number by which a version's answers may be told apart: ``values``, float64 [examples], and the condition that
    it reaches a threshold."""

    values: np.ndarray
    condition: Callable[[float], Condition]


# By versions asked in turn: each kind's signal, its thresholds, and how many of them each example reaches.
Grids = dict[tuple[int, ...], list[tuple[Signal, np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Examples:
    """What is known of the examples searched over: float64 [examples, versions] each but ``labels`` (integers, None
    where unknown). ``worth``: how likely each answer is right; ``best``: the version others are compared with.
    ``shares``: float64 [examples, groups], one over the share of a group for those in it, else 0."""

    error: np.ndarray
    latency_s: np.ndarray
    cost: np.ndarray
    worth: np.ndarray
    labels: np.ndarray | None
    best: int
    shares: np.ndarray | None = None


@dataclass(frozen=True)
class Path:
    """Cascades that ask ``versions`` in this order by these ``signals`` and answer alike, one for each combination of
    ``thresholds`` (one axis a step). ``means``: float64 [combinations, 4 + 2 × groups]: error, squared difference of
    the error from the best version's, time, cost; then, group by group, its error and its squared difference."""

    versions: tuple[int, ...]
    signals: tuple[Signal, ...]
    answer: str
    thresholds: tuple[np.ndarray, ...]
    means: np.ndarray

    def cascade(self, at: int, names: Sequence[str], worth: Sequence[Worth]) -> Cascade:
        """The cascade of combination ``at``."""
        steps = np.unravel_index(at, [len(own) for own in self.thresholds]) if self.thresholds else ()
        conditions: list[Condition | None] = [
            signal.condition(float(own[step]))
            for signal, own, step in zip(self.signals, self.thresholds, steps, strict=True)
        ]
        asked = tuple(Step(names[v], accept) for v, accept in zip(self.versions, [*conditions, None], strict=True))
        used = () if self.answer in ("last", "majority") else tuple((names[v], worth[v]) for v in self.versions)
        return Cascade(asked, self.answer, used)


def paths(
    examples: Examples,
    signals: Callable[[tuple[int, ...]], Sequence[Signal]],
    answers: Sequence[str],
    thresholds: int,
    *,
    longest: int = MAX_STEPS,
) -> Iterator[Path]:
    """Every path of 1 to ``longest`` versions. ``signals``: one of each kind, after versions were asked in turn; all
    steps of a path use one kind. ``thresholds``: at most so many per step, fewer in longer cascades."""
    versions = range(examples.error.shape[1])
    for length in range(1, min(longest, len(versions)) + 1):
        grids: Grids = {}
        for order in permutations(versions, length):
            for at in range(1, length):
                if order[:at] not in grids:
                    own = signals(order[:at])[: MAX_KINDS[length]]
                    grids[order[:at]] = [(s, *_grid(s, min(thresholds, MAX_GRID[length]))) for s in own]
            yield from _paths_of(examples, order, grids, answers if length > 1 else answers[:1])


def quantiles(values: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` ascending thresholds above the lowest of ``values``, which would accept all examples."""
    known = values[~np.isnan(values)]
    if not len(known):
        return np.empty(0)
    levels = np.linspace(0.0, 1.0, count + 2)[1:-1]
    found = np.unique(np.quantile(known, levels, method="higher"))
    return np.asarray(found[found > known.min()])


def _grid(signal: Signal, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds, and how many of them each example reaches: int64 [examples]; of one without a value, none."""
    thresholds = quantiles(signal.values, count)
    reached = np.searchsorted(thresholds, signal.values, side="right")
    return thresholds, np.where(np.isnan(signal.values), 0, reached)


def _paths_of(examples: Examples, order: tuple[int, ...], grids: Grids, answers: Sequence[str]) -> Iterator[Path]:
    """The paths of one order of versions, by each kind of signal."""
    stacked = np.concatenate([_columns(examples, order, answer) for answer in answers], axis=2)
    steps = [grids[order[:at]] for at in range(1, len(order))]
    for own in zip(*steps, strict=True) if steps else [()]:
        thresholds = tuple(found for _, found, _ in own)
        if any(not len(found) for found in thresholds):
            continue
        means = _means(stacked, [reached for _, _, reached in own], [len(found) for found in thresholds])
        for number, answer in enumerate(answers):
            signals = tuple(signal for signal, _, _ in own)
            width = stacked.shape[2] // len(answers)
            yield Path(order, signals, answer, thresholds, means[:, width * number : width * (number + 1)])


def _columns(examples: Examples, order: tuple[int, ...], answer: str) -> np.ndarray:
    """What stopping at each step gives: float64 [examples, steps, columns of ``Path.means``]."""
    at = list(order)
    error, best = examples.error[:, at], examples.error[:, examples.best]
    rows = np.arange(len(error))
    given = np.empty_like(error)
    for count in range(1, len(at) + 1):
        labels = None if examples.labels is None else examples.labels[:, at[:count]]
        given[:, count - 1] = error[rows, chosen(answer, examples.worth[:, at[:count]], labels)]
    times, costs = (np.cumsum(values[:, at], axis=1) for values in (examples.latency_s, examples.cost))
    squares = (given - best[:, None]) ** 2
    columns = [given, squares, times, costs]
    if examples.shares is not None:
        columns += [values * share[:, None] for share in examples.shares.T for values in (given, squares)]
    return np.stack(columns, axis=2)


def _means(values: np.ndarray, reached: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Mean of ``values`` (float64 [examples, steps, columns]) at every combination of thresholds: float64
    [combinations, columns]."""
    examples, _, columns = values.shape
    total = values[:, 0].sum(axis=0).reshape((1,) * len(sizes) + (columns,))
    for depth in range(1, len(sizes) + 1):
        shape = tuple(size + 1 for size in sizes[:depth])
        cell = np.ravel_multi_index(tuple(reached[:depth]), shape)
        more = values[:, depth] - values[:, depth - 1]
        sums = np.stack([np.bincount(cell, own, int(np.prod(shape))) for own in more.T], axis=1)
        sums = sums.reshape(*shape, columns)
        for axis in range(depth):
            sums = np.cumsum(sums, axis=axis)
        sums = sums[tuple(slice(0, size) for size in sizes[:depth])]
        total = total + sums.reshape(*sizes[:depth], *(1,) * (len(sizes) - depth), columns)
    return np.asarray(total.reshape(-1, columns) / examples)
