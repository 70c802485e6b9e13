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

# Example: the model's inputs by name, each [1, ...], or for POST /compute its only one, [*input_shape].
Example = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Terms:
    """Options of a request; None where not set.

    ``tolerance``: error degradation accepted; ``objective``: response-time or cost; ``min_accuracy``: in [0, 1];
    ``priority``: 1 is the most important, 0 is none.
    """

    deadline_s: float | None = None
    tolerance: float | None = None
    objective: str | None = None
    min_accuracy: float | None = None
    priority: int = 0

    def parameters(self) -> dict[str, int | float | str]:
        """Return the options as parameters of the Open Inference Protocol; ``timeout`` is in µs."""
        options = {
            "timeout": None if self.deadline_s is None else round(self.deadline_s * 1e6),
            "tolerance": self.tolerance,
            "objective": self.objective,
            "min_accuracy": self.min_accuracy,
            "priority": self.priority or None,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class ServerAnswer:
    """Content of a 2xx response; ``label`` is -1 without a class. Times in seconds, None if not stated."""

    label: int
    confidence: float | None = None
    point: str = ""
    queue_s: float | None = None
    compute_s: float | None = None

    @classmethod
    def of(cls, outputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> ServerAnswer:
        """Parse ``label`` and ``confidence`` of the outputs, and the response's parameters. Raises ``ValueError``."""
        label = number_of(outputs, "label")
        if label is None:
            raise ValueError("the response has no output 'label'")
        return cls(
            label=int(label),
            confidence=number_of(outputs, "confidence"),
            point=str(parameters.get("operating_point") or ""),
            queue_s=number_of(parameters, "queue_us", scale=1e-6),
            compute_s=number_of(parameters, "compute_us", scale=1e-6),
        )


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Result of a request. ``status``: of HTTP, or the equal of a gRPC code; 0 without a response.

    ``at_s``: reading of ``time.perf_counter`` at its arrival. ``error``: reason for a missing ``answer``.
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
        """Return headers and body of a request about one ``Example``; ``number`` may serve as its id.

        ``terms``: of this request, by default those of all.
        """

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
    """Signature of ``model`` from its server. ``classes``: names of its classes, () if not stated.

    A class is read from an output ``label``; else from scores of classes if only one output can hold them, or from an
    output that can only hold names of ``classes``.
    """

    def __init__(self, signature: Signature, model: str, classes: Sequence[str] = ()):
        self.signature, self._model, self._classes = signature, model, tuple(classes)
        named = {spec.name: spec for spec in signature.outputs}
        self._task = None if LABEL in named else _task(signature, named_classes=bool(classes))
        if LABEL in named:
            outputs = [named[name] for name in (LABEL, CONFIDENCE) if name in named]
        else:
            outputs = [signature.output(self._task.output)] if self._task else list(signature.outputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(outputs)

    def inputs_of(self, x: Inputs) -> Columns:
        """Return examples as arrays by input name, in the model's datatypes.

        One array, or one column, is the input of a model with one, whatever its name; other columns of no input are
        left out. Raises ``InputError`` naming an input that the data set lacks, or of another kind.
        """
        arrays, inputs = x.arrays if isinstance(x, Columns) else {"": x}, self.signature.inputs
        if len(arrays) == len(inputs) == 1:
            arrays = {inputs[0].name: next(iter(arrays.values()))}
        inputs_by_name = {}
        for spec in inputs:
            if spec.name not in arrays:
                has = f"it has {', '.join(arrays)}" if isinstance(x, Columns) else "it has one tensor without a name"
                raise InputError(f"{self._model} takes {spec.name} ({spec}), which the data set lacks: {has}")
            array = arrays[spec.name]
            # The server says itself where a shape does not fit.
            inputs_by_name[spec.name] = TensorSpec(spec.name, spec.datatype, (FREE,) * array.ndim).conform(array)
        return Columns(inputs_by_name)

    def answer(self, outputs: Mapping[str, np.ndarray], parameters: Mapping[str, Any]) -> ServerAnswer:
        """Return the answer in the outputs for one example, class −1 without one. Raises ``ValueError``."""
        if self._task is None and LABEL not in {spec.name for spec in self.outputs}:
            return ServerAnswer.of({LABEL: -1}, parameters)
        if self._task is None:
            firsts = {name: array.ravel()[0].item() for name, array in outputs.items() if array.dtype.kind != "O"}
            if self._classes:
                firsts[LABEL] = int(class_numbers(outputs[LABEL].ravel()[:1], self._classes)[0])
            return ServerAnswer.of(firsts, parameters)
        if self._task.scores == "labels":
            number = class_numbers(outputs[self._task.output], self._classes)[0]
            return ServerAnswer.of({LABEL: int(number)}, parameters)
        scores = outputs[self._task.output].reshape(1, -1)
        return ServerAnswer.of({LABEL: int(self._task.answers({self._task.output: scores})[0])}, parameters)


def _task(signature: Signature, *, named_classes: bool) -> Classification | None:
    """Return the classification of a model with class scores or, with ``named_classes``, with a named answer."""
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
    """Return the number of classes of a model with ``label`` and ``logits`` like slotool's own, else None."""
    named = {spec.name: spec.shape for spec in signature.outputs}
    scores = named.get(LOGITS, ()) if LABEL in named else ()
    return scores[1] if len(scores) == 2 and scores[1] > 0 else None
