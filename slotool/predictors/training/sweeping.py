"""Predictions over a range of one fact, each by the predictor for its value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError, SlotoolError
from slotool.graphs.capture.networks import Captured, Networks
from slotool.predictors.sweep import BATCH, SHAPES, THREADS, SweepAxis, SweepPoint
from slotool.predictors.training.choice import chosen_predictor
from slotool.predictors.training.chosen import NOT_HERE, Chosen, machine_differences
from slotool.progress import short_phase

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits
    from slotool.predictors.trained.artifact import Predictions


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
