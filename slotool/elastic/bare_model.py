"""A user's model as its file has it: its own tensors of any datatype, without task, labels or data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from slotool import devices
from slotool.data.columns import Columns, Inputs
from slotool.data.options import DataOptions
from slotool.elastic.model import UNLIMITED, ElasticModel
from slotool.errors import InputError
from slotool.models import Classification, Model, Signature
from slotool.models.signature import FREE, TensorSpec
from slotool.models.tasks import class_numbers, make_task
from slotool.tables import FULL, OperatingPoint

# Sizes that open dimensions of a trial input are given, until the model takes one: of text, images, and sound.
OPEN_SIZES = (8, 64, 224, 512)
# Values of an example, beyond which none is tried: each open dimension multiplies them.
MAX_TRIAL_VALUES = 2**26
# Largest difference between answers of a call of two examples and of a call of one, as a share of the largest value:
# kernels of other sizes round otherwise, and dynamic quantization more so.
MAX_DIFFERENCE = 0.02


class BareModel(ElasticModel):
    """A model of any library with its own tensors, at one operating point; a classifier where it names classes.

    Requests share calls where the first dimension of every tensor counts examples (``counts_examples``). Any other
    model computes one request a call: each of its tensors then gets a first dimension of size 1.
    """

    points = (FULL,)
    states_answers = False

    def __init__(self, model: Model, max_batch: int | None = None):
        """Make it of a loaded model.

        Args:
            model: Model as its adapter returns it.
            max_batch: Maximum number of examples in a call; 0: one request a call; None: as ``counts_examples``.

        Raises:
            InputError: A first dimension cannot count the examples of a batch.
        """
        self.model, self.name, self.device = model, model.name, model.device
        self.task: Classification | None = None
        if max_batch is None:
            max_batch = UNLIMITED if counts_examples(model) else 0
        elif max_batch and (fixed := model.signature.fixed) is not None:
            raise InputError(f"{fixed.name} is {fixed}: for batches, its first dimension must be free")
        self.max_batch = max_batch
        self.signature = model.signature if max_batch else _one_example(model.signature)
        shapes = [spec.shape[1:] for spec in self.signature.inputs]
        self.input_shape = shapes[0] if len(shapes) == 1 else ()
        self.labels, self.classes = model.class_names, len(model.class_names)
        self.checks_inputs, self.names_inputs = model.checks_inputs, model.names_inputs
        if model.class_names and max_batch:
            with suppress(InputError):  # it is not clear which output holds the classes
                task = make_task(model.signature)
                assert isinstance(task, Classification)
                self.task = task
        if model.class_names or model.feature_names:
            self.data_options = DataOptions(
                tensors=model.signature.inputs, classes=model.class_names, features=model.feature_names
            )

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        placed = self.model.on(device, precision)
        return self if placed is self.model else BareModel(placed, self.max_batch)

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        return x.arrays if isinstance(x, Columns) else {self.signature.inputs[0].name: x}

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self.model.check_inputs(self._of_file(inputs))

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        return self.answers(self.respond(x, point))

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        self.require(point)
        if not self.max_batch:
            return {name: array[None] for name, array in self.model.run(self._of_file(inputs)).items()}
        examples = len(next(iter(inputs.values())))
        if examples <= self.max_batch:
            return self.model.run(inputs)
        calls = [slice(start, start + self.max_batch) for start in range(0, examples, self.max_batch)]
        parts = [self.model.run({name: array[rows] for name, array in inputs.items()}) for rows in calls]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of the classes if these have names, else the first output, as there is no task."""
        if self.task is None:
            return outputs[self.signature.outputs[0].name]
        answers = self.task.answers(outputs)
        return class_numbers(answers, self.labels) if self.task.scores == "labels" else answers.astype(np.int64)

    def _of_file(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the arrays with the dimensions that the model's file has."""
        return inputs if self.max_batch else {name: array[0, ...] for name, array in inputs.items()}


def counts_examples(model: Model) -> bool:
    """True if every first dimension is free and the model answers two random examples together as one by one.

    False if it fails on them, or they would be too large.
    """
    if not model.signature.batched:
        return False
    for size in OPEN_SIZES:
        if any(math.prod(trial_shape(spec, size)) > MAX_TRIAL_VALUES for spec in model.signature.inputs):
            return False
        random = np.random.default_rng(0)
        examples = [
            {spec.name: _random(spec, size, number, random) for spec in model.signature.inputs} for number in range(2)
        ]
        try:
            together = model({name: np.concatenate([one[name] for one in examples]) for name in examples[0]})
            separate = [model(example) for example in examples]
        except Exception:  # of the model's library: it may not take this size
            continue
        return all(_agree(array, [one[name] for one in separate]) for name, array in together.items())
    return False


def trial_shape(spec: TensorSpec, open_size: int) -> list[int]:
    """Return the shape of one example whose open dimensions have this size."""
    return [1, *(open_size if size == FREE else size for size in spec.shape[1:])]


def _random(spec: TensorSpec, open_size: int, number: int, random: np.random.Generator) -> np.ndarray:
    """Return one example of an input. Whole numbers are ``number``: each may be an index, of which there are few."""
    shape = trial_shape(spec, open_size)
    if spec.datatype == "BYTES":
        return np.full(shape, str(number).encode(), spec.dtype)
    values = random.random(shape) if spec.dtype.kind == "f" else np.full(shape, number)
    return values.astype(spec.dtype)


def _agree(together: np.ndarray, separate: list[np.ndarray]) -> bool:
    if any(len(array) != 1 or array.shape[1:] != together.shape[1:] for array in separate) or len(together) != 2:
        return False
    expected = np.concatenate(separate)
    if expected.dtype.kind != "f":
        return bool(np.array_equal(together, expected))
    finite = np.abs(expected[np.isfinite(expected)], dtype=np.float64)
    bound = MAX_DIFFERENCE * float(finite.max(initial=0.0))
    return bool(np.allclose(together, expected, rtol=0.0, atol=bound, equal_nan=True))


def _one_example(signature: Signature) -> Signature:
    """Return the signature of a call that is one example: a first dimension before those of the file."""
    sides = (
        tuple(replace(spec, shape=(FREE, *spec.shape)) for spec in side)
        for side in (signature.inputs, signature.outputs)
    )
    return Signature(*sides)
