"""Range of one fact over which latencies are predicted, and a prediction at one value of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture.networks import Networks

BATCH, THREADS, SIZE, LENGTH = "batch", "threads", "size", "length"
FACTS = (BATCH, THREADS, SIZE, LENGTH)
# Facts for which the network is captured again.
SHAPES = (SIZE, LENGTH)
# Frameworks whose models are captured with a stated input shape; for Keras and ONNX, its free axes.
CHOSEN = ("torch", "keras", "onnx")
MAX_VALUES, MAX_VALUE = 256, 2**31
EXPECTED = "expected FACT=VALUES such as batch=1:64, threads=1:2, size=64:256:32 or length=16,128"


@dataclass(frozen=True)
class SweepAxis:
    """Values of one of ``FACTS``, ascending, each once."""

    fact: str
    values: tuple[int, ...]

    @classmethod
    def of(cls, sweep: str | Mapping[str, Sequence[int]]) -> Self:
        """Parse ``"batch=1:64"``, or ``{"batch": [1, 4]}``; raises ``ArgumentError`` for anything else.

        A range a:b counts up for threads and doubles for other facts, up to b; a:b:step counts by step.
        """
        if isinstance(sweep, str):
            fact, _, text = sweep.partition("=")
            values = [value for part in text.split(",") for value in _range(part, fact.strip(), sweep)]
        elif len(sweep) == 1:
            ((fact, numbers),) = sweep.items()
            values = [*numbers]
        else:
            raise ArgumentError("sweep", f"{len(sweep)} facts are given, but one is swept at a time: {EXPECTED}")
        fact = fact.strip()
        if fact not in FACTS:
            raise ArgumentError("sweep", f"{fact!r} is none of {', '.join(FACTS)}: {EXPECTED}")
        if not values or not all(0 < value <= MAX_VALUE for value in values):
            raise ArgumentError("sweep", f"{sweep!r} holds no whole numbers from 1 on: {EXPECTED}")
        if len(values) > MAX_VALUES:
            raise ArgumentError("sweep", f"{sweep!r} holds {len(values):,} values, at most {MAX_VALUES} are predicted")
        return cls(fact, tuple(sorted(set(values))))

    def reshaped(self, networks: Networks) -> list[Networks]:
        """Return ``asked`` with each of the sizes or lengths set in its stated input shape.

        Raises ``ArgumentError`` for networks whose shape is not stated, cannot be chosen, or has no such axis.
        """
        kinds = [getattr(part, "framework", "") for part in networks.parts]
        if any(kind not in CHOSEN for kind in kinds):
            raise ArgumentError("sweep", f"the {self.fact} of models alone can be chosen, not of graphs")
        parts: list[Any] = [*networks.parts]
        lacking = next((part for part, kind in zip(parts, kinds, strict=True) if not part.input_shape), None)
        if lacking is not None:
            name = getattr(lacking, "name", "the model")
            raise ArgumentError(
                "sweep",
                f"which axis of {name} is its {self.fact}? Say the shape of one example with --input-shape "
                "(input_shape= in Python), where any number stands for what is swept",
            )
        return [replace(networks, parts=[self._with(part, value) for part in parts]) for value in self.values]

    def _with(self, part: Any, value: int) -> Any:
        return replace(part, input_shape=self._shape(part.input_shape, value, last=part.framework == "keras"))

    def _shape(self, shape: Any, value: int, last: bool) -> Any:
        by_name = shape if isinstance(shape, Mapping) else {"": shape}
        changed = {name: self._one(tuple(sizes), value, last) for name, sizes in by_name.items()}
        if not any(changed.values()):
            example = "an image such as 3,224,224" if self.fact == SIZE else "a sequence such as 128, or 128,64"
            raise ArgumentError("sweep", f"--input-shape is {shape}, but a {self.fact} is that of {example}")
        shapes = {name: sizes or tuple(by_name[name]) for name, sizes in changed.items()}
        return shapes if isinstance(shape, Mapping) else shapes[""]

    def _one(self, shape: tuple[int, ...], value: int, last: bool) -> tuple[int, ...] | None:
        """Return ``shape`` with the sides of an image, or the length of a sequence, set to ``value``; else None.

        ``last``: the channels of an image come last.
        """
        if self.fact == SIZE and last:
            return (*shape[:-3], value, value, shape[-1]) if len(shape) >= 3 else None
        if self.fact == SIZE:
            return (*shape[:-2], value, value) if len(shape) >= 3 else None
        return (value, *shape[1:]) if len(shape) in (1, 2) else None


def _range(text: str, fact: str, sweep: str) -> list[int]:
    try:
        pieces = [int(piece) for piece in text.split(":")]
    except ValueError:
        pieces = []
    if len(pieces) == 1:
        return pieces
    if len(pieces) not in (2, 3) or not 0 < pieces[0] <= pieces[1] <= MAX_VALUE or pieces[-1] < 1:
        raise ArgumentError("sweep", f"{sweep!r} is no range of whole numbers: {EXPECTED}")
    start, stop = pieces[:2]
    if len(pieces) == 3 or fact == THREADS:
        # One value more than allowed is enough to reject a range of millions.
        return list(range(start, stop + 1, pieces[2] if len(pieces) == 3 else 1))[: MAX_VALUES + 1]
    doubled = [start]
    while 2 * doubled[-1] < stop:
        doubled.append(2 * doubled[-1])
    return doubled if doubled[-1] == stop else [*doubled, stop]


@dataclass(frozen=True)
class SweepPoint:
    """Prediction of one network at one ``value``.

    ``learnt``: labels had this value; else it was scaled from another batch size. Where it cannot be predicted,
    ``graph`` is None, ``latency_s`` NaN, and ``why_not`` the reason.
    """

    value: int
    name: str
    batch_size: int
    graph: OperatorGraph | None = None
    latency_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    probability: float = math.nan
    no_interval: str | None = None
    outside: str | None = None
    learnt: bool = False
    why_not: str | None = None

    @property
    def throughput(self) -> float:
        """Examples per second, one batch after the other."""
        return self.batch_size / self.latency_s
