"""Learn Node Activators, confidence tables and their calibration for a trained network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from slotool.data import Dataset, LabelSets, MultiLabelDataset
from slotool.elastic.activators.activator import Activator, activity, layer_input, node_count
from slotool.elastic.activators.confidence import (
    DEFAULT_THRESHOLDS,
    MAX_THRESHOLDS,
    CalibrationExamples,
    GridResults,
    ThresholdCalibration,
)
from slotool.elastic.activators.expectation import Expectation
from slotool.elastic.activators.full_outputs import SHARPNESSES, FullOutputs, chunks
from slotool.elastic.activators.grid_evaluation import evaluate_grid, in_chunks, only_output
from slotool.elastic.activators.importance import NodeLists, NodeScores
from slotool.elastic.activators.measure_selection import select_measure
from slotool.elastic.activators.mlp import MLP
from slotool.elastic.activators.rankers.ranker import MAX_LISTS, Ranker, bucket_entropy
from slotool.elastic.activators.rankers.registry import RANKERS
from slotool.elastic.activators.slo_nn import SloNN
from slotool.errors import InputError

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
# The grid where the output layer alone is activated: node counts from the least up by the factor, to the most or to a
# share, whichever is less.
MIN_NODES, MAX_NODES, GRID_FACTOR, MAX_SHARE = 8, 4_096, 2**0.5, 0.12
TABLES = 2
# Tables together may take this share of the network's bytes (slo-aware-neural-networks, §3.4).
TABLE_BYTES_SHARE = 0.10
# A ranker of its own weight, unlike a hash, may take this share of that.
RANKER_BYTES_SHARE = 0.25
# A layer gets an activator when it does this share of the work, an output layer only when it has many classes.
MIN_WORK_SHARE = 0.05
MIN_CLASSES_TO_RANK = 256
MIN_TRAINING_EXAMPLES = 100
MIN_VALIDATION_EXAMPLES = 50
# Bits beyond which the mean bucket would hold fewer training examples than this are not chosen by themselves.
EXAMPLES_PER_BUCKET = 32
# Measures of confidence are compared by the mean k at which this much validation accuracy is lost.
ALLOWED_LOSS = 0.002
# From this size on a network can afford many calibrated thresholds.
LARGE_NETWORK_BYTES = 4 << 20

Progress = Callable[[], None]
AnyData = Dataset | MultiLabelDataset


@dataclass(frozen=True)
class TableSettings:
    """``shares``: the k grid, fractions of a layer's nodes in (0, 1), ascending; None: as the network's shape asks.

    ``bits`` None: as the data allow. ``allowed_loss``: at which rankers, lists and measures of confidence are compared.
    """

    shares: tuple[float, ...] | None = None
    tables: int = TABLES
    bits: int | None = None
    seed: int = 0
    allowed_loss: float = ALLOWED_LOSS

    def __post_init__(self) -> None:
        if not 0 <= self.allowed_loss <= 1:
            raise InputError(f"the allowed loss {self.allowed_loss} must be a share of answers from 0 to 1")
        if self.shares is None:
            return
        inside = all(0 < share < 1 for share in self.shares)
        if not self.shares or not inside or list(self.shares) != sorted(set(self.shares)):
            raise InputError(
                "k must be ascending fractions between 0 and 1, both excluded; the full network is always added"
            )


@dataclass(frozen=True)
class TableSubject:
    """A network and the data its tables are learnt from, with what several rankers need of them, computed once.

    Raises ``InputError`` for data of another shape, too little or bad data.
    """

    mlp: MLP
    data: AnyData
    progress: Progress = lambda: None

    def __post_init__(self) -> None:
        _check(self.mlp, self.data)

    @cached_property
    def activated(self) -> list[int]:
        """The layers that get an activator."""
        work = np.array([layer.work for layer in self.mlp.layers], dtype=float)
        work[0] *= _density(self.data.train.x)
        hidden = len(work) - 1
        worth = work >= MIN_WORK_SHARE * work.sum()
        # Of sparse inputs a layer reads the columns of those that are not zero, and would whatever nodes it dropped.
        dense = isinstance(self.data.train.x, np.ndarray)
        layers = [at for at in range(hidden) if worth[at] and (at or dense)]
        if worth[hidden] and self.mlp.classes >= MIN_CLASSES_TO_RANK:
            layers.append(hidden)
        if not layers:
            raise InputError("no layer is large enough and has ReLU or many classes, so tables would save no work")
        return layers

    def shares(self, settings: TableSettings) -> tuple[float, ...]:
        """The k grid."""
        if settings.shares is not None:
            return settings.shares
        units = self.mlp.classes
        if self.activated != [len(self.mlp.layers) - 1]:
            return SHARES
        most = min(MAX_NODES, MAX_SHARE * units)
        steps = int(np.log(max(2.0, most / MIN_NODES)) / np.log(GRID_FACTOR) + 1e-9)
        counts = np.unique(np.round(MIN_NODES * GRID_FACTOR ** np.arange(steps + 1)))
        return tuple((counts / units).tolist())

    def reporting(self, progress: Progress) -> TableSubject:
        """The same, calling ``progress``."""
        return replace(self, progress=progress)

    def sampled(self, training: int, validation: int, seed: int) -> TableSubject:
        """A random part, in its old order; it shares nothing that was computed."""
        rng = np.random.default_rng(seed)
        data: Any = self.data
        train, held_out = (
            split.take(np.sort(rng.permutation(len(split))[:most]))
            for split, most in ((data.train, training), (data.validation, validation))
        )
        return TableSubject(self.mlp, replace(data, train=train, validation=held_out), self.progress)

    @property
    def train(self) -> Any:
        """float32 [n, inputs], an array or CSR."""
        return flat(self.data.train.x)

    @cached_property
    def last_inputs(self) -> np.ndarray:
        """float32 [n, inputs of the output layer], of training examples."""
        last = len(self.mlp.layers) - 1
        return in_chunks(self.train, lambda x: layer_input(self.mlp, {}, x, 1.0, last))

    @cached_property
    def full(self) -> FullOutputs:
        return FullOutputs.of(self.mlp.layers[-1].view, self.last_inputs, self.progress)

    def activations(self, layer: int, sharpness: float = SHARPNESSES[0]) -> Any:
        """What the nodes of ``layer`` are ranked by, [n, units]: their output; at the output layer the softmax."""
        if layer == len(self.mlp.layers) - 1:
            return self.full.scores(sharpness)
        return in_chunks(self.train, lambda x: activity(self.mlp, x, layer))

    def correct(self, results: GridResults, split: str) -> np.ndarray:
        """bool [n, shares + 1]: whether the first label is right, or one of the right ones."""
        return right(results.labels, getattr(self.data, split).y)

    def accuracy(self, results: GridResults) -> np.ndarray:
        """float64 [shares + 1]: what validation accuracy to count on at each k, whose answers there are ``results``."""
        correct = self.correct(results, "validation")
        expected = Expectation.learn(results, correct).of(results)
        return ThresholdCalibration.measure(np.zeros((len(correct), 1)), correct, 2, expected).by_point

    @property
    def steps(self) -> int:
        """How often ``full`` calls progress."""
        needed = len(self.mlp.layers) - 1 in self.activated
        return sum(1 for _ in chunks(len(self.data.train), self.mlp.classes)) if needed else 0


def right(labels: np.ndarray, y: np.ndarray | LabelSets) -> np.ndarray:
    """bool [n, m]: whether each of ``labels`` [n, m] is the class of its example, or one of its labels."""
    found: np.ndarray = labels == y[:, None] if isinstance(y, np.ndarray) else y.contain(labels)
    return found


def flat(x: Any) -> Any:
    """[n, inputs]: examples of any shape flattened; CSR as it is."""
    return x.reshape(len(x), -1) if isinstance(x, np.ndarray) else x


def build_steps(subject: TableSubject, settings: TableSettings) -> int:
    """How often ``build`` calls progress, besides the ``steps`` of its subject."""
    shares = subject.shares(settings)
    seen = sum(len(shares) if layer and not _first(subject, layer) else 1 for layer in subject.activated)
    return seen + len(shares)


@dataclass(frozen=True)
class Learnt:
    """What one ranker makes of a subject's layers, before anything is known of single inputs.

    ``entropy``: by layer, bits of its bucket occupancy. ``allowed_loss``: as in ``TableSettings``.
    """

    ranker: str
    shares: tuple[float, ...]
    activators: dict[int, Activator]
    entropy: dict[int, float]
    allowed_loss: float = ALLOWED_LOSS


def build(name: str, subject: TableSubject, ranker: str, settings: TableSettings) -> SloNN:
    """An SLO-aware network: lists learnt on the training split, calibrated on the validation split.

    Same seed, same tables. Raises ``InputError`` for settings the network cannot carry.
    """
    return with_confidence(name, subject, learn(subject, ranker, settings), settings.seed)


def learn(subject: TableSubject, ranker: str, settings: TableSettings) -> Learnt:
    """Algorithm 1 by the ranker called ``ranker``.

    Layers are learnt front to back: the keys of each see inputs thinned by the activators before it, at every k of
    the grid, while nodes are scored by full activations of full inputs. Errors as in ``build``.
    """
    if ranker not in RANKERS:
        raise InputError(f"no ranker called {ranker!r}; there are {', '.join(RANKERS)}")
    kind, shares = RANKERS[ranker], subject.shares(settings)
    tables = min(settings.tables, kind.max_tables)
    bits = settings.bits or _fitting_bits(subject, kind, shares, tables)
    activators: dict[int, Activator] = {}
    entropy: dict[int, float] = {}
    for layer in subject.activated:
        rng = np.random.default_rng([settings.seed, layer])
        learner = _Layer(subject, activators, layer, shares, settings)
        activators[layer], entropy[layer] = learner.learn(kind, tables, bits, rng)
    cut = _cut_to_budget(subject.mlp, activators, shares)
    return Learnt(ranker, shares, cut, entropy, settings.allowed_loss)


def with_confidence(name: str, subject: TableSubject, learnt: Learnt, seed: int) -> SloNN:
    """Try every k; learn confidence by each measure and keep the one that saves most validation work at the allowed
    loss; count on validation examples what may be promised."""
    mlp, shares, activators = subject.mlp, learnt.shares, learnt.activators
    full = subject.full if only_output(mlp, activators) else None
    trained = calibration_examples(subject, activators, shares, "train", full, subject.progress)
    held_out = calibration_examples(subject, activators, shares, "validation")
    rows, levels = activators[min(activators)].lists.rows, many_levels(mlp)
    selected = select_measure(trained, held_out, rows, shares, levels, learnt.allowed_loss, seed)
    sparse = not isinstance(subject.data.train.x, np.ndarray)
    tables = (activators, selected.confidence, selected.calibration, learnt.entropy)
    return SloNN(name, mlp, shares, *tables, measure=selected.measure, mean_k=selected.mean_k, sparse=sparse)


def many_levels(mlp: MLP) -> int:
    """How many thresholds are calibrated."""
    return MAX_THRESHOLDS if mlp.nbytes >= LARGE_NETWORK_BYTES else DEFAULT_THRESHOLDS


def calibration_examples(
    subject: TableSubject,
    activators: dict[int, Activator],
    shares: tuple[float, ...],
    split: str,
    full: FullOutputs | None = None,
    progress: Progress = lambda: None,
) -> CalibrationExamples:
    """What the inputs of a split have to teach. ``full``: the full network's answers to them, if they are known."""
    x = flat(getattr(subject.data, split).x)
    results = evaluate_grid(subject.mlp, activators, shares, x, full, progress)
    buckets = _first_buckets(subject.mlp, activators, min(activators), x)
    return CalibrationExamples(buckets, results, subject.correct(results, split))


@dataclass(frozen=True)
class _Layer:
    """One layer about to get its activator, behind those that have theirs."""

    subject: TableSubject
    before: dict[int, Activator]
    at: int
    shares: tuple[float, ...]
    settings: TableSettings

    def learn(self, kind: type[Ranker], tables: int, bits: int, rng: np.random.Generator) -> tuple[Activator, float]:
        """Algorithm 1, and the entropy of the buckets in bits."""
        layer = self.subject.mlp.layers[self.at].view
        scores, seen = self.subject.activations(self.at), self._seen()
        # Inputs at several k are fitted as one; a single k needs no copy.
        inputs = seen[0] if len(seen) == 1 else np.concatenate(seen)
        ranker = kind.fit(layer, inputs, scores, tables=tables, bits=bits, rng=rng)
        keys = [ranker.keys(layer, part) for part in seen]
        entropy = bucket_entropy(np.concatenate(keys), ranker.buckets)
        alone = self.subject.activated == [len(self.subject.mlp.layers) - 1]
        if not alone:
            return self._ranked(ranker, keys, scores), entropy
        candidates = [self._ranked(ranker, keys, self.subject.activations(self.at, s)) for s in SHARPNESSES]
        return min(candidates, key=self._nodes_needed), entropy

    def _ranked(self, ranker: Ranker, keys: list[np.ndarray], scores: Any) -> Activator:
        layer = self.subject.mlp.layers[self.at].view
        sums = NodeScores(ranker.tables, ranker.buckets, layer.units)
        for part in keys:
            sums.add(
                part, ranker.considered(layer, part, scores, np.random.default_rng([self.settings.seed, self.at, 1]))
            )
        return Activator(ranker, NodeLists.rank(sums, node_count(layer.units, self.shares[-1])))

    def _nodes_needed(self, activator: Activator) -> tuple[float, float]:
        """The least k that loses no more validation accuracy than allowed; then, how much all of them lose."""
        subject = self.subject
        cut = _cut_to_budget(subject.mlp, {self.at: activator}, self.shares)
        results = evaluate_grid(subject.mlp, cut, self.shares, flat(subject.data.validation.x))
        accuracy = subject.accuracy(results)
        enough = accuracy >= accuracy[-1] - self.settings.allowed_loss
        return float(np.append(self.shares, 1.0)[enough.argmax()]), -float(accuracy.mean())

    def _seen(self) -> list[Any]:
        """The layer's inputs at every k of the grid; once where nothing before it thins them."""
        mlp, train = self.subject.mlp, self.subject.train
        layer, seen = mlp.layers[self.at], []
        for share in self.shares if self.before else (1.0,):
            if self.at == 0:
                seen.append(layer.seen(train))
            elif not self.before and self.at == len(mlp.layers) - 1:
                seen.append(self.subject.last_inputs)
            else:
                seen.append(in_chunks(train, partial(self._seen_at, share)))
            self.subject.progress()
        return seen

    def _seen_at(self, share: float, x: Any) -> Any:
        return self.subject.mlp.layers[self.at].seen(layer_input(self.subject.mlp, self.before, x, share, self.at))


def _first(subject: TableSubject, layer: int) -> bool:
    return layer == subject.activated[0]


def _check(mlp: MLP, data: AnyData) -> None:
    if data.input_shape != mlp.input_shape or data.classes != mlp.classes:
        raise InputError(
            f"the network takes inputs {mlp.input_shape} and knows {mlp.classes} classes, "
            f"but {data.name} has {data.input_shape} and {data.classes}"
        )
    for part, least in (("train", MIN_TRAINING_EXAMPLES), ("validation", MIN_VALIDATION_EXAMPLES)):
        split = getattr(data, part)
        if len(split) < least:
            raise InputError(f"{data.name}: {len(split)} {part} examples are too few for tables; {least} are needed")
        if not np.isfinite(split.x if isinstance(split.x, np.ndarray) else split.x.data).all():
            raise InputError(f"{data.name}: the {part} examples hold NaN or infinite values")


def _density(x: Any) -> float:
    """Share of inputs that are not zero: 1 for an array, whose zeros cost work too where rows are read."""
    return 1.0 if isinstance(x, np.ndarray) else x.nnz / np.prod(x.shape, dtype=float)


def _fitting_bits(subject: TableSubject, kind: type[Ranker], shares: tuple[float, ...], tables: int) -> int:
    """Most bits whose lists fit the budget and whose buckets hold enough examples.

    Lists are as long as the largest k where hidden layers have them; at a lone output layer they may be cut.
    """
    mlp, budget = subject.mlp, TABLE_BYTES_SHARE * subject.mlp.nbytes
    layers = [mlp.layers[at].view for at in subject.activated]
    alone = subject.activated == [len(mlp.layers) - 1]
    longest = shares[-1] if not alone else shares[-1] / 16
    list_bytes = sum(longest * layer.units * np.min_scalar_type(layer.units - 1).itemsize + 2 for layer in layers)
    bytes_per_bucket = tables * (list_bytes + 4 * len(shares))
    affordable = min(budget / bytes_per_bucket, len(subject.data.train) / EXAMPLES_PER_BUCKET, MAX_LISTS / tables)
    fewest_nodes = min(layer.units for layer in layers)
    bits = max(1, min(int(np.log2(max(affordable, 2))), fewest_nodes))
    while bits > 1 and sum(kind.bytes_needed(layer, tables, bits) for layer in layers) > RANKER_BYTES_SHARE * budget:
        bits -= 1
    return bits


def _cut_to_budget(mlp: MLP, activators: dict[int, Activator], shares: Sequence[float]) -> dict[int, Activator]:
    """Shorten all lists by one factor, so that all tables together stay within their share of the network's bytes."""
    rows = activators[min(activators)].lists.rows
    fixed = rows * len(shares) * np.dtype(np.float32).itemsize
    fixed += sum(a.nbytes - a.lists.lists.nbytes for a in activators.values())
    lists = sum(a.lists.lists.nbytes for a in activators.values())
    fixed += ThresholdCalibration.largest_nbytes(len(shares), many_levels(mlp))
    factor = min(1.0, max(0.0, TABLE_BYTES_SHARE * mlp.nbytes - fixed) / lists)
    return {
        layer: Activator(a.ranker, a.lists.cut(max(1, int(factor * a.lists.lists.shape[1]))))
        for layer, a in activators.items()
    }


def _first_buckets(mlp: MLP, activators: dict[int, Activator], first: int, x: Any) -> np.ndarray:
    layer = mlp.layers[first]
    return in_chunks(x, lambda part: activators[first].buckets(layer, layer_input(mlp, {}, part, 1.0, first)))
