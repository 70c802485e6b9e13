"""Served model: its policy, and its tensors as the Open Inference Protocol describes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.models.tasks import Classification, MultiLabel, Task
from slotool.rules.policies.points import in_turn
from slotool.scheduling import ControlSpace, Policy
from slotool.serving.rejections import bad_request, shown
from slotool.serving.request_options import misspelt
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.rules.ruleset.rules import RuleSet


# Version of models without a stated one.
VERSION = "1"


@dataclass(frozen=True)
class ServedModel:
    """Model and the policy that chooses its operating points.

    ``rules``: the policy's tolerance tiers, if any. ``path``: its artifact, which worker processes load; ``before``:
    artifacts of a pipeline's earlier steps. ``accuracy``: mean accuracy by point, where known. ``space``: points with
    the table's latencies, before any correction. ``manifest``: the artifact's when it was read, to notice a change.
    ``version``: of several of one model; names of all but the latest end with ``/`` and the version.
    """

    name: str
    model: ElasticModel
    policy: Policy
    rules: RuleSet | None = None
    path: Path | None = None
    accuracy: Mapping[OperatingPoint, float] = field(default_factory=dict)
    space: ControlSpace | None = None
    manifest: bytes = b""
    version: str = VERSION
    before: tuple[Path, ...] = ()

    @property
    def model_name(self) -> str:
        """Name of the model without its version."""
        return self.name.partition("/")[0]

    @cached_property
    def objectives(self) -> frozenset[str]:
        """Objectives that the rules have tiers for."""
        return frozenset(rule.objective for rule in self.rules.rules) if self.rules is not None else frozenset()

    @cached_property
    def expected_accuracy(self) -> Mapping[OperatingPoint, float]:
        """Mean accuracy of the points and of the tiers' ensembles, where known.

        An ensemble's error is the best version's plus the observed degradation of its rule, if that is of the mean
        error.
        """
        accuracies = dict(self.accuracy)
        if self.rules is None or self.rules.tolerance_kind == "quantile":
            return accuracies
        for rule in self.rules.rules:
            best = self.rules.best_error
            more = rule.degradation * (best if self.rules.tolerance_kind == "relative" else 1.0)
            for point in (rule.point, in_turn(rule.point)):
                if point is not None:
                    accuracies.setdefault(point, 1.0 - best - more)
        return accuracies

    def accuracy_for(self, x: Inputs) -> dict[OperatingPoint, float] | None:
        """Return per point the lowest expected accuracy of any example of ``x``; None if the model has none."""
        if not self.model.estimates_each:
            return None
        rows: Any = x
        estimates = [self.model.expected_accuracy(rows[i : i + 1]) for i in range(len(x))]
        expectations = [expected for expected in estimates if expected is not None]
        if len(expectations) < len(estimates):
            return None
        return {point: min(expected.get(point, 0.0) for expected in expectations) for point in expectations[0]}


LABEL, CLASS, CONFIDENCE = "label", "class", "confidence"
_LABEL, _CONFIDENCE = TensorSpec(LABEL, "INT64", (FREE,)), TensorSpec(CONFIDENCE, "FP32", (FREE,))
_CLASS = TensorSpec(CLASS, "BYTES", (FREE,))
# Most class names in a model's metadata.
MAX_CLASSES = 4_096
# Parameter of a model's configuration, left out where many names would make it longer.
READING, MAX_READING_CHARACTERS = "reading", 1 << 20
# Parameter of a model's configuration: the JSON score of classes that were not computed. No computed class has a lower
# one, so that the highest scores stay the highest; raw tensors have minus infinity.
NOT_COMPUTED, NOT_COMPUTED_SCORE = "not_computed", str(np.finfo(np.float32).min)
# Triton's datatype names other than TYPE_ and the protocol's name.
_TRITON_TYPES = {"BYTES": "TYPE_STRING"}


@dataclass(frozen=True)
class Interface:
    """Interface of a served model to its clients.

    ``inputs`` and ``outputs`` are in the model's metadata; a request that names no outputs gets all of these.
    ``on_request``: outputs for requests that name them. ``max_batch``: most examples in a request; 0: a request is one
    example, whose tensors have no batch dimension. ``reading``: how clients read a data set for it
    (``DataOptions.statement``), {} if unknown. ``parameters``: whole numbers that a request may state for the model,
    with their maxima. ``leaves_out``: scores may be missing, as in ``ElasticModel.leaves_out``. ``takes_any_name``: a
    request may give the only input any name.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    on_request: tuple[TensorSpec, ...]
    max_batch: int
    reading: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, int] = field(default_factory=dict)
    leaves_out: bool = False
    takes_any_name: bool = False

    @classmethod
    def of(cls, model: ElasticModel, max_batch: int) -> Interface:
        """Combine the model's signature and its task's outputs.

        Raises ``InputError`` for a signature whose first dimensions do not count examples.
        """
        signature = model.signature
        fixed = signature.fixed
        if fixed is not None:
            raise InputError(
                f"{model.name}: {fixed.name} is {fixed}; to be served, the first dimension of every tensor must be free"
            )
        max_batch = min(max_batch, model.max_batch)
        if not max_batch:
            sides = (tuple(replace(t, shape=t.shape[1:]) for t in s) for s in (signature.inputs, signature.outputs))
            signature = Signature(*sides)
        names = {tensor.name for tensor in signature.outputs}
        further = tuple(tensor for tensor in _outputs_of(model.task) if tensor.name not in names)
        named = (_CLASS,) if model.labels and isinstance(model.task, Classification) and CLASS not in names else ()
        reading = {} if model.data_options is None else model.data_options.statement()
        stated, on_request = (further, named) if model.states_answers else ((), (*further, *named))
        outputs = (*signature.outputs, *stated)
        return cls(
            signature.inputs,
            outputs,
            on_request,
            max_batch,
            reading,
            model.parameters,
            model.leaves_out,
            not model.names_inputs,
        )

    @cached_property
    def input_by_name(self) -> Mapping[str, TensorSpec]:
        return {tensor.name: tensor for tensor in self.inputs}

    def input(self, name: str, inputs: int) -> TensorSpec | None:
        """Return the input that a request of ``inputs`` inputs means by ``name``; None where there is none."""
        if self.takes_any_name and inputs == len(self.inputs) == 1:
            return self.inputs[0]
        return self.input_by_name.get(name)

    @cached_property
    def output_by_name(self) -> Mapping[str, TensorSpec]:
        """Outputs by name, those on request included."""
        return {tensor.name: tensor for tensor in (*self.outputs, *self.on_request)}

    def example_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """Return the shape of one example."""
        return tensor.shape[1:] if self.max_batch else tensor.shape

    @cached_property
    def values_per_example(self) -> int | None:
        """Values of all inputs together; None where sizes are open or texts are of any length."""
        shapes = [self.example_shape(tensor) for tensor in self.inputs]
        if any(tensor.datatype == "BYTES" for tensor in self.inputs) or any(FREE in shape for shape in shapes):
            return None
        return sum(map(math.prod, shapes))

    def difference(self, other: Interface) -> str:
        """Describe the first tensor or parameter in which ``other`` differs; empty where requests are the same."""
        for kind, ours, theirs in (
            ("input", self.inputs, other.inputs),
            ("output", (*self.outputs, *self.on_request), (*other.outputs, *other.on_request)),
        ):
            for our, their in zip_longest(ours, theirs):
                if our != their:
                    stated = [f"{tensor.name} {tensor}" if tensor else "none" for tensor in (their, our)]
                    return f"its {kind} is {stated[0]} where the one in use has {stated[1]}"
        if dict(self.parameters) != dict(other.parameters):
            return "it takes other parameters of requests than the one in use"
        return ""

    def x(self, arrays: dict[str, np.ndarray], parameters: Mapping[str, Any]) -> Columns:
        """Return the model's inputs: ``arrays`` cast to its datatypes, and the request's ``parameters`` for it.

        ``arrays``: one for each input, in the model's order, with equally many examples. Raises ``Rejection`` (400) for
        a number beyond the model's datatype, and for a parameter that is no such number.
        """
        for tensor in self.inputs:
            if arrays[tensor.name].dtype != tensor.dtype:
                try:
                    arrays[tensor.name] = tensor.cast(arrays[tensor.name])
                except InputError as error:
                    raise bad_request(str(error)) from None
        if not self.max_batch:
            return Columns.unchecked({name: array[None] for name, array in arrays.items()})
        if self.parameters and (meant := self._misspelt(parameters)):
            raise bad_request(meant)
        for name, most in self.parameters.items():
            if name in parameters:
                number = whole_number(name, parameters[name], most)
                arrays[name] = np.full(len(arrays[self.inputs[0].name]), number, dtype=np.int32)
        return Columns.unchecked(arrays)

    def _misspelt(self, parameters: Mapping[str, Any]) -> str:
        """Return the sentence for a parameter that resembles one of the model's; else empty."""
        for name in parameters.keys() - self.parameters.keys():
            if meant := misspelt(name.replace("_", "").replace("-", ""), tuple(self.parameters)):
                return f"parameter {shown(name)} is no option: did you mean {meant}?"
        return ""

    def metadata(self, name: str, versions: Sequence[str]) -> dict[str, Any]:
        """Return the V2 model metadata, with class names as a parameter; −1 stands for an open size or the batch."""
        tensors = Signature(self.inputs, self.outputs).document()
        document = {"name": name, "versions": list(versions), "platform": "slotool", **tensors}
        classes = self.reading.get("classes", ())
        return {**document, "parameters": {"classes": classes}} if 0 < len(classes) <= MAX_CLASSES else document

    def config(self, name: str) -> dict[str, Any]:
        """Return Triton's model configuration; its shapes leave the batch out.

        Parameter ``reading`` is JSON: how data sets are read for the model, with the names of classes and features;
        ``not_computed``: the score, in JSON, of classes that were not computed.
        """
        reading = orjson.dumps(self.reading).decode() if self.reading else ""
        parameters = {READING: {"string_value": reading}} if 0 < len(reading) <= MAX_READING_CHARACTERS else {}
        if self.leaves_out:
            parameters[NOT_COMPUTED] = {"string_value": NOT_COMPUTED_SCORE}
        return {
            "name": name,
            "platform": "slotool",
            "backend": "slotool",
            "max_batch_size": self.max_batch,
            "input": [{**self._triton_tensor(tensor), **self._image_format(tensor)} for tensor in self.inputs],
            "output": [self._triton_tensor(tensor) for tensor in self.outputs],
            **({"parameters": parameters} if parameters else {}),
        }

    def _image_format(self, tensor: TensorSpec) -> dict[str, str]:
        """Return the format of possible images: one or three channels before or after height and width."""
        shape = self.example_shape(tensor)
        if len(shape) != 3 or not {shape[0], shape[2]} & {1, 3}:
            return {}
        return {"format": "FORMAT_NCHW" if shape[0] in (1, 3) else "FORMAT_NHWC"}

    def _triton_tensor(self, tensor: TensorSpec) -> dict[str, Any]:
        # Triton has no tensor without dimensions: one of a single number is reshaped.
        shape = list(self.example_shape(tensor))
        dims = {"dims": shape} if shape else {"dims": [1], "reshape": {"shape": []}}
        return {"name": tensor.name, "data_type": triton_type(tensor), **dims}


def triton_type(tensor: TensorSpec) -> str:
    """Return Triton's name of a tensor's datatype."""
    return _TRITON_TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")


def whole_number(name: str, value: Any, most: int) -> int:
    """Check a request's parameter. Raises ``Rejection`` (400) unless it is a whole number from 1 to ``most``."""
    if type(value) is not int or not 1 <= value <= most:
        raise bad_request(f"parameter {name}: {shown(value)}, expected a whole number from 1 to {most}")
    return value


def _outputs_of(task: Task | None) -> Iterator[TensorSpec]:
    """Yield the outputs that a task adds."""
    if isinstance(task, Classification):
        yield _LABEL
    if isinstance(task, Classification | MultiLabel) or (task is not None and task.confidence_output is not None):
        yield _CONFIDENCE
