"""Which ranker: each candidate is built on a sample, and the one that reads least at the allowed loss in full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.activators.activator import node_count
from slotool.elastic.activators.build import (
    ALLOWED_LOSS,
    LEAST_TRAINING_EXAMPLES,
    LEAST_VALIDATION_EXAMPLES,
    TABLE_BYTES_SHARE,
    Settings,
    Subject,
    build,
    build_steps,
)
from slotool.elastic.activators.slo_nn import SloNN

# Candidates are compared on at most so many training and validation examples.
SAMPLE_TRAINING, SAMPLE_VALIDATION = 16_384, 8_192
# What a plan's time is extrapolated from: so many training examples, and this part of them.
TIMED_EXAMPLES, TIMED_PART = 4_096, 0.25


@dataclass(frozen=True)
class Candidate:
    """What one ranker needs at the least k of the grid that loses no more validation accuracy than allowed.

    ``point``: that k, or ``full``; ``nodes``: computed there in all activated layers; ``lookup_bytes``: read for the
    keys beside them; ``read_bytes``: both, the nodes as float32 rows; ``accuracy``: there, ``mean_accuracy``: over the
    grid, ``full_accuracy``: all on validation examples; ``examples``: training examples it was built from.
    """

    ranker: str
    point: str
    nodes: int
    lookup_bytes: int
    read_bytes: int
    accuracy: float
    mean_accuracy: float
    full_accuracy: float
    examples: int

    @classmethod
    def of(cls, model: SloNN, examples: int) -> Candidate:
        accuracy = model.calibration.by_point
        at = int((accuracy >= accuracy[-1] - ALLOWED_LOSS).argmax())
        share = (*model.shares, 1.0)[at]
        nodes = row_bytes = lookup_bytes = 0
        for index, activator in model.activators.items():
            layer = model.mlp.layers[index]
            count = max(node_count(layer.units, share), len(activator.ranker.computed_nodes))
            nodes += count
            row_bytes += count * (layer.inputs + 1) * layer.weights.itemsize
            lookup_bytes += activator.ranker.lookup_bytes(layer) if at < len(model.shares) else 0
        return cls(
            ranker=model.ranker,
            point=model.points[at].key,
            nodes=nodes,
            lookup_bytes=lookup_bytes,
            read_bytes=row_bytes + lookup_bytes,
            accuracy=float(accuracy[at]),
            mean_accuracy=float(accuracy[:-1].mean()),
            full_accuracy=float(accuracy[-1]),
            examples=examples,
        )


def choose(name: str, subject: Subject, rankers: Sequence[str], settings: Settings) -> tuple[SloNN, list[Candidate]]:
    """The ranker that reads the fewest bytes per query at the allowed loss, built; and how all of them compare.

    Of equals the one with the higher mean validation accuracy. Where there are several and the data are many, they are
    compared on a sample and only the best is built in full. Same seed, same choice.
    """
    sample = _sample(subject, rankers, settings)
    built, candidates = {}, []
    for ranker in rankers:
        built[ranker] = build(name, sample, ranker, settings)
        candidates.append(Candidate.of(built[ranker], len(sample.data.train)))
    best = min(candidates, key=lambda c: (c.read_bytes, -c.mean_accuracy)).ranker
    return built[best] if sample is subject else build(name, subject, best, settings), candidates


def steps(subject: Subject, rankers: Sequence[str], settings: Settings) -> int:
    """How often ``choose`` calls its progress."""
    more = 0 if _sample(subject, rankers, settings) is subject else 1
    return subject.steps + (len(rankers) + more) * build_steps(subject, settings)


@dataclass(frozen=True)
class Plan:
    """What building would do, and about how long it would take on this machine as it is now.

    ``layers``: node counts of the activated layers by name; ``k``: the grid; ``examples``: of the training split;
    ``compared_on``: training examples the candidates are compared on; ``most_table_bytes``: what tables may take.
    """

    layers: dict[str, int]
    k: tuple[float, ...]
    rankers: tuple[str, ...]
    examples: int
    compared_on: int
    most_table_bytes: int
    predicted_s: float


def plan(subject: Subject, rankers: Sequence[str], settings: Settings) -> Plan:
    """The plan; its time is extrapolated, by a power of the number of examples, from two builds of small samples."""
    n, sample = len(subject.data.train), _sample(subject, rankers, settings)
    most = min(n, TIMED_EXAMPLES) if n > 2 * TIMED_EXAMPLES else n // 2
    taken_s: dict[str, tuple[float, float]] = {}
    _time_build(subject, rankers[0], settings, int(TIMED_PART * most))  # loads and compiles what it needs
    for ranker in rankers:
        part, whole = (_time_build(subject, ranker, settings, int(share * most)) for share in (TIMED_PART, 1.0))
        power = float(np.clip(np.log(whole / part) / np.log(1 / TIMED_PART), 0.5, 1.5))
        taken_s[ranker] = (whole, power)

    def predicted(ranker: str, examples: int) -> float:
        whole, power = taken_s[ranker]
        return float(whole * (examples / most) ** power)

    total = sum(predicted(ranker, len(sample.data.train)) for ranker in rankers)
    if sample is not subject:
        total += max(predicted(ranker, n) for ranker in rankers)
    return Plan(
        layers={subject.mlp.layers[at].name: subject.mlp.layers[at].units for at in subject.activated},
        k=subject.shares(settings),
        rankers=tuple(rankers),
        examples=n,
        compared_on=len(sample.data.train),
        most_table_bytes=int(TABLE_BYTES_SHARE * subject.mlp.nbytes),
        predicted_s=total,
    )


def _time_build(subject: Subject, ranker: str, settings: Settings, examples: int) -> float:
    validation = len(subject.data.validation) * examples // len(subject.data.train)
    least = (max(LEAST_TRAINING_EXAMPLES, examples), max(LEAST_VALIDATION_EXAMPLES, validation))
    part = subject.sampled(*least, settings.seed, alone=True)
    started = time.perf_counter()
    build("timed", part, ranker, settings)
    return time.perf_counter() - started


def _sample(subject: Subject, rankers: Sequence[str], settings: Settings) -> Subject:
    """Where several rankers are compared; the subject itself when there is one, or the data are few."""
    data: Any = subject.data
    if len(rankers) == 1 or len(data.train) <= SAMPLE_TRAINING:
        return subject
    return subject.sampled(SAMPLE_TRAINING, SAMPLE_VALIDATION, settings.seed)
