"""Proposals to test: per tolerance and objective a chain of policies, from the surest to the cheapest.

The learning part alone makes the chains. A policy's *margin* is the distance of its observed degradation from the
tolerance, in standard errors of the coming test. A chain is the front of margin against price: each policy in it is
cheaper than all with a larger margin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from slotool.rules.generate.base import Problem
from slotool.rules.generate.candidates import Candidates, quantiles
from slotool.rules.generate.search import ExampleSet, Path, paths
from slotool.rules.policies.cascades import Cascade, Step
from slotool.rules.policies.routing import OSFA, PAIRS, RoutingPolicy

# Least further saving of each policy in a chain, as a share of the best version's price.
MIN_STEP, MAX_CHAIN = 0.003, 60
# A chain begins at the cheapest policy with a margin from here: a test hardly ever rejects it, though margins are only
# observed, and surer policies need no test. On four scikit-learn models of Fashion-MNIST (of 1,000 or 4,000 examples)
# no tier saves less from here than from the surest policy, nor at 7; at 5 some do, at 4 most.
SURE = 10.0


@dataclass(frozen=True)
class Goal:
    """Goal of a chain: to save on column ``saves`` of a path's means (2: time, 3: cost) within ``tolerance``."""

    objective: str
    tolerance: float
    saves: int


@dataclass
class _Front:
    """Growing front of margin against price of one goal."""

    margin: np.ndarray = field(default_factory=lambda: np.empty(0))
    price: np.ndarray = field(default_factory=lambda: np.empty(0))
    makers: list[Callable[[], RoutingPolicy]] = field(default_factory=list)

    def add(self, margin: np.ndarray, price: np.ndarray, make: Callable[[int], RoutingPolicy]) -> None:
        """Add policies that keep the goal (margin > 0); ``make`` returns the one of an index."""
        new = _front(margin, price)
        makers = self.makers + [partial(make, int(at)) for at in new]
        self.margin, self.price = np.append(self.margin, margin[new]), np.append(self.price, price[new])
        front = _front(self.margin, self.price)
        self.margin, self.price, self.makers = self.margin[front], self.price[front], [makers[at] for at in front]

    def chain(self, base: float) -> list[RoutingPolicy]:
        """Return the policies, surest first; ``base``: the price of the best version."""
        begin = max(0, int(np.count_nonzero(self.margin >= SURE)) - 1)
        picked, last = [], base
        for price, make in zip(self.price[begin:], self.makers[begin:], strict=True):
            if price < last - MIN_STEP * base:
                picked.append(make())
                last = price
        return picked[:MAX_CHAIN]


class _Fronts:
    """Fronts of all goals, and their numbers for ``search_kernels.beyond_fronts``.

    ``parts``: as there; ``base``: float64 [2], time and cost of the best version.
    """

    def __init__(self, goals: Sequence[Goal], parts: np.ndarray, base: np.ndarray):
        self._fronts = [_Front() for _ in goals]
        self._saves = np.array([goal.saves for goal in goals])
        self._bases = base[self._saves - 2]
        self._fixed = (parts, np.array([goal.tolerance for goal in goals]), self._saves, self._bases * (1 - 1e-9))
        self._entries, self._begins = np.empty((0, 2)), np.zeros(len(goals) + 1, dtype=np.int64)

    def add(self, means: np.ndarray, make: Callable[[int], RoutingPolicy]) -> None:
        """Add policies by their means, float64 [policies, columns of ``Path.means``]."""
        from slotool.rules.generate.search_kernels import beyond_fronts

        beyond, margins = beyond_fronts(np.ascontiguousarray(means), *self._fixed, self._entries, self._begins)
        changed = np.flatnonzero(beyond.any(axis=1))
        for at in changed:
            new = np.flatnonzero(beyond[at])
            self._fronts[at].add(margins[at, new], means[new, self._saves[at]], _picked(make, new))
        if len(changed):
            self._entries = np.concatenate([np.stack([front.margin, front.price], axis=1) for front in self._fronts])
            self._begins[1:] = np.cumsum([len(front.price) for front in self._fronts])

    def chains(self) -> list[list[RoutingPolicy]]:
        return [front.chain(float(base)) for front, base in zip(self._fronts, self._bases, strict=True)]


def chains(problem: Problem, goals: Sequence[Goal], learn: np.ndarray, test: np.ndarray) -> Proposals:
    """Return one chain per goal; ``learn`` and ``test`` are rows that choose and will test."""
    base = np.array([problem.outcomes.matrix(name)[learn, problem.best].mean() for name in ("latency_s", "cost")])
    fronts, considered = _Fronts(goals, _parts(problem, learn, test), base), 0
    for means, make in _sources(problem, learn):
        considered += len(means)
        fronts.add(means, make)
    return Proposals(fronts.chains(), considered)


def threshold_path(problem: Problem, goal: Goal, rows: np.ndarray) -> list[RoutingPolicy]:
    """Return a path of two versions, surest first: the better one alone, then the cheaper from each confidence on.

    ``rows`` select the cheapest version for the goal's objective, the one with the fewest errors among the others, and
    the thresholds; they must not test.
    """
    outcomes = problem.outcomes
    prices = outcomes.matrix("latency_s" if goal.saves == 2 else "cost")[rows].mean(axis=0)
    cheap, *others = np.argsort(prices, kind="stable")
    better = min(others, key=lambda version: float(problem.errors[rows, version].mean()))
    thresholds = quantiles(outcomes.matrix("confidence")[rows, cheap], len(rows))[::-1]
    first, second = outcomes.versions[cheap], outcomes.versions[better]
    between = [Cascade((Step(first, float(level)), Step(second))) for level in thresholds]
    path = [OSFA(second), *between, OSFA(first)]
    alone = OSFA.kind in problem.policies
    return [policy for policy in path if alone or policy == OSFA(outcomes.versions[problem.best]) or policy in between]


def _parts(problem: Problem, learn: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the examples of all, or of each group, for ``search_kernels.beyond_fronts``."""
    groups, error = problem.groups, problem.outcomes.matrix("error")[:, problem.best] / problem.max_error
    parts = [(learn, test)] if groups is None else zip(groups.rows(learn), groups.rows(test), strict=True)
    numbers = []
    for at, (learnt, tests) in enumerate(parts):
        best_error = float(error[learnt].mean()) if len(learnt) else 0.0
        unit = best_error if problem.tolerance_kind == "relative" else 1.0 / problem.max_error
        numbers.append((0 if groups is None else 4 + 2 * at, len(learnt), len(tests), best_error, unit))
    return np.array(numbers)


@dataclass(frozen=True)
class Proposals:
    """Chain per goal, and the number of policies they were chosen from."""

    chains: list[list[RoutingPolicy]]
    considered: int


def _sources(problem: Problem, learn: np.ndarray) -> Iterator[tuple[np.ndarray, Callable[[int], RoutingPolicy]]]:
    """Yield policies' means as in ``Path.means``, with errors in [0, 1], and the policy of an index."""
    pairs = [kind for kind in problem.policies if kind in (OSFA.kind, *PAIRS)]
    candidates = problem.candidates(learn, pairs or ["none"])
    yield _means_of(problem, candidates, learn), candidates.policy
    if Cascade.kind in problem.policies:
        yield from _cascades(problem, learn)


def _means_of(problem: Problem, candidates: Candidates, learn: np.ndarray) -> np.ndarray:
    means, best = candidates.means(learn), problem.outcomes.matrix("error")[:, problem.best]
    squares = candidates.mean_of_error(lambda error: ((error - best) / problem.max_error) ** 2, learn)
    columns = [means.error / problem.max_error, squares, means.response_time_s, means.cost]
    for rows in [] if problem.groups is None else problem.groups.rows(learn):
        of_group = candidates.mean_of_error(lambda error: error / problem.max_error, rows)
        squares = candidates.mean_of_error(lambda error: ((error - best) / problem.max_error) ** 2, rows)
        columns += [of_group, squares]
    return np.stack(columns, axis=1)


def _cascades(problem: Problem, learn: np.ndarray) -> Iterator[tuple[np.ndarray, Callable[[int], RoutingPolicy]]]:
    outcomes, names = problem.outcomes, problem.outcomes.versions
    error, sure = outcomes.matrix("error") / problem.max_error, outcomes.matrix("confidence")
    examples = ExampleSet(
        error[learn],
        outcomes.matrix("latency_s")[learn],
        outcomes.matrix("cost")[learn],
        sure[learn],
        problem.best,
        None if problem.groups is None else _shares(problem.groups.of[learn], len(problem.groups.names)),
    )
    for group in filter(None, paths(examples, problem.thresholds)):
        yield np.concatenate([path.means for path in group]), _maker(group, names)


def _shares(of: np.ndarray, groups: int) -> np.ndarray:
    """Return the weight of each example in each group's mean, float64 [examples, groups]: ``ExampleSet.shares``."""
    inside = of[:, None] == np.arange(groups)
    return np.asarray(inside * (len(of) / np.maximum(1, inside.sum(axis=0))))


def _maker(group: Sequence[Path], names: Sequence[str]) -> Callable[[int], RoutingPolicy]:
    def make(at: int) -> RoutingPolicy:
        which, combination = divmod(at, len(group[0].means))
        path = group[which]
        return path.cascade(combination, names) if len(path.versions) > 1 else OSFA(names[path.versions[0]])

    return make


def _picked(make: Callable[[int], RoutingPolicy], indices: np.ndarray) -> Callable[[int], RoutingPolicy]:
    return lambda at: make(int(indices[at]))


def _front(margin: np.ndarray, price: np.ndarray) -> np.ndarray:
    """Return indices, largest margin first, of those cheaper than all with a larger margin."""
    order = np.lexsort((price, -margin))
    least = np.minimum.accumulate(price[order])
    return np.asarray(order[np.append(True, least[1:] < least[:-1])])
