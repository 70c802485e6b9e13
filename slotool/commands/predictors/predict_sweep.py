"""Range of one fact that ``predict`` is asked about, and the predictor that answers at each value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from slotool.commands.networks.networks import Captured, Networks
from slotool.commands.predictors.chosen_predictor import Chosen, is_of_here, machine_differences
from slotool.commands.predictors.prediction import NOT_HERE
from slotool.commands.predictors.predictor_choice import chosen_predictor
from slotool.commands.progress import short_phase
from slotool.errors import ArgumentError, SlotoolError

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits
    from slotool.predictors.trained.artifact import Predictions

BATCH, THREADS, SIZE, LENGTH = "batch", "threads", "size", "length"
FACTS = (BATCH, THREADS, SIZE, LENGTH)
# Of the facts that only capturing the network again can tell.
SHAPES = (SIZE, LENGTH)
# Frameworks whose models are captured with a shape that is said; of Keras' and ONNX's their free axes.
CHOSEN = ("torch", "keras", "onnx")
MAX_VALUES, MAX_VALUE = 256, 2**31
EXPECTED = "expected FACT=VALUES such as batch=1:64, threads=1:2, size=64:256:32 or length=16,128"


@dataclass(frozen=True)
class SweepAxis:
    """``fact``: one of ``FACTS``; ``values``: ascending, each once."""

    fact: str
    values: tuple[int, ...]

    @classmethod
    def of(cls, given: str | Mapping[str, Sequence[int]]) -> Self:
        """``"batch=1:64"``, or ``{"batch": [1, 4]}``.

        Of a range a:b threads are counted, all else is doubled from a, and b is the last; a:b:step counts by step.
        Raises ``ArgumentError`` for anything else.
        """
        if isinstance(given, str):
            fact, _, text = given.partition("=")
            values = [value for part in text.split(",") for value in _range(part, fact.strip(), given)]
        elif len(given) == 1:
            ((fact, numbers),) = given.items()
            values = [*numbers]
        else:
            raise ArgumentError("sweep", f"{len(given)} facts are given, but one is swept at a time: {EXPECTED}")
        fact = fact.strip()
        if fact not in FACTS:
            raise ArgumentError("sweep", f"{fact!r} is none of {', '.join(FACTS)}: {EXPECTED}")
        if not values or not all(0 < value <= MAX_VALUE for value in values):
            raise ArgumentError("sweep", f"{given!r} holds no whole numbers from 1 on: {EXPECTED}")
        if len(values) > MAX_VALUES:
            raise ArgumentError("sweep", f"{given!r} holds {len(values):,} values, at most {MAX_VALUES} are predicted")
        return cls(fact, tuple(sorted(set(values))))

    def reshaped(self, asked: Networks) -> list[Networks]:
        """``asked`` with each of the sizes or lengths as the shape of its inputs, of which one is said. Raises
        ``ArgumentError`` for networks whose shape slotool does not choose, or has no such axis."""
        kinds = [getattr(part, "framework", "") for part in asked.parts]
        if any(kind not in CHOSEN for kind in kinds):
            raise ArgumentError("sweep", f"the {self.fact} of models alone can be chosen, not of graphs")
        parts: list[Any] = [*asked.parts]
        lacking = next((part for part, kind in zip(parts, kinds, strict=True) if not part.input_shape), None)
        if lacking is not None:
            name = getattr(lacking, "name", "the model")
            raise ArgumentError(
                "sweep",
                f"which axis of {name} is its {self.fact}? Say the shape of one example with --input-shape "
                "(input_shape= in Python), where any number stands for what is swept",
            )
        return [replace(asked, parts=[self._with(part, value) for part in parts]) for value in self.values]

    def _with(self, part: Any, value: int) -> Any:
        return replace(part, input_shape=self._shape(part.input_shape, value, last=part.framework == "keras"))

    def _shape(self, shape: Any, value: int, last: bool) -> Any:
        if isinstance(shape, Mapping):
            shapes = {name: self._one(tuple(own), value, last) for name, own in shape.items()}
            if all(own is None for own in shapes.values()):
                raise self._no_axis(shape)
            return {name: own or tuple(shape[name]) for name, own in shapes.items()}
        found = self._one(tuple(shape), value, last)
        if found is None:
            raise self._no_axis(shape)
        return found

    def _one(self, shape: tuple[int, ...], value: int, last: bool) -> tuple[int, ...] | None:
        """Return ``shape`` with both sides of an image, channels first or ``last``, or the length of a sequence set to
        ``value``; None for any other shape."""
        if self.fact == SIZE and last:
            return (*shape[:-3], value, value, shape[-1]) if len(shape) >= 3 else None
        if self.fact == SIZE:
            return (*shape[:-2], value, value) if len(shape) >= 3 else None
        return (value, *shape[1:]) if len(shape) in (1, 2) else None

    def _no_axis(self, shape: Any) -> ArgumentError:
        wanted = "an image such as 3,224,224" if self.fact == SIZE else "a sequence such as 128, or 128,64"
        return ArgumentError("sweep", f"--input-shape is {shape}, but a {self.fact} is that of {wanted}")


def _range(text: str, fact: str, given: str) -> list[int]:
    try:
        pieces = [int(piece) for piece in text.split(":")]
    except ValueError:
        pieces = []
    if len(pieces) == 1:
        return pieces
    if len(pieces) not in (2, 3) or not 0 < pieces[0] <= pieces[1] <= MAX_VALUE or pieces[-1] < 1:
        raise ArgumentError("sweep", f"{given!r} is no range of whole numbers: {EXPECTED}")
    start, stop = pieces[:2]
    if len(pieces) == 3 or fact == THREADS:
        # A value too many is enough to refuse a range of millions.
        return list(range(start, stop + 1, pieces[2] if len(pieces) == 3 else 1))[: MAX_VALUES + 1]
    doubled = [start]
    while 2 * doubled[-1] < stop:
        doubled.append(2 * doubled[-1])
    return doubled if doubled[-1] == stop else [*doubled, stop]


@dataclass(frozen=True)
class SweepPoint:
    """One network at one ``value``. ``learnt``: labels were of this value; else it was scaled from another batch size.

    ``graph`` and ``latency_s`` are None and NaN where it cannot be predicted, for the reason ``why_not``.
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
        """Examples in a second, one batch after the other."""
        return self.batch_size / self.latency_s


@dataclass(frozen=True)
class Answer:
    """What a predictor says of all networks at one value; ``why_not``: that it says nothing of any."""

    value: int
    chosen: Chosen
    batch_size: int
    networks: Sequence[Captured]
    predictions: Predictions | None
    learnt: bool = True
    why_not: str | None = None

    def points(self, names: Sequence[str], slo_s: float | None) -> Iterator[SweepPoint]:
        at, predictions = 0, self.predictions
        trained = self.chosen.opened.require_solo()
        chances = None if slo_s is None or predictions is None else trained.probability_within(predictions, slo_s)
        for name, network in zip(names, self.networks, strict=True):
            graph = network.graph
            if graph is None or predictions is None:
                why = self.why_not if network.error is None else str(network.error)
                yield SweepPoint(self.value, name, self.batch_size, graph, why_not=why)
                continue
            yield SweepPoint(
                value=self.value,
                name=name,
                batch_size=self.batch_size,
                graph=graph,
                latency_s=float(predictions.latency_s[at]),
                low_s=float(predictions.low_s[at]),
                high_s=float(predictions.high_s[at]),
                probability=math.nan if chances is None else float(chances[at]),
                no_interval=predictions.no_interval[at],
                outside=predictions.outside[at],
                learnt=self.learnt,
            )
            at += 1


def answers_of(
    axis: SweepAxis, predictor: Any, asked: Networks, facts: Mapping[str, Any], measure: bool, limits: Limits
) -> list[Answer]:
    """Return the answer at every value of ``axis``.

    Args:
        axis: Fact that is swept.
        predictor: Predictor that the user named, or None.
        asked: Networks.
        facts: Backend, device, precision, threads and ``batch_size``; None for those left open.
        measure: True if operators that were not timed here are timed.
        limits: Limits of a capture.

    Raises:
        ArgumentError: No value can be predicted.
    """
    given = facts["batch_size" if axis.fact == BATCH else axis.fact] if axis.fact not in SHAPES else None
    if given is not None:
        raise ArgumentError(
            "sweep", f"it sweeps what --{axis.fact.replace('batch', 'batch-size')} fixes; leave one out"
        )
    others, size = {name: value for name, value in facts.items() if name != "batch_size"}, facts["batch_size"]
    with short_phase(asked.reporter, "opening the predictor"):
        each, unknown = _of_values(axis, predictor, asked, others, size, measure)
    if axis.fact in SHAPES:
        found = _over_shapes(axis, each, asked, limits)
    else:
        networks, graphs = _captured(asked, limits)
        first = next(iter(each.values()))
        found = [
            _answer(value, each[value], networks, graphs)
            if value in each
            else Answer(value, first, size or 1, networks, None, learnt=False, why_not=unknown[value])
            for value in axis.values
        ]
    return [_only_here(answer) for answer in found] if is_of_here(facts["device"]) else found


def _of_values(
    axis: SweepAxis, predictor: Any, asked: Networks, facts: Mapping[str, Any], size: int | None, measure: bool
) -> tuple[dict[int, Chosen], dict[int, str]]:
    """Return the predictor at each value that one answers for, and why none does at the others. Raises
    ``ArgumentError`` where none does at any."""
    each: dict[int, Chosen] = {}
    errors: dict[int, ArgumentError] = {}
    for value in axis.values:
        own = {**facts, "threads": value} if axis.fact == THREADS else facts
        try:
            chosen, rest = chosen_predictor(predictor, asked, measure=measure, **own)
            size_here = value if axis.fact == BATCH else size
            each[value] = chosen.of_setting(scaling=True, **rest, batch_size=size_here)
        except ArgumentError as error:
            # The sizes and threads are those of the axis.
            swept = error.argument in ("batch_size", "threads")
            errors[value] = ArgumentError("sweep", error.problem) if swept else error
    if not each:
        raise next(iter(errors.values()))
    return each, {value: error.problem for value, error in errors.items()}


def _answer(value: int, one: Chosen, networks: Sequence[Captured], graphs: Sequence[OperatorGraph]) -> Answer:
    trained = one.opened.require_solo()
    predictions = trained.predict(graphs) if graphs else None
    return Answer(value, one, trained.setting.batch_size, networks, predictions, learnt=not one.scaled)


def _over_shapes(axis: SweepAxis, each: Mapping[int, Chosen], asked: Networks, limits: Limits) -> list[Answer]:
    with asked.capturing(len(axis.values)) as steps:
        captured = [list(reshaped.captured(limits, steps)) for reshaped in axis.reshaped(asked)]
    by_value = [[one.graph for one in networks if one.graph is not None] for networks in captured]
    if not any(by_value):
        errors: dict[str, SlotoolError] = {}
        for one in (one for networks in captured for one in networks):
            if one.error is not None:
                errors.setdefault(one.name, one.error)
        raise asked.not_captured(errors)
    return [
        _answer(value, each[value], networks, graphs)
        for value, networks, graphs in zip(axis.values, captured, by_value, strict=True)
    ]


def _captured(asked: Networks, limits: Limits) -> tuple[list[Captured], list[OperatorGraph]]:
    """All networks, and the graphs of those that can be captured. Raises why where none can."""
    with asked.capturing() as steps:
        networks = list(asked.captured(limits, steps))
    graphs = [each.graph for each in networks if each.graph is not None]
    if not graphs:
        raise asked.not_captured({each.name: each.error for each in networks if each.error is not None})
    return networks, graphs


def _only_here(answer: Answer) -> Answer:
    """Without intervals where this machine is not the predictor's."""
    # What is scaled says so already.
    if (
        answer.predictions is None
        or not answer.learnt
        or machine_differences(answer.chosen.opened.require_solo()) is None
    ):
        return answer
    return replace(answer, predictions=answer.predictions.without_interval(NOT_HERE))
