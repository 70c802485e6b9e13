"""Whose fault a failed call is: an input's, where the version still answers one that is known to be good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.serving.ensemble import ensemble_plan, warm_up_example
from slotool.serving.outputs import Computed
from slotool.tables import OperatingPoint

# A version is asked at most once in so long, however many requests it fails on meanwhile.
VALID_US = 1e6

Ask = Callable[[OperatingPoint, Inputs], Awaitable[Computed]]


class FaultCheck:
    """Has the versions behind a point answer the example that the model was warmed with, after they failed on another
    input; of one model. ``now_us``: the router's clock."""

    def __init__(self, now_us: Callable[[], float]):
        self._now_us = now_us
        self._asked: dict[OperatingPoint, tuple[float, asyncio.Task[bool]]] = {}

    async def is_of_input(self, model: ElasticModel, point: OperatingPoint, ask: Ask) -> bool:
        """Whether ``model`` still answers a good input at ``point``; ``ask`` has it do so. False where versions behind
        other servers alone answer there. What was found holds for a second."""
        asked_us, task = self._asked.get(point, (0.0, None))
        if task is None or (task.done() and self._now_us() - asked_us > VALID_US):
            task = asyncio.get_running_loop().create_task(_answers(model, point, ask))
            self._asked[point] = self._now_us(), task
        return await asyncio.shield(task)


async def _answers(model: ElasticModel, point: OperatingPoint, ask: Ask) -> bool:
    plan, example = ensemble_plan(model, point), warm_up_example(model)
    # The second version of an ensemble by itself too: a confident first one would never consult it.
    local = [each for each in plan.points if each not in model.remote_points]
    points = [point, *local[1:]] if len(local) == len(plan.points) else local
    try:
        for each in points:
            await ask(each, example)
    except Exception:
        return False
    return bool(points)


def shapes_of(x: Inputs) -> str:
    """The inputs of a request with their shapes, for a sentence; empty of a model without names of its own."""
    if not isinstance(x, Columns):
        return ""
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in x.arrays.items())
    return listed if len(listed) <= 120 else f"{listed[:120]}…"
