"""Build an SLO-NN: learn Node Activators, confidence tables and their calibration for a trained network.

Source: slo-aware-neural-networks, Algorithm 1 (lists of important nodes), §3.2 (confidence), §3.4 (table size).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from slotool.data import Dataset, LabelSets, MultiLabelDataset
from slotool.elastic.slo_nn.activator import Activator, NodeLists, NodeScores, layer_input, node_count
from slotool.elastic.slo_nn.calibration import DEFAULT_THRESHOLDS, MAX_THRESHOLDS, ThresholdCalibration
from slotool.elastic.slo_nn.confidence import CalibrationExamples, Expectation, GridResults, select_measure
from slotool.elastic.slo_nn.grid_evaluation import (
    SHARPNESSES,
    FullOutputs,
    chunks,
    evaluate_grid,
    in_chunks,
    only_output,
)
from slotool.elastic.slo_nn.mlp import MLP
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.ranker import MAX_LISTS, Ranker, bucket_entropy
from slotool.elastic.slo_nn.rankers.registry import ranker_class
from slotool.errors import InputError
from slotool.progress import Reporter

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
# The k grid where only the output layer has an activator: node counts grow from MIN_NODES by GRID_FACTOR up to
# MAX_NODES, or up to MAX_SHARE of the layer if that is less.
MIN_NODES, MAX_NODES, GRID_FACTOR, MAX_SHARE = 8, 4_096, 2**0.5, 0.12
TABLES = 2
# Share of the network's bytes for all tables together (slo-aware-neural-networks, §3.4).
TABLE_BYTES_SHARE = 0.10
# Share of the tables' bytes for a ranker's own parameters, such as centroids.
RANKER_BYTES_SHARE = 0.25
# A layer gets an activator if it does this share of the network's multiplications; the output layer only if it has
# MIN_CLASSES_TO_RANK classes as well.
MIN_WORK_SHARE = 0.05
MIN_CLASSES_TO_RANK = 256
MIN_TRAINING_EXAMPLES = 100
MIN_VALIDATION_EXAMPLES = 50
# The number of bits is chosen so that the mean bucket holds at least this many training examples.
EXAMPLES_PER_BUCKET = 32
# Default of ``TableSettings.allowed_loss``: 0.002 is 0.2 points of accuracy.
ALLOWED_LOSS = 0.002
# Networks of at least this size get MAX_THRESHOLDS calibrated thresholds, smaller ones DEFAULT_THRESHOLDS.
LARGE_NETWORK_BYTES = 4 << 20

Progress = Callable[[], None]
AnyData = Dataset | MultiLabelDataset


@dataclass(frozen=True)
class TableSettings:
    """Options of a build.

    ``shares``: the k grid, ascending fractions of a layer's nodes between 0 and 1; None chooses one for the network.
    ``tables``: hash tables per layer (L of the paper). ``bits``: bits of a key (K); None chooses as many as data and
    table size allow. ``seed``: of all random draws. ``allowed_loss``: accuracy that may be lost against the full
    network, from 0 to 1; lists and measures of confidence are compared at this loss.
    Raises ``InputError`` for a loss or shares out of range, and for shares that do not ascend.
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
    """A network and the data its tables are learnt from. What several rankers need is computed once and kept.

    ``progress`` is called after each piece of work, ``steps`` times in a build.
    Raises ``InputError`` for data of another shape, too few examples, and NaN or infinite inputs.
    """

    mlp: MLP
    data: AnyData
    progress: Progress = lambda: None

    def __post_init__(self) -> None:
        _check(self.mlp, self.data)

    @cached_property
    def activated(self) -> list[int]:
        """Indices of the layers that get an activator, ascending. Raises ``InputError`` if there is none."""
        work = np.array([layer.weights.size for layer in self.mlp.layers], dtype=float)
        x: Any = self.data.train.x
        hidden = len(work) - 1
        # A layer reads the columns of non-zero inputs, whatever nodes it drops.
        dense = isinstance(x, np.ndarray)
        if not dense:
            work[0] *= x.nnz / np.prod(x.shape, dtype=float)
        worth = work >= MIN_WORK_SHARE * work.sum()
        layers = [at for at in range(hidden) if worth[at] and (at or dense)]
        if worth[hidden] and self.mlp.classes >= MIN_CLASSES_TO_RANK:
            layers.append(hidden)
        if not layers:
            raise InputError("no layer is large enough and has ReLU or many classes, so tables would save no work")
        return layers

    def shares(self, settings: TableSettings) -> tuple[float, ...]:
        """Return the k grid: those of ``settings``, or chosen by the network's shape."""
        if settings.shares is not None:
            return settings.shares
        units = self.mlp.classes
        if self.activated != [len(self.mlp.layers) - 1]:
            return SHARES
        most = min(MAX_NODES, MAX_SHARE * units)
        steps = int(np.log(max(2.0, most / MIN_NODES)) / np.log(GRID_FACTOR) + 1e-9)
        counts = np.unique(np.round(MIN_NODES * GRID_FACTOR ** np.arange(steps + 1)))
        return tuple((counts / units).tolist())

    def sampled(self, training: int, validation: int, seed: int) -> TableSubject:
        """Return a copy with at most so many random examples of each split, in order, that shares no results."""
        rng = np.random.default_rng(seed)
        data: Any = self.data
        train, held_out = (
            split.take(np.sort(rng.permutation(len(split))[:most]))
            for split, most in ((data.train, training), (data.validation, validation))
        )
        return TableSubject(self.mlp, replace(data, train=train, validation=held_out), self.progress)

    @property
    def train(self) -> Any:
        """Training inputs: float32 [n, inputs], an array or CSR."""
        return flat(self.data.train.x)

    @cached_property
    def last_inputs(self) -> np.ndarray:
        """Inputs of the output layer for the training examples: float32 [n, inputs of that layer]."""
        last = len(self.mlp.layers) - 1
        return in_chunks(self.train, lambda x: layer_input(self.mlp, {}, x, 1.0, last))

    @cached_property
    def full(self) -> FullOutputs:
        """The full network's outputs for the training examples."""
        return FullOutputs.of(self.mlp.layers[-1], self.last_inputs, self.progress)

    @cached_property
    def held_out_full(self) -> FullOutputs | None:
        """Full network's outputs for the validation examples, for comparison with every candidate.

        None if more than the output layer is activated, as nothing is nested then.
        """
        last = len(self.mlp.layers) - 1
        if self.activated != [last]:
            return None
        inputs = in_chunks(flat(self.data.validation.x), lambda x: layer_input(self.mlp, {}, x, 1.0, last))
        return FullOutputs.of(self.mlp.layers[last], inputs)

    def activations(self, layer: int, sharpness: float = SHARPNESSES[0]) -> Any:
        """Return the scores that rank the nodes of ``layer`` for the training examples, float32 [n, units].

        A hidden node's score is its output after ReLU; a class's is its softmax probability to the power of
        ``sharpness``, as CSR of the likeliest classes.
        """
        if layer == len(self.mlp.layers) - 1:
            return self.full.scores(sharpness)
        return in_chunks(self.train, lambda x: layer_input(self.mlp, {}, x, 1.0, layer + 1))

    def correct(self, results: GridResults, split: str) -> np.ndarray:
        """Return the mask of right best labels at each k of a split, bool [n, shares + 1].

        ``split``: train, validation or test. With several labels, any of them is right.
        """
        return right(results.labels, getattr(self.data, split).y)

    def accuracy(self, results: GridResults) -> np.ndarray:
        """Return float64 [shares + 1]: estimated accuracy of each k and, last, of the full network.

        ``results``: their answers to the validation split. The lower of the observed and the expected accuracy counts
        (see ``expectation``).
        """
        correct = self.correct(results, "validation")
        expected = Expectation.learn(results, correct).of(results)
        return ThresholdCalibration.measure(np.zeros((len(correct), 1)), correct, 2, expected).by_point


def right(labels: np.ndarray, y: np.ndarray | LabelSets) -> np.ndarray:
    """Return bool [n, m]: whether each of ``labels`` int [n, m] is the example's class, or one of its labels.

    ``y``: classes int [n], or ``LabelSets``.
    """
    return labels == y[:, None] if isinstance(y, np.ndarray) else y.contain(labels)


def flat(x: Any) -> Any:
    """Return the examples [n, *shape] as [n, inputs]; CSR stays as it is."""
    return x.reshape(len(x), -1) if isinstance(x, np.ndarray) else x


def steps(subject: TableSubject, settings: TableSettings) -> int:
    """Return how often ``build`` calls ``subject.progress``."""
    shares = subject.shares(settings)
    outputs = 0
    if len(subject.mlp.layers) - 1 in subject.activated:
        outputs = sum(1 for _ in chunks(len(subject.data.train), subject.mlp.classes))
    counts = 1 + len(shares) * (len(subject.activated) - 1)
    return outputs + counts + len(shares)


@dataclass(frozen=True)
class Learnt:
    """Activators by one ranker, before confidence tables are learnt.

    ``shares``: the k grid. ``activators``: by layer index. ``entropy``: by layer index, of the bucket occupancy, in
    bits. ``allowed_loss``: as in ``TableSettings``.
    """

    shares: tuple[float, ...]
    activators: dict[int, Activator]
    entropy: dict[int, float]
    allowed_loss: float = ALLOWED_LOSS


def build(name: str, subject: TableSubject, ranker: str, settings: TableSettings) -> SloNN:
    """Build an SLO-NN called ``name`` with the ranker called ``ranker``.

    Lists are learnt on the training split; confidence is learnt and calibrated on the validation split. The same seed
    gives the same tables. Raises ``InputError`` for an unknown ranker, and for more tables or bits than the network
    can have.
    """
    return with_confidence(name, subject, learn(subject, ranker, settings), settings.seed)


def learn(subject: TableSubject, ranker: str, settings: TableSettings) -> Learnt:
    """Learn the activators of all layers with the ranker called ``ranker`` (Algorithm 1).

    Layers are learnt from first to last. A layer's keys are computed from the inputs it receives at every k of the
    grid, where earlier activators have dropped nodes. Its nodes are scored by their activations in the full network.
    Raises ``InputError`` as ``build`` does.
    """
    kind, shares = ranker_class(ranker), subject.shares(settings)
    tables = min(settings.tables, kind.max_tables)
    bits = settings.bits or _fitting_bits(subject, kind, shares, tables)
    activators: dict[int, Activator] = {}
    entropy: dict[int, float] = {}
    for layer in subject.activated:
        rng = np.random.default_rng([settings.seed, layer])
        learner = _Layer(subject, activators, layer, shares, settings)
        activators[layer], entropy[layer] = learner.learn(kind, tables, bits, rng)
    cut = _cut_to_budget(subject.mlp, activators, shares)
    return Learnt(shares, cut, entropy, settings.allowed_loss)


def with_confidence(name: str, subject: TableSubject, learnt: Learnt, seed: int) -> SloNN:
    """Complete an SLO-NN: evaluate every k, choose the measure of confidence, and calibrate on the validation split.

    Each measure is tried; the one with the least mean k at the allowed loss is kept (see ``select_measure``).
    """
    mlp, shares, activators = subject.mlp, learnt.shares, learnt.activators
    full = subject.full if only_output(mlp, activators) else None
    trained = calibration_examples(subject, activators, shares, "train", full, subject.progress)
    held_out = calibration_examples(subject, activators, shares, "validation", subject.held_out_full)
    rows, levels = activators[min(activators)].lists.rows, many_levels(mlp)
    selected = select_measure(trained, held_out, rows, shares, levels, learnt.allowed_loss, seed)
    sparse = not isinstance(subject.data.train.x, np.ndarray)
    tables = (activators, selected.confidence, selected.calibration, learnt.entropy)
    return SloNN(name, mlp, shares, *tables, measure=selected.measure, mean_k=selected.mean_k, sparse=sparse)


def many_levels(mlp: MLP) -> int:
    """Return the number of calibrated confidence thresholds for ``mlp``."""
    return MAX_THRESHOLDS if mlp.nbytes >= LARGE_NETWORK_BYTES else DEFAULT_THRESHOLDS


def calibration_examples(
    subject: TableSubject,
    activators: dict[int, Activator],
    shares: tuple[float, ...],
    split: str,
    full: FullOutputs | None = None,
    progress: Progress = lambda: None,
) -> CalibrationExamples:
    """Return buckets, answers at every k, and their correctness for a split (train, validation or test).

    ``full``: the full network's outputs for it, if known.
    """
    mlp, x, first = subject.mlp, flat(getattr(subject.data, split).x), min(activators)
    results = evaluate_grid(mlp, activators, shares, x, full, progress)
    buckets = in_chunks(
        x, lambda part: activators[first].buckets(mlp.layers[first], layer_input(mlp, {}, part, 1.0, first))
    )
    return CalibrationExamples(buckets, results, subject.correct(results, split))


@dataclass(frozen=True)
class _Layer:
    """Learns the activator of layer ``at``; ``before``: the activators of earlier layers."""

    subject: TableSubject
    before: dict[int, Activator]
    at: int
    shares: tuple[float, ...]
    settings: TableSettings

    def learn(self, kind: type[Ranker], tables: int, bits: int, rng: np.random.Generator) -> tuple[Activator, float]:
        """Return the activator, and the entropy of its bucket occupancy in bits."""
        layer = self.subject.mlp.layers[self.at]
        scores, counts = self.subject.activations(self.at), self._training_inputs()
        # Inputs at several k are fitted as one; a single k needs no copy.
        inputs = counts[0] if len(counts) == 1 else np.concatenate(counts)
        ranker = kind.fit(layer, inputs, scores, tables=tables, bits=bits, rng=rng)
        keys = [ranker.keys(layer, part) for part in counts]
        entropy = bucket_entropy(np.concatenate(keys), ranker.buckets)
        alone = self.subject.activated == [len(self.subject.mlp.layers) - 1]
        if not alone:
            return self._ranked(ranker, keys, scores), entropy
        candidates = [self._ranked(ranker, keys, self.subject.activations(self.at, s)) for s in SHARPNESSES]
        return min(candidates, key=self._nodes_needed), entropy

    def _ranked(self, ranker: Ranker, keys: list[np.ndarray], scores: Any) -> Activator:
        layer = self.subject.mlp.layers[self.at]
        sums = NodeScores(ranker.tables, ranker.buckets, layer.units)
        for part in keys:
            sums.add(
                part, ranker.considered(layer, part, scores, np.random.default_rng([self.settings.seed, self.at, 1]))
            )
        return Activator(ranker, NodeLists.rank(sums, node_count(layer.units, self.shares[-1])))

    def _nodes_needed(self, activator: Activator) -> tuple[float, float]:
        """Sort key of a candidate: the least k within the allowed validation loss, then minus the mean accuracy."""
        subject = self.subject
        cut = _cut_to_budget(subject.mlp, {self.at: activator}, self.shares)
        results = evaluate_grid(subject.mlp, cut, self.shares, flat(subject.data.validation.x), subject.held_out_full)
        accuracy = subject.accuracy(results)
        enough = accuracy >= accuracy[-1] - self.settings.allowed_loss
        return float(np.append(self.shares, 1.0)[enough.argmax()]), -float(accuracy.mean())

    def _training_inputs(self) -> list[Any]:
        """Return the layer's training inputs at every k of the grid; only once if no earlier layer drops nodes."""
        mlp, train = self.subject.mlp, self.subject.train
        counts = []
        for share in self.shares if self.before else (1.0,):
            if self.at == 0:
                counts.append(train)
            elif not self.before and self.at == len(mlp.layers) - 1:
                counts.append(self.subject.last_inputs)
            else:
                counts.append(in_chunks(train, partial(self._seen_at, share)))
            self.subject.progress()
        return counts

    def _seen_at(self, share: float, x: Any) -> Any:
        return layer_input(self.subject.mlp, self.before, x, share, self.at)


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


def _fitting_bits(subject: TableSubject, kind: type[Ranker], shares: tuple[float, ...], tables: int) -> int:
    """Return the most bits whose lists fit the byte budget and whose buckets hold enough examples, at least 1.

    Lists of hidden layers hold the nodes of the largest k. If only the output layer has lists, a sixteenth of that is
    assumed, because ``_cut_to_budget`` shortens them.
    """
    mlp, budget = subject.mlp, TABLE_BYTES_SHARE * subject.mlp.nbytes
    layers = [mlp.layers[at] for at in subject.activated]
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


# Largest loss by int8 weights on top of ``ALLOWED_LOSS``.
QUANTIZATION_LOSS = 0.0003


def with_weight_dtype(
    model: SloNN, data: AnyData, weight_dtype: str = "auto", allowed_loss: float = ALLOWED_LOSS
) -> SloNN:
    """Return ``model`` with weights of ``weight_dtype``: float32, int8 or auto, and promises counted with them.

    auto takes int8 if the output layer has an activator, and validation accuracy, with k chosen per input at the
    allowed loss, falls by at most ``QUANTIZATION_LOSS``. A loaded model promises no k in int8. Raises ``InputError``
    for int8 without an activator of the output layer.
    """
    if weight_dtype == "float32" or (weight_dtype == "auto" and len(model.mlp.layers) - 1 not in model.activators):
        return model
    quantized = model.at_int8(calibration=model.calibration)
    split = data.validation
    if weight_dtype == "auto":
        target = float(model.calibration.by_point[-1]) - allowed_loss
        exact, its = (right(m.top(split.x, accuracy=target)[0], split.y).mean() for m in (model, quantized))
        if its < exact - QUANTIZATION_LOSS:
            return model
    if model.calibration.estimates is None:
        return model.at_int8()
    labels = [quantized.top(split.x, point=point)[0] for point in quantized.points]
    return model.at_int8(calibration=model.calibration.counted(right(np.concatenate(labels, axis=1), split.y)))


def build_and_quantise(
    name: str,
    subject: TableSubject,
    data: Any,
    ranker: str,
    settings: TableSettings,
    *,
    confidence: float,
    weight_dtype: str,
    reporter: Reporter,
) -> SloNN:
    """Build an SLO-NN and choose the type of its weights, with progress; see ``build`` and ``with_weight_dtype``."""
    with reporter.progress(f"learning tables on {data.name}", total=steps(subject, settings)) as done:
        model = build(name, replace(subject, progress=done.advance), ranker, settings)
        return with_weight_dtype(model.stating(confidence), subject.data, weight_dtype, settings.allowed_loss)


def settings_of(model: SloNN, settings: TableSettings) -> dict[str, Any]:
    """Return what a manifest states of a build, besides the network and the data."""
    return {
        "ranker": model.ranker,
        "weight_dtype": "int8" if model.int8 else "float32",
        "allowed_loss": settings.allowed_loss,
        "confidence": model.calibration.stated,
        "k": list(model.shares),
    }
