"""Chain of models that answers as one: outputs of a step are inputs of the steps after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from slotool import devices
from slotool.data.columns import Columns, Inputs
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.models import Signature
from slotool.models.signature import TensorSpec
from slotool.tables import OperatingPoint


class Pipeline(ElasticModel):
    """Steps computed one after the other in one call, at the operating points of the last one; the others in full.

    An input of a step is the latest output of that name. The only input of a step is the only output of the step before
    whatever they are called. Every other input is the request's. Outputs and their meaning are those of the last step.
    """

    def __init__(self, name: str, steps: Sequence[ElasticModel]):
        """Connect the steps.

        Raises:
            InputError: A step computes one request a call, is behind another server, takes nothing of the steps before
                it, or takes a tensor of another datatype or shape than the one of its name.
        """
        self.name, self._steps = name, tuple(steps)
        last = self._steps[-1]
        self.points, self.task, self.labels, self.classes = last.points, last.task, last.labels, last.classes
        self.states_answers, self.device, self.precision = last.states_answers, last.device, last.precision
        self.max_batch = min(step.max_batch for step in self._steps)
        self.compiles = any(step.compiles for step in self._steps)
        self.checks_inputs, self.names_inputs = self._steps[0].checks_inputs, self._steps[0].names_inputs
        requested: dict[str, TensorSpec] = {}
        # By step, the tensor of the request or of a step before that each input is.
        self._sources: list[dict[str, str]] = []
        produced: dict[str, TensorSpec] = {}
        for number, step in enumerate(self._steps):
            if not step.max_batch or step.remote_points:
                why = "is behind another server" if step.remote_points else "computes one request a call"
                raise InputError(f"{name}: step {step.name} {why}, so it is no step of a pipeline")
            sources = self._connected(number, produced)
            for spec in step.signature.inputs:
                if spec.name not in sources:
                    sources[spec.name] = requested.setdefault(spec.name, spec).name
            self._sources.append(sources)
            produced |= {spec.name: spec for spec in step.signature.outputs}
        self.signature = Signature(tuple(requested.values()), last.signature.outputs)
        self.input_shape = next(iter(requested.values())).shape[1:] if len(requested) == 1 else ()
        of_first = {spec.name for spec in self._steps[0].signature.inputs}
        self.examples = self._steps[0].examples if requested.keys() == of_first else None

    def _connected(self, number: int, produced: Mapping[str, TensorSpec]) -> dict[str, str]:
        """Return the output of an earlier step by each input of the step that is one."""
        step = self._steps[number]
        inputs = step.signature.inputs
        sources = {spec.name: spec.name for spec in inputs if spec.name in produced}
        if number and not sources:
            before = self._steps[number - 1].signature.outputs
            if len(inputs) != 1 or len(before) != 1:
                names, available = (", ".join(spec.name for spec in specs) for specs in (inputs, produced.values()))
                raise InputError(
                    f"{self.name}: step {step.name} takes {names}, none of which the steps before make: {available}"
                )
            sources = {inputs[0].name: before[0].name}
        for spec in inputs:
            source = produced.get(sources.get(spec.name, ""))
            if source is not None and not spec.takes(source):
                raise InputError(
                    f"{self.name}: step {step.name} takes {spec.name} as {spec}, but {source.name} is made as {source}"
                )
        return sources

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        if (device, precision) == (self.device, self.precision):
            return self
        return Pipeline(self.name, [step.on(device, precision) for step in self._steps])

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        return x.arrays if isinstance(x, Columns) else {self.signature.inputs[0].name: x}

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        first = self._steps[0]
        first.check_inputs({spec.name: inputs[spec.name] for spec in first.signature.inputs})

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        return self.answers(self.respond(x, point))

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        self.require(point)
        values, outputs = dict(inputs), dict[str, np.ndarray]()
        for step, sources in zip(self._steps, self._sources, strict=True):
            step_inputs = {spec.name: spec.conform(values[sources[spec.name]]) for spec in step.signature.inputs}
            outputs = step.run(step_inputs, point if step is self._steps[-1] else step.full)
            values |= outputs
        return outputs

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._steps[-1].answers(outputs)

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        return self._steps[-1].errors(outputs, truth)

    def confidences_of(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        return self._steps[-1].confidences_of(outputs)

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        for step in self._steps:
            step.set_cancellation_check(check)
