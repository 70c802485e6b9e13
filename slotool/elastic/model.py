"""The one idea: a trained service with several operating points, whatever sets them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from slotool import devices
from slotool.data.columns import Columns, Inputs, only_array
from slotool.data.options import DataOptions
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec, require_rows
from slotool.models.tasks import Classification, Task
from slotool.tables import OperatingPoint

# Names of the tensors of a model that states no others.
INPUT, LOGITS = "input", "logits"
# Examples of a call of a model that takes any number of them.
UNLIMITED = 2**30


class InferenceSession(Protocol):
    """Runs one example after another at one operating point. Only ``run`` is worth timing.

    ``prepare``: the arguments of ``run`` for one row of [n, *input_shape], an array or CSR. ``best``: the best labels
    int [p] of the last run and their scores float32 [p], best first; where there are fewer, label −1 at −inf.
    """

    def prepare(self, x: Any, row: int) -> tuple[Any, ...]: ...

    def run(self, *query: Any) -> object: ...

    def best(self) -> tuple[np.ndarray, np.ndarray]: ...


class ElasticModel(ABC):
    """A classifier that can answer at any of its ``points``.

    ``points``: cheapest first, the last is the full model. ``input_shape``: shape of one example.
    ``classes``: number of classes. ``name``: what tables call the subject. ``sparse``: its inputs are mostly zeros and
    come as CSR matrices; it takes arrays too. ``whole_inputs``: whether it takes whole numbers only, such as the ids of
    tokens.
    ``remote_points``: points that another server answers, and the seconds that a
    call may take at most; a server calls them by ``respond_within``, outside its workers. ``signature``: its named
    inputs and outputs; unless it states others one float32 ``input``, and ``logits``, scores of classes. ``task``:
    meaning of the outputs that ``respond`` returns; None where they have none that is known. ``data_options``: how data
    sets are read for it, where it says so.
    ``labels``: names of the classes, where it knows them.
    ``examples``: a few named inputs to warm it with, where it keeps some. ``device``: that it computes on,
    in the number format ``precision``.
    """

    sparse: bool = False
    whole_inputs: bool = False
    remote_points: Mapping[OperatingPoint, float] = MappingProxyType({})
    task: Task | None = Classification(LOGITS)
    data_options: DataOptions | None = None
    labels: tuple[str, ...] = ()
    examples: Columns | None = None
    device: str = devices.CPU
    precision: str = devices.FLOAT32
    # Checksum of the files that it was read from; empty where there are none.
    identity: str = ""
    # True if ``check_inputs`` has anything to look at.
    checks_inputs = True
    # True if ``expected_accuracy`` tells inputs apart.
    estimates_each = False
    # True if a server's responses hold what the task makes of the outputs, unless a request names others.
    states_answers = True
    # True if first calls compile machine code, which takes seconds without a cache on disk.
    compiles = False
    # Maximum number of examples in a call; 0: one request a call, whose tensors are one example.
    max_batch: int = UNLIMITED
    # True if scores may be minus infinity, for classes that were not computed.
    leaves_out = False
    # False if the name of its only input is slotool's, not its maker's: requests may call it otherwise.
    names_inputs = True
    # Whole numbers that a request may state of each example, with the greatest: further columns of ``respond``.
    parameters: Mapping[str, int] = MappingProxyType({})
    name: str
    input_shape: tuple[int, ...]
    classes: int
    points: tuple[OperatingPoint, ...]

    def identity_of(self, point: OperatingPoint) -> str:
        """Return the checksum, or another id of the content, of the model that answers at ``point``; "" if none."""
        return self.identity

    @abstractmethod
    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        """Return the class scores (logits) at ``point``.

        ``x``: float32 [batch, *input_shape]; returns float32 [batch, classes]. A class that was not computed scores
        −inf. Raises ``InputError`` for a point the model does not have.
        """

    @cached_property
    def signature(self) -> Signature:
        """Tensors that it takes and returns, by name."""
        scores = TensorSpec(LOGITS, "FP32", (FREE, self.classes))
        return Signature((TensorSpec(INPUT, "FP32", (FREE, *self.input_shape)),), (scores,))

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        """Return ``x`` as arrays of ``signature`` by name. Raises ``InputError`` naming what does not fit."""
        array = only_array(x)
        if array.shape[1:] != tuple(self.input_shape):
            raise InputError(f"{self.name} takes inputs {tuple(self.input_shape)}, not {array.shape[1:]}")
        return {self.signature.inputs[0].name: array}

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise ``InputError`` naming arrays of ``signature`` that some version rejects; here, NaN and infinity."""
        for name, array in inputs.items():
            # Looking for a zero among the bytes takes a quarter of the time of ``all``.
            if b"\0" in np.isfinite(array).tobytes():
                raise InputError(f"input {name}: it holds NaN or infinity")

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        """Return the outputs of ``signature`` by name at ``point``; ``inputs``: made by ``self.inputs``.

        Raises ``InputError`` for a point that the model does not have.
        """
        (x,) = inputs.values()
        return {LOGITS: self.forward(x, point)}

    def respond(self, x: Inputs, point: OperatingPoint) -> dict[str, np.ndarray]:
        """Return the outputs of ``signature`` by name at ``point``; ``x``: its inputs, an array where it has only one.

        Raises ``InputError`` for inputs that do not fit, and for a point that the model does not have; ``RunError`` by
        outputs of another number of rows than there are examples.
        """
        outputs = self.run(self.inputs(x), point)
        require_rows(outputs, len(x))
        return outputs

    def respond_within(self, x: Inputs, point: OperatingPoint, timeout_s: float) -> dict[str, np.ndarray]:
        """Respond; at a remote point it ends within ``timeout_s``, and several threads may call it.

        Raises ``RemoteUnavailable``, ``TimedOut``, or the errors of the call.
        """
        return self.respond(x, point)

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return ``respond``'s answer to each example: class numbers int64 [n], else as ``Task.answers``.

        Raises ``InputError`` without a task.
        """
        return self._task.answers(outputs)

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        """Return the error of each such answer, as ``Task.errors``. Raises ``InputError`` without a task."""
        return self._task.errors(outputs, truth)

    @property
    def _task(self) -> Task:
        if self.task is None:
            raise InputError(f"{self.name} has no task that says what its outputs mean")
        return self.task

    def confidences_of(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return the confidence of each answer, float64 [n]; None for a model without one."""
        return None if self.task is None else self.task.confidences(outputs)

    def top(self, x: Any, p: int = 1, *, point: OperatingPoint | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ``p`` best labels at ``point`` (default: in full) and their scores, best first, [batch, p].

        If fewer than p classes were computed, the rest is label −1 at −inf.
        """
        scores = self.forward(x, point or self.full)
        labels = scores.argmax(axis=1)[:, None] if p == 1 else np.argsort(-scores, axis=1, kind="stable")[:, :p]
        best = np.take_along_axis(scores, labels, axis=1)
        return np.where(np.isneginf(best), -1, labels), best

    def session(self, point: OperatingPoint, p: int = 1) -> InferenceSession:
        """Return an inference session at ``point`` for the ``p`` best labels.

        It calls ``top`` unless the model has a faster path. Raises ``InputError`` for an unknown point.
        """
        self.require(point)
        return _TopSession(self, point, p)

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        """Return the model on ``device``, ``cpu``, ``cuda`` or ``cuda:N``: itself, or a copy of its weights.

        Batches go there and answers come back in each call. Raises ``ArgumentError`` for an unusable device,
        ``InputError`` if the model cannot run there.
        """
        devices.require_at(self, device, precision)
        return self

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        """Call ``check`` between the operators of every forward pass; an exception of it ends the pass and is raised.

        A model whose pass is one compiled call never calls it, which is the default.
        """
        return

    def expected_accuracy(self, x: Inputs) -> Mapping[OperatingPoint, float] | None:
        """Return what this very input may expect of each point, for a model that can tell (``x``: one example).

        None, the default, means that points differ only on average.
        """
        return None

    def expected_accuracies(self, x: Any) -> np.ndarray | None:
        """Return ``expected_accuracy`` of inputs [n, *input_shape], an array or CSR: float64 [n, points]; or None."""
        rows = [self.expected_accuracy(x[i : i + 1]) for i in range(x.shape[0])]
        estimates = [[row[point] for point in self.points] for row in rows if row is not None]
        return np.array(estimates) if estimates and len(estimates) == len(rows) else None

    def cheapest(self, x: Any, accuracy: float) -> np.ndarray | None:
        """Return the index of the cheapest point for ``accuracy`` by input, int [n]; −1 if it cannot be met.

        None for a model that cannot tell inputs apart.
        """
        expected = self.expected_accuracies(x)
        if expected is None:
            return None
        enough = expected >= accuracy
        return np.where(enough.any(axis=1), enough.argmax(axis=1), -1)

    @property
    def full(self) -> OperatingPoint:
        """The most accurate point."""
        return self.points[-1]

    def require(self, point: OperatingPoint) -> None:
        """Raise ``InputError`` if ``points`` lacks ``point``."""
        if point not in self.points:
            raise InputError(f"{self.name} has no operating point {point}; it has {', '.join(map(str, self.points))}")


class _TopSession:
    def __init__(self, model: ElasticModel, point: OperatingPoint, p: int):
        self._model, self._point, self._p = model, point, p
        self._best = (np.full((1, p), -1), np.full((1, p), -np.inf, dtype=np.float32))

    def prepare(self, x: Any, row: int) -> tuple[Any, ...]:
        return (x[row : row + 1],)

    def run(self, x: Any) -> None:
        self._best = self._model.top(x, self._p, point=self._point)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        return self._best[0][0], self._best[1][0]


def version_name(point: OperatingPoint) -> str:
    """Return the name of a point in outcome tables: a family's plain version name, else the point's key."""
    name = point.get("version")
    return point.key if name is None else str(name)


def identities(model: ElasticModel) -> dict[str, str]:
    """Return ``ElasticModel.identity_of`` by version, of those that have one."""
    by_version = {version_name(point): model.identity_of(point) for point in model.points}
    return {version: identity for version, identity in by_version.items() if identity}
