"""Models of any signature as the tests of this room serve them: one operating point, the outputs as they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slotool.data.columns import Columns
from slotool.elastic import ElasticModel
from slotool.models import Model, Task
from slotool.scheduling import by_demand
from slotool.scheduling.space import ControlSpace
from slotool.serving import ServedModel
from slotool.tables import FULL, OperatingPoint


class Wrapped(ElasticModel):
    """``model`` with its own signature and ``task``. ``given``: what it was asked about, in order."""

    input_shape = ()
    classes = 0
    points = (FULL,)
    states_answers = False

    def __init__(self, model: Model, task: Task):
        self.name, self.model, self.task = model.name, model, task
        self.signature = model.signature
        self.checks_inputs = model.checks_inputs
        self.given: list[Columns] = []

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        raise AssertionError("a model with a signature is asked by run")

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self.model.check_inputs(inputs)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        self.given.append(Columns(inputs))
        return self.model(inputs, point)


def served_as_is(model: Model, task: Task) -> ServedModel:
    wrapped = Wrapped(model, task)
    return ServedModel(model.name, wrapped, by_demand(ControlSpace(wrapped.points)))
