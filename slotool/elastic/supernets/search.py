"""The subnets to offer: the Pareto front of (cost, accuracy) as regressions see it (superserve, §4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.supernets.plan import Planner, SubnetNorm
from slotool.elastic.supernets.space import Space, Subnet
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.elastic.training import accuracy
from slotool.errors import InputError
from slotool.graphs.torch_module import GraphModule

# Subnets whose accuracy is measured for the regression to learn from.
SCORED = 40
Costs = Callable[[Sequence[Subnet]], np.ndarray]


def chosen(
    name: str,
    space: Space,
    module: GraphModule,
    data: Dataset,
    points: int,
    costs: Costs | None = None,
    *,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
    statistics: Callable[[], SubnetNorm] = SubnetNorm,
) -> Supernet:
    """Return the trained ``module`` with about ``points`` subnets of the Pareto front of ``costs`` and accuracy.

    ``costs``: float64 [n], the cost of each subnet, above 0, such as predicted seconds; None: FLOPs. Subnets are chosen
    by validation data alone; both accuracies in ``scores`` are of the chosen ones. ``progress`` is called per subnet
    scored. ``statistics``: batch statistics that are known, of which others are measured; new for each subnet.
    """
    costs = costs or (lambda subnets: np.array([space.flops(subnet) for subnet in subnets], dtype=np.float64))
    sample = score(space, module, data.train.x, data.validation, evenly(space, SCORED, seed=seed), progress, statistics)
    results = search(space, SubnetRegression(space, sample), costs, points, seed=seed)
    subnets = [each.subnet for each in results]
    validation = sample | score(
        space, module, data.train.x, data.validation, [s for s in subnets if s not in sample], progress, statistics
    )
    subnets = _proven_front(subnets, validation, costs)
    norm = statistics()
    measure(space, module, norm, subnets, data.train.x)
    test = score(space, module, data.train.x, data.test, subnets, progress, statistics)
    scores = {s: {"validation_accuracy": validation[s], "test_accuracy": test[s]} for s in subnets}
    return Supernet(name, space, module, norm, subnets, scores)


def score(
    space: Space,
    module: GraphModule,
    x: np.ndarray,
    split: Split,
    subnets: Iterable[Subnet],
    progress: Callable[[], None] = lambda: None,
    statistics: Callable[[], SubnetNorm] = SubnetNorm,
) -> dict[Subnet, float]:
    """Return each subnet's accuracy on ``split``, with temporary batch statistics of ``x`` or those given."""
    results = {}
    with torch.no_grad():
        for subnet in subnets:
            norm = statistics()
            measure(space, module, norm, [subnet], x)
            results[subnet] = accuracy(Planner(module, norm).plan(space.narrowed(subnet)), split)
            progress()
    return results


def _proven_front(subnets: Sequence[Subnet], accuracy_of: dict[Subnet, float], costs: Costs) -> list[Subnet]:
    """Return subnets proven to be on the front, with the cheapest and the largest, the full point."""
    cost = dict(zip(subnets, costs(subnets), strict=True))
    front: list[Subnet] = []
    for subnet in sorted(subnets, key=lambda s: (cost[s], -accuracy_of[s])):
        if not front or accuracy_of[subnet] > accuracy_of[front[-1]] or subnet == subnets[-1]:
            front.append(subnet)
    return front


# A space up to this size is looked at whole; of a larger one so many random subnets and their neighbours.
MAX_ENUMERATED = 20_000
DRAWN = 4_000
ROUNDS = 6


class SubnetRegression:
    """A number per subnet, learnt from some: ridge regression on each dimension's choice and on pairs of dimensions.

    ``log``: learn its logarithm, for costs. The strength of the penalty is chosen by leave-one-out error.
    Raises ``InputError`` when there are fewer than three subnets, or a number that is not finite (or, with ``log``,
    not positive).
    """

    def __init__(self, space: Space, scores: Mapping[Subnet, float], *, log: bool = False):
        from sklearn.linear_model import RidgeCV
        from sklearn.preprocessing import StandardScaler

        values = np.array(list(scores.values()), dtype=np.float64)
        if len(values) < 3 or not np.isfinite(values).all() or (log and (values <= 0).any()):
            raise InputError(
                f"{len(values)} subnets with finite{' positive' if log else ''} values are too few to learn from"
            )
        self._space, self._log = space, log
        self._scaler = StandardScaler()
        features = self._scaler.fit_transform(_features(space, list(scores)))
        self._model = RidgeCV(alphas=np.logspace(-3, 3, 13)).fit(features, np.log(values) if log else values)

    def predict(self, subnets: Sequence[Subnet]) -> np.ndarray:
        """Return float64 [n]."""
        predicted = self._model.predict(self._scaler.transform(_features(self._space, subnets)))
        return np.exp(predicted) if self._log else predicted


@dataclass(frozen=True)
class SearchResult:
    """A subnet of the front: ``cost`` and ``accuracy`` as predicted."""

    subnet: Subnet
    cost: float
    accuracy: float


def evenly(space: Space, n: int, *, seed: int = 0) -> list[Subnet]:
    """Return ``n`` subnets (or all) in even steps of log FLOPs, from which to learn an accuracy regression."""
    rng = np.random.default_rng(seed)
    pool = list(dict.fromkeys([space.smallest, space.largest, *_some(space, rng, 40 * n)]))
    costs = np.log([space.flops(subnet) for subnet in pool])
    chosen: dict[Subnet, None] = {}
    for target in np.linspace(costs.min(), costs.max(), n):
        order = np.argsort(np.abs(costs - target), kind="stable")
        chosen[next((pool[i] for i in order if pool[i] not in chosen), pool[order[0]])] = None
    return list(chosen)


def pareto(results: Iterable[SearchResult]) -> list[SearchResult]:
    """Return the subnets that no other beats in both, cheapest first."""
    front: list[SearchResult] = []
    for each in sorted(results, key=lambda f: (f.cost, -f.accuracy)):
        if not front or each.accuracy > front[-1].accuracy:
            front.append(each)
    return front


def search(space: Space, accuracy: SubnetRegression, costs: Costs, n: int, *, seed: int = 0) -> list[SearchResult]:
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
    ends = _predicted([space.smallest, space.largest], accuracy, costs)
    return _thinned([*ends, *front], n)


def _front(subnets: Iterable[Subnet], accuracy: SubnetRegression, costs: Costs) -> list[SearchResult]:
    return pareto(_predicted(sorted(subnets), accuracy, costs))


def _predicted(subnets: Sequence[Subnet], accuracy: SubnetRegression, costs: Costs) -> list[SearchResult]:
    predicted = zip(subnets, costs(subnets), accuracy.predict(subnets), strict=True)
    return [SearchResult(subnet, float(cost), float(right)) for subnet, cost, right in predicted]


def _thinned(results: Sequence[SearchResult], n: int) -> list[SearchResult]:
    """Return the first two ``results``, which are the ends, and of the rest those nearest to even steps between."""
    ends, front = list(results[:2]), list(results[2:])
    logs = np.log([each.cost for each in front])
    low, high = sorted(np.log(each.cost) for each in ends)
    chosen = {each.subnet: each for each in ends}
    for target in np.linspace(low, high, max(n, 2))[1:-1]:
        near = front[int(np.abs(logs - target).argmin())]
        chosen.setdefault(near.subnet, near)
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
    """Return each dimension from 0 to 1, its square, its logarithm, and products of pairs."""
    values = np.array(subnets, dtype=np.float64)
    shares = values / np.array([dimension.choices[-1] for dimension in space.dimensions])
    first, second = np.triu_indices(shares.shape[1], k=1)
    return np.hstack([shares, shares**2, np.log(shares), shares[:, first] * shares[:, second]])
