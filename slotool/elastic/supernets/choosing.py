"""Which subnets a trained supernet offers: some are scored, a regression tells of the rest, the chosen are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.supernets.plan import Planner
from slotool.elastic.supernets.search import SubnetRegression, evenly, search
from slotool.elastic.supernets.space import Space, Subnet
from slotool.elastic.supernets.statistics import SubnetNorm
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.elastic.training import accuracy
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
    """The trained ``module`` with about ``points`` subnets of the Pareto front of ``costs`` and accuracy.

    ``costs``: float64 [n], the cost of each subnet, above 0, such as predicted seconds; None: FLOPs. Subnets are chosen
    by validation data alone; both accuracies in ``scores`` are of the chosen ones. ``progress`` is called per subnet
    scored. ``statistics``: batch statistics that are known, of which others are measured; new for each subnet.
    """
    costs = costs or partial(_flops, space)
    known = score(space, module, data.train.x, data.validation, evenly(space, SCORED, seed=seed), progress, statistics)
    found = search(space, SubnetRegression(space, known), costs, points, seed=seed)
    subnets = [each.subnet for each in found]
    validation = known | score(
        space, module, data.train.x, data.validation, [s for s in subnets if s not in known], progress, statistics
    )
    subnets = _front(subnets, validation, costs)
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
    """Accuracy of each subnet on ``split``, with batch statistics of ``x`` that are not kept; those of ``statistics``
    are not measured."""
    found = {}
    with torch.no_grad():
        for subnet in subnets:
            norm = statistics()
            measure(space, module, norm, [subnet], x)
            found[subnet] = accuracy(Planner(module, norm).plan(space.narrowed(subnet)), split)
            progress()
    return found


def _front(subnets: Sequence[Subnet], accuracy_of: dict[Subnet, float], costs: Costs) -> list[Subnet]:
    """Those that proved to be on the front; the first (cheapest) always is, and the largest stays as the full point."""
    cost = dict(zip(subnets, costs(subnets), strict=True))
    kept: list[Subnet] = []
    for subnet in sorted(subnets, key=lambda s: (cost[s], -accuracy_of[s])):
        if not kept or accuracy_of[subnet] > accuracy_of[kept[-1]] or subnet == subnets[-1]:
            kept.append(subnet)
    return kept


def _flops(space: Space, subnets: Sequence[Subnet]) -> np.ndarray:
    return np.array([space.flops(subnet) for subnet in subnets], dtype=np.float64)
