"""Choose the ranker of an SLO-NN by the bytes that a query reads at the allowed loss.

Every candidate learns its lists. Those that read little at a fixed k are completed, and the one that reads least with k
chosen per input is kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slotool.elastic.slo_nn.activator import Activator
from slotool.elastic.slo_nn.build import (
    ALLOWED_LOSS,
    MIN_TRAINING_EXAMPLES,
    MIN_VALIDATION_EXAMPLES,
    TABLE_BYTES_SHARE,
    AnyData,
    Learnt,
    TableSettings,
    TableSubject,
    build_steps,
    flat,
    learn,
    right,
    with_confidence,
)
from slotool.elastic.slo_nn.grid_evaluation import evaluate_grid
from slotool.elastic.slo_nn.model import SloNN
from slotool.tables import FULL, OperatingPoint

# Candidates that read at most CLOSE times the bytes of the best at a fixed k are compared with k chosen per input too,
# which saves more for some rankers than for others.
CLOSE = 1.5
# Merging the lists of several tables, each node once, costs 5 to 10 ns per node more than reading one list (tate-16k,
# 1,448 nodes: 16 µs with two tables, 1.5 µs with one): the time in which about this many bytes are read.
MERGED_NODE_BYTES = 256
# A plan's build time is extrapolated from two builds: with TIMED_EXAMPLES training examples, and TIMED_PART of them.
TIMED_EXAMPLES, TIMED_PART = 4_096, 0.25


@dataclass(frozen=True)
class RankerCandidate:
    """The cost of one ranker, at the least k of the grid whose estimated loss is allowed.

    ``ranker``: its name. ``point``: key of that k, or ``full``. ``nodes``: computed there in all activated layers.
    ``lookup_bytes``: bytes read for the keys, plus the cost of merging lists expressed as bytes. ``read_bytes``:
    ``lookup_bytes`` and the float32 weights of ``nodes``. ``accuracy``, ``mean_accuracy``, ``full_accuracy``: estimated
    validation accuracy at ``point``, averaged over the grid, and of the full network. ``examples``: number of training
    examples. ``chosen_bytes``: mean bytes per validation example with k chosen per input; None if that was not tried.
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
        """The cost of ``learnt``, evaluated on the validation split of ``subject``."""
        x, full = flat(subject.data.validation.x), subject.held_out_full
        results = evaluate_grid(subject.mlp, learnt.activators, learnt.shares, x, full)
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
                lookup_bytes += activator.ranker.lookup_bytes(layer) + round(count * _merged_bytes(activator))
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
        """A copy with ``chosen_bytes`` of ``model``, the SLO-NN made with this ranker."""
        mean_k, layers = model.mean_k[model.measure], [model.mlp.layers[at] for at in model.activators]
        pairs = list(zip(model.activators.values(), layers, strict=True))
        rows = sum(layer.units * (layer.node_bytes + (_merged_bytes(a) if mean_k < 1 else 0)) for a, layer in pairs)
        keys = sum(a.ranker.lookup_bytes(layer) for a, layer in pairs)
        return replace(self, chosen_bytes=mean_k * rows + (keys if mean_k < 1 else 0))


def _merged_bytes(activator: Activator) -> int:
    """Cost of taking one node from the lists, expressed as bytes read."""
    return MERGED_NODE_BYTES if activator.ranker.tables > 1 else 0


def choose(
    name: str, subject: TableSubject, rankers: Sequence[str], settings: TableSettings
) -> tuple[SloNN, list[RankerCandidate]]:
    """Build the SLO-NN ``name`` with the best of ``rankers``, and return it with the costs of all of them.

    The best reads the fewest bytes per query at the allowed loss with k chosen per input; of equals it has the higher
    mean validation accuracy. Rankers that are not ``CLOSE`` to the best at a fixed k are left out. The same seed gives
    the same choice. Raises ``InputError`` as ``build`` does.

    Every candidate learns from all training examples, because a sample misjudges rankers of many buckets: from 16,384
    of the 73,741 examples of tibkat-words-196k ``clusters`` makes a quarter of the buckets and loses to a hash that
    needs five times its nodes. The full network's outputs take longest and are computed once.
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
    """How often ``choose`` calls ``subject.progress``."""
    return subject.steps + len(rankers) * build_steps(subject, settings)


@dataclass(frozen=True)
class BuildPlan:
    """What a build would do, and its predicted time on this machine under its present load.

    ``layers``: number of nodes of each activated layer, by name. ``k``: the k grid. ``rankers``: those to be tried.
    ``examples``: size of the training split. ``most_table_bytes``: upper limit of the tables' bytes. ``predicted_s``:
    build time in seconds.
    """

    layers: dict[str, int]
    k: tuple[float, ...]
    rankers: tuple[str, ...]
    examples: int
    most_table_bytes: int
    predicted_s: float


def plan(subject: TableSubject, rankers: Sequence[str], settings: TableSettings) -> BuildPlan:
    """Plan ``choose``. Two small builds are timed and extrapolated by a power law of the number of examples."""
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


def trial(subject: TableSubject, ranker: str, settings: TableSettings) -> SloNN:
    """A model whose tables are learnt on few examples: as fast as ``choose`` makes it, and less accurate."""
    return choose("trial", _part(subject, settings, TIMED_EXAMPLES), (ranker,), settings)[0]


def _part(subject: TableSubject, settings: TableSettings, examples: int) -> TableSubject:
    examples = min(examples, len(subject.data.train))
    validation = len(subject.data.validation) * examples // len(subject.data.train)
    least = (max(MIN_TRAINING_EXAMPLES, examples), max(MIN_VALIDATION_EXAMPLES, validation))
    return subject.sampled(*least, settings.seed)


def _time(subject: TableSubject, rankers: Sequence[str], settings: TableSettings, examples: int) -> float:
    part = _part(subject, settings, examples)
    started = time.perf_counter()
    choose("timed", part, rankers, settings)
    return time.perf_counter() - started


# What int8 weights may cost on top of ``ALLOWED_LOSS``.
QUANTIZATION_LOSS = 0.0003


def with_weight_dtype(
    model: SloNN, data: AnyData, weight_dtype: str = "auto", allowed_loss: float = ALLOWED_LOSS
) -> SloNN:
    """``model`` with weights of ``weight_dtype``: float32, int8 or auto. Promises are counted with those weights.

    auto takes int8 where the output layer has an activator, and validation accuracy, with k chosen per input at the
    allowed loss, falls by at most ``QUANTIZATION_LOSS``. A model that was loaded and not just built promises no k in
    int8. Raises ``InputError`` for int8 where the output layer has no activator.
    """
    if weight_dtype == "float32" or (weight_dtype == "auto" and len(model.mlp.layers) - 1 not in model.activators):
        return model
    quantized = model.at_int8(calibration=model.calibration)
    split = data.validation
    if weight_dtype == "auto":
        target = float(model.calibration.by_point[-1]) - allowed_loss
        own, its = (right(m.top(split.x, accuracy=target)[0], split.y).mean() for m in (model, quantized))
        if its < own - QUANTIZATION_LOSS:
            return model
    if model.calibration.estimates is None:
        return model.at_int8()
    labels = [quantized.top(split.x, point=point)[0] for point in quantized.points]
    return model.at_int8(calibration=model.calibration.counted(right(np.concatenate(labels, axis=1), split.y)))
