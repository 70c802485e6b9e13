"""A family of a user's own models: versions of one service, from any library, run as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from slotool import devices
from slotool.data.columns import Columns, Inputs
from slotool.data.options import DataOptions
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.models import Classification, Model, Signature, Task
from slotool.models.calibration import Calibration, Temperature
from slotool.models.signature import FREE, RowCountError, TensorSpec, require_rows, try_two
from slotool.models.tasks import class_numbers
from slotool.models.wrapped import Renames, unwrapped
from slotool.tables import OperatingPoint

# Whole numbers up to here are exact in float32.
MAX_EXACT = 2**24


@dataclass(frozen=True)
class ModelVersion:
    """One version: ``location`` is a file or a URL, ``sha256`` the file's checksum ("" of a URL). ``declared``: name
    and versions that a remote model's server states. ``stored``: the name of the copy in the artifact, "" where the
    artifact only refers to it. ``inputs``, ``outputs``: what the family calls a tensor, by the model's own name, where
    these differ."""

    name: str
    location: str
    sha256: str = ""
    stored: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    declared: str = ""

    @property
    def renames(self) -> Renames:
        return Renames(self.inputs, self.outputs)


class ModelFamily(ElasticModel):
    """Versions of one service, cheapest first; the last is the most accurate. Points are ``version=<name>``.

    ``signature``, also ``tensors``: of all versions; a size that one of them fixes is fixed. ``labels``: names of the
    classes, none for other tasks. ``examples``: a few inputs, for warm-up and profiling. ``input_shape``: of one
    example of the only input; () where there are several. ``calibrations``: by version, what was learnt of its
    confidence. ``data_options``: how a data set is read for it.
    Raises ``InputError`` naming the version and the tensor when two signatures differ, or when task, labels or examples
    do not fit them.
    """

    task: Task
    examples: Columns
    data_options: DataOptions
    # Clients of a model of their own get its own outputs.
    states_answers = False

    def __init__(
        self,
        name: str,
        versions: Sequence[tuple[ModelVersion, Model]],
        task: Task,
        labels: Sequence[str],
        examples: Inputs,
        *,
        calibrations: Mapping[str, Calibration] | None = None,
        reading: DataOptions | None = None,
    ):
        if not versions:
            raise InputError(f"{name}: a family needs at least one version")
        self.name, self.task, self.labels = name, task, tuple(labels)
        self.classes = len(self.labels)
        self.versions = tuple(version for version, _ in versions)
        self._models = {OperatingPoint.of(version=version.name): model for version, model in versions}
        if len(self._models) < len(versions):
            raise InputError(f"{name}: two versions have the same name")
        self.points = tuple(self._models)
        self.checks_inputs = any(model.checks_inputs for _, model in versions)
        self.remote_points = {
            point: model.timeout_s for point, model in self._models.items() if model.timeout_s is not None
        }
        self.signature = self.tensors = common_signature([(version.name, model) for version, model in versions])
        task.require(self.tensors)
        self.calibrations = dict(calibrations or {})
        self._calibration = {point: self.calibrations.get(str(point.get("version"))) for point in self.points}
        asked = reading or DataOptions()
        self.data_options = replace(asked, tensors=self.tensors.inputs, target=task.target, classes=self.labels)
        self.data_options = with_names(self.data_options, versions)
        self._require_shapes(examples)
        self.examples = Columns(self.inputs(examples))
        self._require_classes()
        shapes = [array.shape[1:] for array in self.examples.arrays.values()]
        self.input_shape = shapes[0] if len(shapes) == 1 else ()

    def identity_of(self, point: OperatingPoint) -> str:
        """Return the checksum of the version's file or what its server declares, and that of its calibration, which
        changes confidences."""
        version = next(own for own in self.versions if own.name == point.get("version"))
        identity, calibration = version.sha256 or version.declared, self._calibration[point]
        if calibration is None or not identity:
            return identity
        text = json.dumps(calibration.document(), sort_keys=True)
        return f"{identity}, calibration {hashlib.sha256(text.encode()).hexdigest()}"

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        """``x`` as arrays by name that the models take: a bare array is the only input, columns go by their names.

        Raises ``InputError`` naming the tensor that is missing or does not fit.
        """
        specs = self.tensors.inputs
        if isinstance(x, np.ndarray):
            if len(specs) > 1:
                names = ", ".join(spec.name for spec in specs)
                raise InputError(f"{self.name} has several inputs ({names}): give columns of these names")
            return self.tensors.conform({specs[0].name: _exact(specs[0], x)})
        given = x.arrays
        if self.tensors.holds(given):
            return dict(given)
        for spec in specs:
            if spec.name not in given:
                raise InputError(f"{self.name}: input {spec.name!r} ({spec}) is missing; there are {', '.join(given)}")
        return self.tensors.conform({spec.name: _with_axis(spec, given[spec.name]) for spec in specs})

    def check_inputs(self, x: Inputs) -> None:
        inputs = self.inputs(x)
        for model in self._models.values():
            if model.checks_inputs:
                model.check_inputs(inputs)

    def respond(self, x: Inputs, point: OperatingPoint) -> dict[str, np.ndarray]:
        """The version's own outputs by name, with the datatypes of ``tensors``. Raises ``RunError`` when the model
        itself fails, also by an output of another number of rows than there are examples, and as
        ``ElasticModel.respond``."""
        self.require(point)
        outputs = self._models[point].run(self.inputs(x))
        require_rows(outputs, len(x))
        return outputs

    def require_counted_examples(self) -> None:
        """Raises ``InputError`` naming a version that answers two examples by another number of rows. Versions behind
        other servers are not asked: each call may cost."""
        for point in self.points:
            if point in self.remote_points:
                continue
            try:
                try_two(partial(self.respond, point=point), self.examples[:1])
            except RowCountError as error:
                raise InputError(f"{point} cannot run: {error}") from error

    def respond_within(self, x: Inputs, point: OperatingPoint, timeout_s: float) -> dict[str, np.ndarray]:
        self.require(point)
        model = self._models[point]
        if model.timeout_s is None:
            return self.respond(x, point)
        outputs = model.run_within(self.inputs(x), min(timeout_s, model.timeout_s))
        require_rows(outputs, len(x))
        return outputs

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        """As ``ElasticModel.forward``, also of columns. Raises ``InputError`` when the task is no classification,
        ``RunError`` when the model itself fails."""
        return self._scores(len(x), self.respond(x, point), point)

    def expected_accuracies(self, x: Any) -> np.ndarray | None:
        """None: versions differ only on average. ``x`` may be columns, which the default cannot count."""
        return None

    def _scores(self, count: int, outputs: Mapping[str, np.ndarray], point: OperatingPoint) -> np.ndarray:
        if not isinstance(self.task, Classification):
            raise InputError(f"{self.name} answers {self.task.name}, which has no scores of classes")
        if self.task.scores == "labels":
            known = self.answers(outputs)[:, None] == np.arange(self.classes)
            return np.where(known, 0.0, -np.inf).astype(np.float32)
        logits = self.task.logits(outputs)
        if logits.shape != (count, self.classes):
            raise InputError(f"{point}: {self.task.output} has shape {list(logits.shape)}, expected one score a class")
        calibration = self._calibration[point]
        if isinstance(calibration, Temperature):
            logits = logits / calibration.temperature
        return logits.astype(np.float32)

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The answer to each example: class numbers int64 [n] of a classification, else as ``Task.answers``.

        An answer that is none of ``labels`` is −1.
        """
        answers = self.task.answers(outputs)
        if not isinstance(self.task, Classification):
            return answers
        return class_numbers(answers, self.labels) if self.task.scores == "labels" else answers.astype(np.int64)

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        """The error of each answer, as ``Task.errors``: float64 [n]. ``truth``: class numbers int [n], or what the
        task compares with."""
        return self.task.errors(self.numbered(outputs), truth)

    def numbered(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """``outputs`` with class numbers where the task's output holds labels."""
        if isinstance(self.task, Classification) and self.task.scores == "labels":
            return {**outputs, self.task.output: self.answers(outputs)}
        return outputs

    def confidences_of(self, outputs: Mapping[str, np.ndarray], point: OperatingPoint) -> np.ndarray | None:
        calibration = self._calibration[point]
        return self.task.confidences(outputs) if calibration is None else calibration.confidences(self.task, outputs)

    def on(self, device: str) -> ElasticModel:
        """With every model there, but those behind other servers. Raises ``InputError`` naming a version that cannot
        be."""
        on = devices.required(device)
        if on == self.device:
            return self
        models = []
        for point, model in self._models.items():
            try:
                models.append((point, model if point in self.remote_points else model.on(on)))
            except InputError as error:
                raise InputError(f"{point}: {error}") from error
        placed = self._with(models, self.calibrations)
        placed.device = on
        return placed

    def with_calibrations(self, calibrations: Mapping[str, Calibration]) -> ModelFamily:
        """The same models with these calibrations, by version."""
        return self._with(list(self._models.items()), calibrations)

    def with_task(self, task: Task) -> ModelFamily:
        """Return a family of the same models whose outputs are read by ``task``."""
        read = self._with(list(self._models.items()), self.calibrations)
        read.task = task
        return read

    def in_order(self, names: Sequence[str]) -> ModelFamily:
        """The same models in the order of ``names``."""
        points = [OperatingPoint.of(version=name) for name in names]
        return self._with([(point, self._models[point]) for point in points], self.calibrations)

    def _with(
        self, models: Sequence[tuple[OperatingPoint, Model]], calibrations: Mapping[str, Calibration]
    ) -> ModelFamily:
        of = {version.name: version for version in self.versions}
        versions = [(of[str(point.get("version"))], model) for point, model in models]
        return ModelFamily(
            self.name,
            versions,
            self.task,
            self.labels,
            self.examples,
            calibrations=calibrations,
            reading=self.data_options,
        )

    @property
    def signatures(self) -> dict[str, Signature]:
        """Each version's own, by name."""
        pairs = zip(self.versions, self._models.values(), strict=True)
        return {version.name: unwrapped(model).signature for version, model in pairs}

    def close(self) -> None:
        """Close every model."""
        for model in self._models.values():
            model.close()

    def _require_shapes(self, examples: Inputs) -> None:
        """Raises ``InputError`` naming an input of another shape than the data set's examples have."""
        specs = self.tensors.inputs
        if isinstance(examples, np.ndarray):
            given = {specs[0].name: examples} if len(specs) == 1 else {}
        else:
            given = examples.arrays
        for spec in specs:
            if spec.name in given and not _fits(spec, _with_axis(spec, given[spec.name])):
                shape = list(given[spec.name].shape[1:])
                raise InputError(f"{self.name}: input {spec.name} is {spec}, the data set has examples of {shape}")

    def _require_classes(self) -> None:
        if not isinstance(self.task, Classification) or self.task.scores == "labels":
            return
        spec = self.tensors.output(self.task.output)
        if len(spec.shape) != 2:
            raise InputError(f"{self.name}: output {spec.name} is {spec}, expected one score a class, [-1, classes]")
        if spec.shape[1] not in (FREE, self.classes):
            raise InputError(f"{self.name}: {spec.name} has {spec.shape[1]} classes, the data set has {self.classes}")


def common_signature(models: Sequence[tuple[str, Model]]) -> Signature:
    """The signature of all these versions. Raises ``InputError`` naming version and tensor where one differs."""
    first_name, first = models[0]
    common = first.signature
    for name, model in models[1:]:
        difference = common.difference(model.signature)
        if difference is not None:
            advice = _advice(name, common, model.signature)
            raise InputError(f"version {name} is none of the same service as {first_name}: its {difference}{advice}")
        common = common.common(model.signature)
    return common


def _advice(name: str, service: Signature, own: Signature) -> str:
    """What to do where tensors differ in name."""
    for ours, theirs in ((service.inputs, own.inputs), (service.outputs, own.outputs)):
        missing = [spec for spec in ours if spec.name not in {each.name for each in theirs}]
        other = [spec for spec in theirs if spec.name not in {each.name for each in ours}]
        for spec, same in product(missing, other):
            if spec.takes(same):
                return f"; where two are the same tensor, rename one, such as {name}:{same.name}={spec.name}"
    return ""


def with_names(options: DataOptions, versions: Sequence[tuple[ModelVersion, Model]]) -> DataOptions:
    """``options`` with the names of features, and for classification of classes, that the versions know.

    Raises ``InputError`` naming a version whose names differ."""
    features = _common([(version.name, model.feature_names) for version, model in versions])
    classes = _common([(version.name, model.class_names) for version, model in versions])
    known = classes if options.target == "class" and not options.classes else options.classes
    return replace(options, features=features, classes=known)


def _common(names: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """The names of the versions that know any, which are the same."""
    known = [(version, own) for version, own in names if own]
    for version, own in known[1:]:
        if own != known[0][1]:
            raise InputError(
                f"version {version} is none of the same service as {known[0][0]}: it names {', '.join(own[:20])}, "
                f"expected {', '.join(known[0][1][:20])}"
            )
    return known[0][1] if known else ()


def _exact(spec: TensorSpec, x: np.ndarray) -> np.ndarray:
    """A float array as the whole numbers that ``spec`` wants, where it holds such and float32 kept them apart."""
    if x.dtype.kind != "f" or spec.dtype.kind not in "iub":
        return x
    if not (np.abs(x) <= MAX_EXACT).all() or not np.array_equal(np.rint(x), x):
        raise InputError(f"input {spec.name} is {spec}: the data set's numbers are not whole, or above {MAX_EXACT:,}")
    whole: np.ndarray = x.astype(np.int64)
    return whole.astype(np.bool_) if spec.dtype.kind == "b" else _narrow(spec, whole)


def _narrow(spec: TensorSpec, whole: np.ndarray) -> np.ndarray:
    limits = np.iinfo(spec.dtype)
    if whole.size and (whole.min() < limits.min or whole.max() > limits.max):
        raise InputError(f"input {spec.name} is {spec}: the data set holds numbers beyond {spec.datatype}")
    return whole.astype(spec.dtype)


def _with_axis(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """A column of single values as [n, 1] where the model wants it so."""
    return array[:, None] if array.ndim == 1 and spec.shape[1:] in ((1,), (FREE,)) else array


def _fits(spec: TensorSpec, array: np.ndarray) -> bool:
    """Whether the array's examples have the shape that ``spec`` asks for."""
    sizes = zip(spec.shape[1:], array.shape[1:], strict=False)
    return array.ndim == len(spec.shape) and all(size in (FREE, got) for size, got in sizes)
