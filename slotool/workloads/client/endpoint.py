"""How a request is sent to a server and its answer read: one base class, one file per protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from slotool import strict_json

# One example: float32 [*input_shape], or the named inputs of a model with a signature, each [1, ...].
Example = np.ndarray | Mapping[str, np.ndarray]
# Types of the numbers that an answer's tensors may have, by their names in the Open Inference Protocol.
DTYPES = {"INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}


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
        """The reason given in a response that is not 2xx: its JSON ``error``, or the beginning of its text."""
        try:
            document = strict_json.decode(body)
        except strict_json.JsonError:
            document = None
        text = document.get("error") if isinstance(document, dict) else None
        return str(text or body[:200].decode(errors="replace") or "no reason given")


def number_of(document: Mapping[str, Any], name: str, scale: float = 1.0) -> float | None:
    """A number field of a response times ``scale``; None when absent. Raises ``ValueError``."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number: {value!r:.40}")
    return value * scale


def object_of(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises ``ValueError``."""
    try:
        document = strict_json.decode(raw)
    except strict_json.JsonError as error:
        raise ValueError(f"the response is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ValueError("the response is not a JSON object")
    return document
