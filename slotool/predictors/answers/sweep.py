"""Predictions over a range of one fact, each by the predictor for its value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from slotool.errors import ArgumentError, SlotoolError
from slotool.graphs.capture.networks import Captured, Networks
from slotool.predictors.answers.choice import chosen_predictor
from slotool.predictors.answers.chosen import NOT_HERE, Chosen, machine_differences
from slotool.progress import short_phase

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits
    from slotool.predictors.trained.artifact import Predictions

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
    if len(pieces) not in (2, 3) or not all(0 < piece <= MAX_VALUE for piece in pieces):
        raise ArgumentError("sweep", f"{sweep!r} is no range of whole numbers: {EXPECTED}")
    start, stop = sorted(pieces[:2])
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


@dataclass(frozen=True)
class Answer:
    """Predictions for all networks at one value; ``why_not``: reason why there are none."""

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
    axis: SweepAxis, predictor: Any, sources: Networks, facts: Mapping[str, Any], measure: bool, limits: Limits
) -> list[Answer]:
    """Return the predictions at every value of ``axis``.

    Args:
        axis: Fact that is swept.
        predictor: Predictor that the user named, or None.
        sources: Networks.
        facts: Backend, device, precision, threads and ``batch_size``, None for any.
        measure: True if operators that were not timed here are timed.
        limits: Limits of a capture.

    Raises:
        ArgumentError: No value can be predicted.
    """
    fixed = facts["batch_size" if axis.fact == BATCH else axis.fact] if axis.fact not in SHAPES else None
    if fixed is not None:
        raise ArgumentError(
            "sweep", f"it sweeps what --{axis.fact.replace('batch', 'batch-size')} fixes; leave one out"
        )
    other_facts, size = {name: value for name, value in facts.items() if name != "batch_size"}, facts["batch_size"]
    with short_phase(sources.reporter, "opening the predictor"):
        chosen, unknown = _of_values(axis, predictor, sources, other_facts, size, measure)
    if axis.fact in SHAPES:
        answers = _over_shapes(axis, chosen, sources, limits)
    else:
        networks, graphs = _captured(sources, limits)
        first = next(iter(chosen.values()))
        answers = [
            _answer(value, chosen[value], networks, graphs)
            if value in chosen
            else Answer(value, first, size or 1, networks, None, learnt=False, why_not=unknown[value])
            for value in axis.values
        ]
    return [_only_here(answer) for answer in answers]


def _of_values(
    axis: SweepAxis, predictor: Any, sources: Networks, facts: Mapping[str, Any], size: int | None, measure: bool
) -> tuple[dict[int, Chosen], dict[int, str]]:
    """Return the predictor for each value, and the reason for values without one; raises it if none has one."""
    chosen_at: dict[int, Chosen] = {}
    errors: dict[int, ArgumentError] = {}
    for value in axis.values:
        facts_here = {**facts, "threads": value} if axis.fact == THREADS else facts
        try:
            chosen, rest = chosen_predictor(predictor, sources, measure=measure, **facts_here)
            size_here = value if axis.fact == BATCH else size
            chosen_at[value] = chosen.of_setting(scaling=True, **rest, batch_size=size_here)
        except ArgumentError as error:
            # The axis set these arguments, not the user.
            swept = error.argument in ("batch_size", "threads")
            errors[value] = ArgumentError("sweep", error.problem) if swept else error
    if not chosen_at:
        raise next(iter(errors.values()))
    return chosen_at, {value: error.problem for value, error in errors.items()}


def _answer(value: int, chosen: Chosen, networks: Sequence[Captured], graphs: Sequence[OperatorGraph]) -> Answer:
    chosen = chosen.in_format_of(graphs)
    trained = chosen.opened.require_solo()
    predictions = trained.predict(graphs) if graphs else None
    return Answer(value, chosen, trained.setting.batch_size, networks, predictions, learnt=not chosen.scaled)


def _over_shapes(axis: SweepAxis, chosen: Mapping[int, Chosen], sources: Networks, limits: Limits) -> list[Answer]:
    with sources.capturing(len(axis.values)) as steps:
        captured = [list(reshaped.captured(limits, steps)) for reshaped in axis.reshaped(sources)]
    by_value = [[network.graph for network in networks if network.graph is not None] for networks in captured]
    if not any(by_value):
        errors: dict[str, SlotoolError] = {}
        for network in (network for networks in captured for network in networks):
            if network.error is not None:
                errors.setdefault(network.name, network.error)
        raise sources.not_captured(errors)
    return [
        _answer(value, chosen[value], networks, graphs)
        for value, networks, graphs in zip(axis.values, captured, by_value, strict=True)
    ]


def _captured(sources: Networks, limits: Limits) -> tuple[list[Captured], list[OperatorGraph]]:
    """Return all networks, and the graphs of those that can be captured. Raises the reason if none can."""
    with sources.capturing() as steps:
        networks = list(sources.captured(limits, steps))
    graphs = [network.graph for network in networks if network.graph is not None]
    if not graphs:
        raise sources.not_captured({network.name: network.error for network in networks if network.error is not None})
    return networks, graphs


def _only_here(answer: Answer) -> Answer:
    """Remove intervals if this machine is not the predictor's; scaled predictions have none."""
    if (
        answer.predictions is None
        or not answer.learnt
        or machine_differences(answer.chosen.opened.require_solo()) is None
    ):
        return answer
    return replace(answer, predictions=answer.predictions.without_interval(NOT_HERE))
