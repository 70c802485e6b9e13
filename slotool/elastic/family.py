"""A family: versions of one service, networks of slotool's own or a user's models of any library, run as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from slotool import devices
from slotool.artifacts import create_artifact
from slotool.data.columns import Columns, Inputs
from slotool.data.options import DataOptions
from slotool.elastic.model import LOGITS, ElasticModel
from slotool.elastic.versions import ModelVersion, common_signature, refuse_in_memory, with_names
from slotool.errors import InputError
from slotool.models import Classification, Model, Signature, Task
from slotool.models.inference_messages import to_bytes
from slotool.models.loading import is_code
from slotool.models.model import unwrapped, with_datatypes
from slotool.models.signature import FREE, RowCountError, TensorSpec, require_rows, try_two
from slotool.models.tasks import class_numbers
from slotool.tables import FULL, OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.network import Network

# Kinds of artifacts: of a user's models; of a lone network, or several.
KIND, NETWORK_KINDS = "model-family", ("network", "family")
VERSIONS_FILE, EXAMPLES_FILE, WEIGHTS_FILE = "versions.json", "examples.safetensors", "weights.safetensors"
# Whole numbers up to here are exact in float32.
MAX_EXACT = 2**24


class Family(ElasticModel):
    """Versions of one service, cheapest first; the last is the most accurate. Points are ``version=<name>``.

    ``signature``: of all versions; a size that one of them fixes is fixed. ``labels``: names of the classes, none for
    other tasks. ``examples``: a few inputs, for warm-up and profiling. ``input_shape``: of one example of the only
    input; () where there are several. ``data_options``: how a data set is read for it. ``networks``: the versions,
    where they are slotool's own; a lone one has the point ``full``.
    Raises ``InputError`` naming the version and the tensor when two signatures differ, or when task, labels or examples
    do not fit them.
    """

    task: Task

    def __init__(
        self,
        name: str,
        versions: Sequence[tuple[ModelVersion, Model]],
        task: Task,
        labels: Sequence[str],
        examples: Inputs | None,
        *,
        reading: DataOptions | None = None,
        are_networks: bool = False,
    ):
        if not versions:
            raise InputError(f"{name}: a family needs at least one version")
        self.signature = common_signature([(version.name, model) for version, model in versions])
        versions = [(version, with_datatypes(model, self.signature)) for version, model in versions]
        self.name, self.task, self.labels = name, task, tuple(labels)
        self.names_classes = getattr(task, "scores", "") == "labels" or any(model.class_names for _, model in versions)
        self.versions = tuple(version for version, _ in versions)
        # Clients of a user's models get these models' outputs alone.
        self.states_answers = self._are_networks = are_networks
        is_lone = are_networks and len(versions) == 1
        self._models = {
            FULL if is_lone else OperatingPoint.of(version=version.name): model for version, model in versions
        }
        if len(self._models) < len(versions):
            raise InputError(f"{name}: two versions have the same name")
        self.points = tuple(self._models)
        # Networks have one input shape, and take any finite numbers of it.
        checking = [model for _, model in versions if model.checks_inputs]
        self._checking = checking[:1] if are_networks else checking
        self.checks_inputs = bool(checking)
        self.remote_points = {
            point: model.timeout_s for point, model in self._models.items() if model.timeout_s is not None
        }
        task.require(self.signature)
        # Networks have no labels: their classes are those that they score.
        self.classes = self.signature.output(task.output).shape[-1] if are_networks else len(self.labels)
        self._require_classes()
        if examples is None:
            self.data_options = reading
            self.input_shape = self.signature.inputs[0].shape[1:]
            return
        options = replace(
            reading or DataOptions(), tensors=self.signature.inputs, target=task.target, classes=self.labels
        )
        self.data_options = with_names(options, versions)
        self._require_shapes(examples)
        self.examples = Columns(self.inputs(examples))
        shapes = [array.shape[1:] for array in self.examples.arrays.values()]
        self.input_shape = shapes[0] if len(shapes) == 1 else ()

    @classmethod
    def of(cls, name: str, networks: Sequence[Network]) -> Family:
        """Return a family of networks of slotool's own, that of the fewest FLOPs first.

        Raises ``InputError`` when they do not share input and output shapes.
        """
        ordered = sorted(networks, key=lambda network: network.graph.flops)
        versions = [(ModelVersion(network.name, ""), network) for network in ordered]
        family = cls(name, versions, Classification(LOGITS), (), None, are_networks=True)
        family.sparse = ordered[0].sparse
        return family

    @property
    def networks(self) -> tuple[Network, ...]:
        """Versions that are networks of slotool's own; empty for a user's models."""
        return tuple(cast("Network", model) for model in self._models.values()) if self._are_networks else ()

    def identity_of(self, point: OperatingPoint) -> str:
        """Return the checksum of the version's file, or its server's declaration."""
        if self._are_networks:
            return self.identity
        version = next(candidate for candidate in self.versions if candidate.name == point.get("version"))
        return version.sha256 or version.declared

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        """Return ``x`` as arrays by input name: a bare array is the only input, columns go by their names.

        Raises ``InputError`` naming the tensor that is missing or does not fit.
        """
        specs = self.signature.inputs
        if isinstance(x, np.ndarray):
            if len(specs) == 1 and specs[0].holds(x):
                return {specs[0].name: x}
            if len(specs) > 1:
                names = ", ".join(spec.name for spec in specs)
                raise InputError(f"{self.name} has several inputs ({names}): give columns of these names")
            return self.signature.conform({specs[0].name: _exact(specs[0], x)})
        arrays = x.arrays
        if self.signature.holds(arrays):
            return dict(arrays)
        for spec in specs:
            if spec.name not in arrays:
                raise InputError(f"{self.name}: input {spec.name!r} ({spec}) is missing; there are {', '.join(arrays)}")
        return self.signature.conform({spec.name: _with_axis(spec, arrays[spec.name]) for spec in specs})

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        for model in self._checking:
            model.check_inputs(inputs)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        """Return the version's own outputs by name, with the datatypes of ``signature``.

        Raises ``RunError`` if the model itself fails, and as ``ElasticModel.run``.
        """
        self.require(point)
        return self._models[point].run(inputs)

    def require_counted_examples(self) -> None:
        """Raise ``InputError`` naming a version that answers two examples by another number of rows.

        Versions behind other servers are not called, as each call may cost.
        """
        for point in self.points:
            if point in self.remote_points:
                continue
            assert self.examples is not None
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
        """Return ``ElasticModel.forward``, also of columns, and for sparse networks of CSR, which stays sparse.

        Raises ``InputError`` if the task is no classification, ``RunError`` if the model itself fails.
        """
        if self._are_networks and not isinstance(x, Columns):
            self.require(point)
            return cast("Network", self._models[point]).forward(x)
        return self._scores(len(x), self.respond(x, point), point)

    def expected_accuracies(self, x: Any) -> np.ndarray | None:
        """None: versions differ only on average. ``x`` may be columns, which the default cannot count."""
        return None

    def _scores(self, count: int, outputs: Mapping[str, np.ndarray], point: OperatingPoint) -> np.ndarray:
        if not isinstance(self.task, Classification):
            raise InputError(f"{self.name} answers {self.task.name}, which has no scores of classes")
        if self.task.scores == "labels":
            is_answer = self.answers(outputs)[:, None] == np.arange(self.classes)
            return np.where(is_answer, 0.0, -np.inf).astype(np.float32)
        logits = self.task.logits(outputs)
        if logits.shape != (count, self.classes):
            raise InputError(f"{point}: {self.task.output} has shape {list(logits.shape)}, expected one score a class")
        return logits.astype(np.float32)

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the answer to each example: class numbers int64 [n] of a classification, else as ``Task.answers``.

        An answer that is none of ``labels`` is −1.
        """
        answers = self.task.answers(outputs)
        if not isinstance(self.task, Classification):
            return answers
        return class_numbers(answers, self.labels) if self.task.scores == "labels" else answers.astype(np.int64)

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        """Return the error of each answer, as ``Task.errors``, float64 [n].

        ``truth``: class numbers int [n], or the task's own form.
        """
        return self.task.errors(self.numbered(outputs), truth)

    def numbered(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return ``outputs`` with class numbers where the task's output holds labels."""
        if isinstance(self.task, Classification) and self.task.scores == "labels":
            return {**outputs, self.task.output: self.answers(outputs)}
        return outputs

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        for network in self.networks:
            network.set_cancellation_check(check)

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        """Return the family with all models but remote ones on ``device``.

        Raises ``InputError`` naming a version that cannot be there.
        """
        on = devices.required(device)
        if (on, precision) == (self.device, self.precision):
            return self
        models = []
        for point, model in self._models.items():
            try:
                models.append((point, model if point in self.remote_points else model.on(on, precision)))
            except InputError as error:
                raise InputError(f"{point}: {error}") from error
        placed = self._with(models)
        placed.device, placed.precision = on, precision
        return placed

    def with_task(self, task: Task) -> Family:
        """Return a family of the same models whose outputs are read by ``task``."""
        read = self._with(list(self._models.items()))
        read.task = task
        return read

    def in_order(self, names: Sequence[str]) -> Family:
        """Return the same models in the order of ``names``."""
        points = [OperatingPoint.of(version=name) for name in names]
        return self._with([(point, self._models[point]) for point in points])

    def _with(self, models: Sequence[tuple[OperatingPoint, Model]]) -> Family:
        of = dict(zip(self.points, self.versions, strict=True))
        versions = [(of[point], model) for point, model in models]
        family = Family(
            self.name,
            versions,
            self.task,
            self.labels,
            self.examples,
            reading=self.data_options,
            are_networks=self._are_networks,
        )
        family.sparse = self.sparse
        return family

    @property
    def signatures(self) -> dict[str, Signature]:
        """Signatures of the versions, by name."""
        pairs = zip(self.versions, self._models.values(), strict=True)
        return {version.name: unwrapped(model).signature for version, model in pairs}

    def save(
        self, path: str | Path, *, config: Mapping[str, Any], seed: int, copy: bool = False, force: bool = False
    ) -> None:
        """Write the artifact: of networks their weights, of a user's models references to their files.

        ``copy``: with these files, so that the artifact can be moved.
        """
        if self._are_networks:
            self._save_networks(path, config=config, seed=seed, force=force)
            return
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as bundle:
            versions = []
            for version in self.versions:
                refuse_in_memory(version.name, version.location)
                if copy and is_code(version.location):
                    raise InputError(
                        f"version {version.name} is code, {version.location}, of which no copy can be kept"
                    )
                stored = f"{version.name}{Path(version.location).suffix}" if copy and version.sha256 else ""
                if stored:
                    bundle.copy_file(stored, Path(version.location))
                versions.append(vars(replace(version, stored=stored)))
            assert self.examples is not None
            assert self.data_options is not None
            arrays = self.examples.arrays
            document = {
                "versions": versions,
                "task": self.task.document(),
                "labels": list(self.labels),
                "examples": {name: list(array.shape) for name, array in arrays.items()},
                "reading": self.data_options.document(),
                "signatures": {name: signature.document() for name, signature in self.signatures.items()},
            }
            bundle.write_json(VERSIONS_FILE, document)
            raw = {
                spec.name: np.frombuffer(to_bytes(spec, arrays[spec.name]), np.uint8) for spec in self.signature.inputs
            }
            bundle.write_tensors(EXAMPLES_FILE, raw)

    def _save_networks(self, path: str | Path, *, config: Mapping[str, Any], seed: int, force: bool) -> None:
        networks = self.networks
        with create_artifact(path, NETWORK_KINDS[len(networks) > 1], config=config, seed=seed, force=force) as bundle:
            bundle.write_json(VERSIONS_FILE, [_network_document(network) for network in networks])
            bundle.write_tensors(
                WEIGHTS_FILE,
                {
                    f"{network.name}/{name}": tensor.numpy()
                    for network in networks
                    for name, tensor in network.module.state_dict().items()
                },
            )

    def close(self) -> None:
        """Close every model."""
        for model in self._models.values():
            model.close()

    def _require_shapes(self, examples: Inputs) -> None:
        """Raise ``InputError`` naming an input of another shape than the data set's examples have."""
        specs = self.signature.inputs
        if isinstance(examples, np.ndarray):
            arrays = {specs[0].name: examples} if len(specs) == 1 else {}
        else:
            arrays = examples.arrays
        for spec in specs:
            if spec.name in arrays and not _fits(spec, _with_axis(spec, arrays[spec.name])):
                shape = list(arrays[spec.name].shape[1:])
                raise InputError(f"{self.name}: input {spec.name} is {spec}, the data set has examples of {shape}")

    def _require_classes(self) -> None:
        if not isinstance(self.task, Classification) or self.task.scores == "labels":
            return
        spec = self.signature.output(self.task.output)
        if len(spec.shape) != 2:
            raise InputError(f"{self.name}: output {spec.name} is {spec}, expected one score a class, [-1, classes]")
        if spec.shape[1] not in (FREE, self.classes):
            raise InputError(f"{self.name}: {spec.name} has {spec.shape[1]} classes, the data set has {self.classes}")


def _exact(spec: TensorSpec, x: np.ndarray) -> np.ndarray:
    """Return a float array as the integers that ``spec`` has, if it holds such within float32's precision."""
    if x.dtype.kind != "f" or spec.dtype.kind not in "iub":
        return x
    if not (np.abs(x) <= MAX_EXACT).all() or not np.array_equal(np.rint(x), x):
        raise InputError(f"input {spec.name} is {spec}: the data set's numbers are not whole, or above {MAX_EXACT:,}")
    whole: np.ndarray = x.astype(np.int64)
    return whole.astype(np.bool_) if spec.dtype.kind == "b" else spec.cast(whole)


def _with_axis(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """Return a column of single values as [n, 1] where the model wants it so."""
    return array[:, None] if array.ndim == 1 and spec.shape[1:] in ((1,), (FREE,)) else array


def _fits(spec: TensorSpec, array: np.ndarray) -> bool:
    """True if the array's examples have the shape that ``spec`` asks for."""
    sizes = zip(spec.shape[1:], array.shape[1:], strict=False)
    return array.ndim == len(spec.shape) and all(size in (FREE, got) for size, got in sizes)


def _network_document(network: Network) -> dict[str, Any]:
    graph = network.graph
    cost = {"parameters": graph.weights, "flops": graph.flops}
    inputs = {"sparse": True} if network.sparse else {}
    return {"name": network.name, **cost, **inputs, "scores": dict(network.scores), "graph": graph.document()}
