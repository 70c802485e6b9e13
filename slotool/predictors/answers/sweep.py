"""Predictions over a range of one fact, each by the predictor for its value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from slotool.errors import ArgumentError
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
# Share of a latency that is estimated from which on nothing of the network could be timed.
NOTHING_TIMED = 0.99
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
        """Return ``networks`` with each of the sizes or lengths set in its stated input shape.

        Raises ``ArgumentError`` for networks whose shape is not stated, cannot be chosen, or has no such axis.
        """
        parts: list[Any] = [*networks.parts]
        if any(getattr(part, "framework", "") not in CHOSEN for part in parts):
            raise ArgumentError("sweep", f"the {self.fact} of models alone can be chosen, not of graphs")
        lacking = next((part for part in parts if not part.input_shape), None)
        if lacking is not None:
            name = getattr(lacking, "name", "the model")
            raise ArgumentError(
                "sweep",
                f"which axis of {name} is its {self.fact}? Say the shape of one example with --input-shape "
                "(input_shape= in Python), where any number stands for what is swept",
            )
        return [
            replace(networks, parts=[replace(part, input_shape=self._shape(part, value)) for part in parts])
            for value in self.values
        ]

    def _shape(self, part: Any, value: int) -> Any:
        """Return the input shape of ``part`` with the sides of images, or lengths of sequences, set to ``value``.

        Inputs of another length than the first sequence keep it.
        """
        shape = part.input_shape
        by_name = dict(shape) if isinstance(shape, Mapping) else {"": shape}
        length = next((sizes[0] for sizes in by_name.values() if len(sizes) in (1, 2)), None)
        changed: dict[str, tuple[int, ...]] = {}
        for name, sizes in by_name.items():
            if self.fact == LENGTH and len(sizes) in (1, 2) and sizes[0] == length:
                changed[name] = (value, *sizes[1:])
            elif self.fact == SIZE and len(sizes) >= 3:
                channels_last = part.framework == "keras"
                changed[name] = (*sizes[:-3], value, value, sizes[-1]) if channels_last else (*sizes[:-2], value, value)
        if not changed:
            example = "an image such as 3,224,224" if self.fact == SIZE else "a sequence such as 128, or 128,64"
            raise ArgumentError("sweep", f"--input-shape is {shape}, but a {self.fact} is that of {example}")
        shapes = {**by_name, **changed}
        return shapes if isinstance(shape, Mapping) else shapes[""]


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
    ``latency_s`` is NaN and ``why_not`` the reason; ``graph`` is None if that lies in the network.
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
    predictions: Predictions | None = None
    why_not: str | None = None

    @classmethod
    def of(cls, value: int, chosen: Chosen, networks: Sequence[Captured]) -> Self:
        graphs = [network.graph for network in networks if network.graph is not None]
        chosen = chosen.in_format_of(graphs)
        trained = chosen.opened.require_solo()
        predictions = trained.predict(graphs) if graphs else None
        if predictions is not None and machine_differences(trained) is not None:
            predictions = predictions.without_interval(NOT_HERE)
        return cls(value, chosen, trained.setting.batch_size, networks, predictions)

    @property
    def untimed(self) -> list[bool]:
        """Flags of the predictions: True if nothing of the network could be timed though operators are."""
        from slotool.predictors.answers.measured_here import MeasuredPredictor

        assert self.predictions is not None
        trained = self.chosen.opened.require_solo()
        if not (isinstance(trained, MeasuredPredictor) and trained.measures):
            return [False] * len(self.predictions.latency_s)
        return [share > NOTHING_TIMED for share in self.predictions.estimated]

    def points(self, names: Sequence[str], slo_s: float | None) -> Iterator[SweepPoint]:
        from slotool.predictors.trained.explanation import BatchScaledPredictor

        rows, predictions = itertools.count(), self.predictions
        trained = self.chosen.opened.require_solo()
        untimed = [] if predictions is None else self.untimed
        chances = None if slo_s is None or predictions is None else trained.probability_within(predictions, slo_s)
        for name, network in zip(names, self.networks, strict=True):
            point = SweepPoint(self.value, name, self.batch_size, network.graph)
            why_not = self.why_not if network.error is None else str(network.error)
            if network.graph is not None and predictions is not None:
                at = next(rows)
                if untimed[at]:
                    point, why_not = replace(point, graph=None), predictions.outside[at]
                else:
                    point = replace(
                        point,
                        latency_s=float(predictions.latency_s[at]),
                        low_s=float(predictions.low_s[at]),
                        high_s=float(predictions.high_s[at]),
                        probability=math.nan if chances is None else float(chances[at]),
                        no_interval=predictions.no_interval[at],
                        outside=predictions.outside[at],
                        learnt=not isinstance(trained, BatchScaledPredictor),
                    )
            yield replace(point, why_not=why_not)


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
    swept = {BATCH: "batch_size", THREADS: "threads"}.get(axis.fact)
    if swept and facts[swept] is not None:
        raise ArgumentError("sweep", f"it sweeps what --{swept.replace('_', '-')} fixes; leave one out")
    chosen_at: dict[int, Chosen] = {}
    errors: dict[int, ArgumentError] = {}
    with short_phase(sources.reporter, "opening the predictor"):
        for value in axis.values:
            facts_here = {**facts, swept: value} if swept else {**facts}
            size = facts_here.pop("batch_size")
            try:
                chosen, rest = chosen_predictor(predictor, sources, measure=measure, **facts_here)
                chosen_at[value] = chosen.of_setting(scaling=True, **rest, batch_size=size)
            except ArgumentError as error:
                # The axis set this argument, not the user.
                errors[value] = ArgumentError("sweep", error.problem) if error.argument == swept else error
    if not chosen_at:
        raise next(iter(errors.values()))
    variants = axis.reshaped(sources) if axis.fact in SHAPES else [sources]
    with sources.capturing(len(variants)) as steps:
        captured = [list(variant.captured(limits, steps)) for variant in variants]
    if all(network.graph is None for networks in captured for network in networks):
        reasons = {network.name: network.error for networks in reversed(captured) for network in networks}
        raise sources.not_captured({name: error for name, error in reasons.items() if error is not None})
    networks_at = dict(zip(axis.values, captured if axis.fact in SHAPES else captured * len(axis.values), strict=True))
    first = next(iter(chosen_at.values()))
    answers = []
    for value, networks in networks_at.items():
        if value in chosen_at:
            answers.append(Answer.of(value, chosen_at[value], networks))
        else:
            size = value if axis.fact == BATCH else facts["batch_size"] or 1
            answers.append(Answer(value, first, size, networks, why_not=errors[value].problem))
    return answers
