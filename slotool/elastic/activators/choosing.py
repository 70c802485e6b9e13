"""Which ranker: each candidate learns its lists, and of the best at a fixed k the one that reads least when k is chosen
per input is taken."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.build import (
    MIN_TRAINING_EXAMPLES,
    MIN_VALIDATION_EXAMPLES,
    TABLE_BYTES_SHARE,
    Learnt,
    TableSettings,
    TableSubject,
    build_steps,
    flat,
    learn,
    with_confidence,
)
from slotool.elastic.activators.grid_evaluation import evaluate_grid
from slotool.elastic.activators.slo_nn import SloNN
from slotool.tables import FULL, OperatingPoint

# Candidates that read up to so many times what the best does at a fixed k are compared with k chosen per input: that
# saves more for one than for another.
CLOSE = 1.5
# To take a node from the lists of several tables, each node once, takes as long as to read about so many bytes: some 5
# to 10 ns more than from one list (tate-16k, 1,448 nodes: 16 µs by two tables, 1.5 µs by one).
MERGED_NODE_BYTES = 256
# What a plan's time is extrapolated from: so many training examples, and this part of them.
TIMED_EXAMPLES, TIMED_PART = 4_096, 0.25


@dataclass(frozen=True)
class RankerCandidate:
    """What one ranker needs at the least k of the grid that is estimated to lose no more than allowed.

    ``point``: that k, or ``full``; ``nodes``: computed there in all activated layers; ``lookup_bytes``: read for the
    keys, and what merging several tables' lists takes, as bytes; ``read_bytes``: both, the nodes as float32
    rows; ``accuracy``: there, ``mean_accuracy``: over the grid, ``full_accuracy``: all on validation examples;
    ``examples``: training examples it was built from.
    ``chosen_bytes``: the mean over validation examples when k is chosen per input, None where that was not tried.
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
    chosen_bytes: float | None = None

    @classmethod
    def of(cls, subject: TableSubject, learnt: Learnt) -> RankerCandidate:
        results = evaluate_grid(subject.mlp, learnt.activators, learnt.shares, flat(subject.data.validation.x))
        accuracy = subject.accuracy(results)
        at = int((accuracy >= accuracy[-1] - learnt.allowed_loss).argmax())
        share = (*learnt.shares, 1.0)[at]
        nodes = row_bytes = lookup_bytes = 0
        for index, activator in learnt.activators.items():
            layer = subject.mlp.layers[index]
            count = activator.count(layer, share)
            nodes += count
            row_bytes += count * layer.node_bytes
            if share < 1:
                lookup_bytes += activator.ranker.lookup_bytes(layer.view) + round(count * _merged_bytes(activator))
        return cls(
            ranker=learnt.ranker,
            point=(OperatingPoint.of(k=share) if share < 1 else FULL).key,
            nodes=nodes,
            lookup_bytes=lookup_bytes,
            read_bytes=row_bytes + lookup_bytes,
            accuracy=float(accuracy[at]),
            mean_accuracy=float(accuracy[:-1].mean()),
            full_accuracy=float(accuracy[-1]),
            examples=len(subject.data.train),
        )

    def calibrated(self, model: SloNN) -> RankerCandidate:
        """The same, with what ``model``, made of it, reads when k is chosen per input."""
        mean_k, layers = model.mean_k[model.measure], [model.mlp.layers[at] for at in model.activators]
        pairs = list(zip(model.activators.values(), layers, strict=True))
        rows = sum(layer.units * (layer.node_bytes + (_merged_bytes(a) if mean_k < 1 else 0)) for a, layer in pairs)
        keys = sum(a.ranker.lookup_bytes(layer.view) for a, layer in pairs)
        return replace(self, chosen_bytes=mean_k * rows + (keys if mean_k < 1 else 0))


def _merged_bytes(activator: Activator) -> int:
    """What taking a node from the lists costs, as bytes read."""
    return MERGED_NODE_BYTES if activator.ranker.tables > 1 else 0


def choose(
    name: str, subject: TableSubject, rankers: Sequence[str], settings: TableSettings
) -> tuple[SloNN, list[RankerCandidate]]:
    """The ranker that reads the fewest bytes per query at the allowed loss, built; and how all of them compare.

    First at a fixed k; those that come ``CLOSE`` to the best there, with k chosen per input. Of equals the one with the
    higher mean validation accuracy. Every candidate learns from all training examples, because a sample misjudges
    those with many buckets: of 16,384 of tibkat-words-196k's 73,741 examples ``clusters`` makes a quarter of the
    buckets, whose lists miss labels, and loses to a hash that needs five times its nodes. What takes longest, the full
    network's answers, is computed once for all of them. Same seed, same choice.
    """
    learnt = {ranker: learn(subject, ranker, settings) for ranker in rankers}
    candidates = [RankerCandidate.of(subject, learnt[ranker]) for ranker in rankers]
    enough = CLOSE * min(candidate.read_bytes for candidate in candidates)
    built: dict[str, SloNN] = {}
    for at, candidate in enumerate(candidates):
        if candidate.read_bytes <= enough:
            built[candidate.ranker] = with_confidence(name, subject, learnt[candidate.ranker], settings.seed)
            candidates[at] = candidate.calibrated(built[candidate.ranker])
        else:
            for _ in subject.shares(settings):
                subject.progress()
    tried = [candidate for candidate in candidates if candidate.chosen_bytes is not None]
    best = min(tried, key=lambda c: (c.chosen_bytes, -c.mean_accuracy))
    return built[best.ranker], candidates


def steps(subject: TableSubject, rankers: Sequence[str], settings: TableSettings) -> int:
    """How often ``choose`` calls its progress."""
    return subject.steps + len(rankers) * build_steps(subject, settings)


@dataclass(frozen=True)
class BuildPlan:
    """What building would do, and about how long it would take on this machine as it is now.

    ``layers``: node counts of the activated layers by name; ``k``: the grid; ``examples``: of the training split;
    ``most_table_bytes``: what tables may take.
    """

    layers: dict[str, int]
    k: tuple[float, ...]
    rankers: tuple[str, ...]
    examples: int
    most_table_bytes: int
    predicted_s: float


def plan(subject: TableSubject, rankers: Sequence[str], settings: TableSettings) -> BuildPlan:
    """The plan; its time is extrapolated, by a power of the number of examples, from choosing on two small samples."""
    n = len(subject.data.train)
    most = min(n, TIMED_EXAMPLES) if n > 2 * TIMED_EXAMPLES else n // 2
    _time(subject, rankers[:1], settings, int(TIMED_PART * most))  # loads and compiles what it needs
    part, whole = (_time(subject, rankers, settings, int(share * most)) for share in (TIMED_PART, 1.0))
    power = float(np.clip(np.log(whole / part) / np.log(1 / TIMED_PART), 0.5, 1.5))
    return BuildPlan(
        layers={subject.mlp.layers[at].name: subject.mlp.layers[at].units for at in subject.activated},
        k=subject.shares(settings),
        rankers=tuple(rankers),
        examples=n,
        most_table_bytes=int(TABLE_BYTES_SHARE * subject.mlp.nbytes),
        predicted_s=whole * float((n / most) ** power),
    )


def _time(subject: TableSubject, rankers: Sequence[str], settings: TableSettings, examples: int) -> float:
    validation = len(subject.data.validation) * examples // len(subject.data.train)
    least = (max(MIN_TRAINING_EXAMPLES, examples), max(MIN_VALIDATION_EXAMPLES, validation))
    part = subject.sampled(*least, settings.seed)
    started = time.perf_counter()
    choose("timed", part, rankers, settings)
    return time.perf_counter() - started
