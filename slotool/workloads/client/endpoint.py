"""Requests to a server and the answers read from it, whatever the protocol; tensors of the model that it serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from slotool import strict_json
from slotool.data.columns import Columns, Inputs
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.models.tasks import Classification, class_numbers, make_task

# One example: the model's inputs by name, each [1, ...], or over POST /compute its only one, [*input_shape].
Example = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Terms:
    """What a request asks for; None where it asks nothing.

    ``tolerance``: error degradation accepted; ``objective``: response-time or cost; ``min_accuracy``: in [0, 1];
    ``priority``: 1 is the most important, 0 is none.
    """

    deadline_s: float | None = None
    tolerance: float | None = None
    objective: str | None = None
    min_accuracy: float | None = None
    priority: int = 0

    def parameters(self) -> dict[str, int | float | str]:
        """As parameters of the Open Inference Protocol; ``timeout`` is in µs."""
        asked = {
            "timeout": None if self.deadline_s is None else round(self.deadline_s * 1e6),
            "tolerance": self.tolerance,
            "objective": self.objective,
            "min_accuracy": self.min_accuracy,
            "priority": self.priority or None,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class ServerAnswer:
    """What a 2xx response said; ``label`` is -1 where it tells no class. Times in seconds, None where the server is
    silent."""

    label: int
    confidence: float | None = None
    point: str = ""
    queue_s: float | None = None
    compute_s: float | None = None

    @classmethod
    def of(cls, outputs: Mapping[str, Any], said: Mapping[str, Any]) -> ServerAnswer:
        """From ``label`` and ``confidence`` of the outputs, and what the server said besides. Raises ``ValueError``."""
        label = number_of(outputs, "label")
        if label is None:
            raise ValueError("the response has no output 'label'")
        return cls(
            label=int(label),
            confidence=number_of(outputs, "confidence"),
            point=str(said.get("operating_point") or ""),
            queue_s=number_of(said, "queue_us", scale=1e-6),
            compute_s=number_of(said, "compute_us", scale=1e-6),
        )


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What became of one request. ``status``: of HTTP, or what a gRPC code stands for; 0 when nothing came back.

    ``at_s``: reading of ``time.perf_counter`` when it was there. ``error``: why there is no ``answer``.
    """

    status: int
    at_s: float
    answer: ServerAnswer | None = None
    error: str = ""


class Channel(ABC):
    """Connections to one model of one server, made and used inside one event loop. ``where`` names it to people."""

    where: str

    @abstractmethod
    async def ask(self, x: Example, number: int, terms: Terms | None = None) -> RequestResult:
        """Ask about one example, on ``terms`` where this request has its own.

        Every failure is reported in the result.
        """

    @abstractmethod
    async def close(self) -> None: ...


class Endpoint(ABC):
    """A form of request over HTTP. ``path`` is where requests are posted, relative to the server's address."""

    name: ClassVar[str]

    def __init__(self, model: str, terms: Terms):
        self.model = model
        self.terms = terms

    @property
    @abstractmethod
    def path(self) -> str: ...

    @abstractmethod
    def request(self, x: Any, number: int, terms: Terms | None = None) -> tuple[dict[str, str], bytes]:
        """Headers and body that ask about one example, an ``Example``; ``number`` may serve as its id. ``terms``: of
        this request; those of all where left out."""

    @abstractmethod
    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        """Read a 2xx response; ``headers``: names in lower case. Raises ``ValueError`` saying what is wrong with it."""

    def error_in(self, body: bytes) -> str:
        """Return the reason given in a response that is not 2xx: its JSON ``error``, or the beginning of its text."""
        try:
            document = strict_json.decode(body)
        except strict_json.JsonError:
            document = None
        text = document.get("error") if isinstance(document, dict) else None
        return str(text or body[:200].decode(errors="replace") or "no reason given")


def number_of(document: Mapping[str, Any], name: str, scale: float = 1.0) -> float | None:
    """Return a number field of a response times ``scale``; None when absent. Raises ``ValueError``."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number: {value!r:.40}")
    return value * scale


def object_of(raw: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ``ValueError``."""
    try:
        document = strict_json.decode(raw)
    except strict_json.JsonError as error:
        raise ValueError(f"the response is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ValueError("the response is not a JSON object")
    return document


LABEL, CONFIDENCE, LOGITS = "label", "confidence", "logits"
# Tensors of a model whose server states none: those of slotool's own networks.
ASSUMED = Signature(
    (TensorSpec("input", "FP32", (FREE,)),),
    (TensorSpec(LABEL, "INT64", (FREE,)), TensorSpec(CONFIDENCE, "FP32", (FREE,))),
)


class ServedSignature:
    """``model``'s ``signature``, as its server states it. ``classes``: names of the classes that it knows, () where the
    server does not say.

    A class is read from an output ``label``; without one, from scores of classes where one output can only hold them,
    or from an output that can only hold names of ``classes``.
    """

    def __init__(self, signature: Signature, model: str, classes: Sequence[str] = ()):
        self.signature, self._model, self._classes = signature, model, tuple(classes)
        named = {spec.name: spec for spec in signature.outputs}
        self._task = None if LABEL in named else _task(signature, named_classes=bool(classes))
        if LABEL in named:
            wanted = [named[name] for name in (LABEL, CONFIDENCE) if name in named]
        else:
            wanted = [signature.output(self._task.output)] if self._task else list(signature.outputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(wanted)

    def inputs_of(self, x: Inputs) -> Columns:
        """The examples as arrays by the names of the model's inputs, of their datatypes. One array, or one column, is
        the input of a model with one, whatever its name; columns that the model does not take are left out.

        Raises ``InputError`` naming the input that the data set does not have, or of another kind.
        """
        given, inputs = x.arrays if isinstance(x, Columns) else {"": x}, self.signature.inputs
        if len(given) == len(inputs) == 1:
            given = {inputs[0].name: next(iter(given.values()))}
        taken = {}
        for spec in inputs:
            if spec.name not in given:
                has = f"it has {', '.join(given)}" if isinstance(x, Columns) else "it has one tensor without a name"
                raise InputError(f"{self._model} takes {spec.name} ({spec}), which the data set lacks: {has}")
            array = given[spec.name]
            # The server says itself where a shape does not fit.
            taken[spec.name] = TensorSpec(spec.name, spec.datatype, (FREE,) * array.ndim).conform(array)
        return Columns(taken)

    def answer(self, outputs: Mapping[str, np.ndarray], said: Mapping[str, Any]) -> ServerAnswer:
        """What the outputs for one example say; class −1 where they tell none. Raises ``ValueError``."""
        if self._task is None and LABEL not in {spec.name for spec in self.outputs}:
            return ServerAnswer.of({LABEL: -1}, said)
        if self._task is None:
            firsts = {name: array.ravel()[0].item() for name, array in outputs.items() if array.dtype.kind != "O"}
            if self._classes:
                firsts[LABEL] = int(class_numbers(outputs[LABEL].ravel()[:1], self._classes)[0])
            return ServerAnswer.of(firsts, said)
        if self._task.scores == "labels":
            return ServerAnswer.of({LABEL: int(class_numbers(outputs[self._task.output], self._classes)[0])}, said)
        scores = outputs[self._task.output].reshape(1, -1)
        return ServerAnswer.of({LABEL: int(self._task.answers({self._task.output: scores})[0])}, said)


def _task(signature: Signature, *, named_classes: bool) -> Classification | None:
    """The classification of a model with scores of two classes or more, or with ``named_classes`` of one that names its
    answer."""
    try:
        task = make_task(signature)
    except InputError:
        return None
    if not isinstance(task, Classification):
        return None
    if task.scores == "labels":
        return task if named_classes else None
    return None if signature.output(task.output).shape[-1] == 1 else task


def classes_scored(signature: Signature) -> int | None:
    """Return the number of classes of a model that answers as slotool's own do: with a ``label``, the place of the
    highest of its ``logits``. None for other models."""
    named = {spec.name: spec.shape for spec in signature.outputs}
    scores = named.get(LOGITS, ()) if LABEL in named else ()
    return scores[1] if len(scores) == 2 and scores[1] > 0 else None
