"""The subnets to offer: the Pareto front of (cost, accuracy) as regressions see it (superserve, §4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.elastic.supernets.space import Space, Subnet
from slotool.errors import InputError

# A space up to this size is looked at whole; of a larger one so many random subnets and their neighbours.
MAX_ENUMERATED = 20_000
DRAWN = 4_000
ROUNDS = 6
Cost = Callable[[Subnet], float]


class SubnetRegression:
    """A number per subnet, learnt from some: ridge regression on each dimension's choice and on pairs of dimensions.

    ``log``: learn its logarithm, for costs. The strength of the penalty is chosen by leave-one-out error.
    Raises ``InputError`` when there are fewer than three subnets, or a number that is not finite (or, with ``log``,
    not positive).
    """

    def __init__(self, space: Space, known: Mapping[Subnet, float], *, log: bool = False):
        from sklearn.linear_model import RidgeCV
        from sklearn.preprocessing import StandardScaler

        values = np.array(list(known.values()), dtype=np.float64)
        if len(values) < 3 or not np.isfinite(values).all() or (log and (values <= 0).any()):
            raise InputError(
                f"{len(values)} subnets with finite{' positive' if log else ''} values are too few to learn from"
            )
        self._space, self._log = space, log
        self._scaler = StandardScaler()
        features = self._scaler.fit_transform(_features(space, list(known)))
        self._model = RidgeCV(alphas=np.logspace(-3, 3, 13)).fit(features, np.log(values) if log else values)

    def predict(self, subnets: Sequence[Subnet]) -> np.ndarray:
        """float64 [n]."""
        predicted = self._model.predict(self._scaler.transform(_features(self._space, subnets)))
        values: np.ndarray = np.exp(predicted) if self._log else predicted
        return values


@dataclass(frozen=True)
class SearchResult:
    """A subnet of the front: ``cost`` and ``accuracy`` as predicted."""

    subnet: Subnet
    cost: float
    accuracy: float


def evenly(space: Space, n: int, *, seed: int = 0, cost: Cost | None = None) -> list[Subnet]:
    """``n`` different subnets (or all there are) from the smallest to the largest, even steps of log ``cost`` apart.

    ``cost``: by default FLOPs. What an accuracy regression should be learnt from.
    """
    cost = cost or space.flops
    rng = np.random.default_rng(seed)
    pool = list(dict.fromkeys([space.smallest, space.largest, *_some(space, rng, 40 * n)]))
    costs = np.log([cost(subnet) for subnet in pool])
    chosen: dict[Subnet, None] = {}
    for target in np.linspace(costs.min(), costs.max(), n):
        order = np.argsort(np.abs(costs - target), kind="stable")
        chosen[next((pool[i] for i in order if pool[i] not in chosen), pool[order[0]])] = None
    return list(chosen)


def pareto(found: Iterable[SearchResult]) -> list[SearchResult]:
    """Those that no other beats in both, cheapest first."""
    front: list[SearchResult] = []
    for each in sorted(found, key=lambda f: (f.cost, -f.accuracy)):
        if not front or each.accuracy > front[-1].accuracy:
            front.append(each)
    return front


def search(
    space: Space, accuracy: SubnetRegression, costs: Callable[[Sequence[Subnet]], np.ndarray], n: int, *, seed: int = 0
) -> list[SearchResult]:
    """About ``n`` subnets of the Pareto front, even steps of log cost apart, the smallest and the largest among them.

    ``costs``: cost per subnet, all > 0, for instance predicted seconds. A large space is searched by drawing, then by
    changing one dimension of each subnet on the front, until that finds nothing better (at most ``ROUNDS`` times).
    """
    rng = np.random.default_rng(seed)
    pool = {space.smallest, space.largest, *_some(space, rng, DRAWN)}
    front = _front(pool, accuracy, costs)
    if space.size > MAX_ENUMERATED:
        for _ in range(ROUNDS):
            fresh = {near for each in front for near in _neighbours(space, each.subnet)} - pool
            pool |= fresh
            better = _front([*fresh, *(each.subnet for each in front)], accuracy, costs) if fresh else front
            if [each.subnet for each in better] == [each.subnet for each in front]:
                break
            front = better
    ends = _front_of([space.smallest, space.largest], accuracy, costs)
    return _thinned([*ends, *front], n)


def _front(
    subnets: Iterable[Subnet], accuracy: SubnetRegression, costs: Callable[[Sequence[Subnet]], np.ndarray]
) -> list[SearchResult]:
    return pareto(_front_of(sorted(subnets), accuracy, costs))


def _front_of(
    subnets: Sequence[Subnet], accuracy: SubnetRegression, costs: Callable[[Sequence[Subnet]], np.ndarray]
) -> list[SearchResult]:
    predicted = zip(subnets, costs(subnets), accuracy.predict(subnets), strict=True)
    return [SearchResult(subnet, float(cost), float(right)) for subnet, cost, right in predicted]


def _thinned(found: Sequence[SearchResult], n: int) -> list[SearchResult]:
    """The first two of ``found`` are the ends and stay; of the rest those nearest to even steps between."""
    ends, front = list(found[:2]), list(found[2:])
    logs = np.log([each.cost for each in front])
    low, high = sorted(np.log(each.cost) for each in ends)
    chosen = {each.subnet: each for each in ends}
    for target in np.linspace(low, high, max(n, 2))[1:-1]:
        for i in np.argsort(np.abs(logs - target), kind="stable")[:1]:
            chosen.setdefault(front[i].subnet, front[i])
    return sorted(chosen.values(), key=lambda each: each.cost)


def _some(space: Space, rng: np.random.Generator, n: int) -> list[Subnet]:
    if space.size <= MAX_ENUMERATED:
        return list(space.all())
    return [space.draw(rng) for _ in range(n)]


def _neighbours(space: Space, subnet: Subnet) -> list[Subnet]:
    return [
        (*subnet[:i], choice, *subnet[i + 1 :])
        for i, dimension in enumerate(space.dimensions)
        for choice in dimension.choices
        if choice != subnet[i]
    ]


def _features(space: Space, subnets: Sequence[Subnet]) -> np.ndarray:
    """Each dimension from 0 to 1, its square, its logarithm, and products of pairs."""
    values = np.array(subnets, dtype=np.float64)
    shares = values / np.array([dimension.choices[-1] for dimension in space.dimensions])
    first, second = np.triu_indices(shares.shape[1], k=1)
    return np.hstack([shares, shares**2, np.log(shares), shares[:, first] * shares[:, second]])
