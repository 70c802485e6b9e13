"""Learn Node Activators, confidence tables and their calibration for a trained network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.activators.activator import Activator, layer_input, logits, node_count
from slotool.elastic.activators.confidence import Calibration, ConfidenceTables, closeness, softmax
from slotool.elastic.activators.freehash import RANKERS, FreeHash
from slotool.elastic.activators.importance import NodeLists, NodeScores
from slotool.elastic.activators.mlp import MLP
from slotool.elastic.activators.ranker import bucket_entropy
from slotool.elastic.activators.slo_nn import SloNN
from slotool.errors import InputError

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
TABLES = 2
# Tables together may take this share of the network's bytes (slo-aware-neural-networks, §3.4).
TABLE_BYTES_SHARE = 0.10
# An output layer is worth an activator only when it has many classes.
LEAST_CLASSES_TO_RANK = 256
LEAST_TRAINING_EXAMPLES = 100
LEAST_VALIDATION_EXAMPLES = 50
# Bits beyond which the mean bucket would hold fewer training examples than this are not chosen by themselves.
EXAMPLES_PER_BUCKET = 32
CHUNK = 8192


@dataclass(frozen=True)
class Settings:
    """``shares``: the k grid, fractions of a layer's nodes in (0, 1), ascending; ``bits`` None: as the data allow."""

    shares: tuple[float, ...] = SHARES
    tables: int = TABLES
    bits: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        inside = all(0 < share < 1 for share in self.shares)
        if not self.shares or not inside or list(self.shares) != sorted(set(self.shares)):
            raise InputError("k must be fractions above 0 and below 1, ascending; the full network is added by itself")


def steps(mlp: MLP, settings: Settings) -> int:
    """How often ``build`` calls its progress."""
    learnt = sum(len(_shares_seen(layer, settings)) for layer in _activated(mlp))
    return learnt + len(settings.shares)


def build(
    name: str,
    mlp: MLP,
    data: Dataset,
    ranker: str,
    settings: Settings,
    progress: Callable[[], None] = lambda: None,
) -> SloNN:
    """An SLO-aware network from ``mlp``: lists learnt on the training split, calibrated on the validation split.

    Layers are learnt front to back: the keys of each see inputs thinned by the activators before it, at every k of
    the grid, while nodes are scored by full activations of full inputs. Same seed, same tables.
    Raises ``InputError`` for data of another shape, too little data, or settings the network cannot carry.
    """
    _check(mlp, data, ranker)
    bits = settings.bits or _fitting_bits(mlp, len(data.train), settings)
    activators: dict[int, Activator] = {}
    entropy: dict[int, float] = {}
    for layer in _activated(mlp):
        activators[layer], entropy[layer] = _learn_layer(
            mlp, data.train, activators, layer, RANKERS[ranker], settings, bits, progress
        )
    activators = _cut_to_budget(mlp, activators, settings)
    confidence = _learn_confidence(mlp, data.train, activators, settings.shares, progress)
    calibration = _calibrate(mlp, data.validation, activators, settings.shares, confidence)
    return SloNN(name, mlp, settings.shares, activators, confidence, calibration, entropy)


def build_best(
    name: str,
    mlp: MLP,
    data: Dataset,
    rankers: Sequence[str],
    settings: Settings,
    progress: Callable[[], None] = lambda: None,
) -> tuple[SloNN, dict[str, float]]:
    """The best of several rankers at equal k: highest validation accuracy, mean over the grid; and all those means."""
    built = {ranker: build(name, mlp, data, ranker, settings, progress) for ranker in rankers}
    scores = {ranker: float(model.calibration.by_point[:-1].mean()) for ranker, model in built.items()}
    return built[max(scores, key=lambda ranker: scores[ranker])], scores


def _check(mlp: MLP, data: Dataset, ranker: str) -> None:
    if ranker not in RANKERS:
        raise InputError(f"no ranker called {ranker!r}; there are {', '.join(RANKERS)}")
    if data.input_shape != mlp.input_shape or data.classes != mlp.classes:
        raise InputError(
            f"the network takes inputs {mlp.input_shape} and knows {mlp.classes} classes, "
            f"but {data.name} has {data.input_shape} and {data.classes}"
        )
    for part, least in (("train", LEAST_TRAINING_EXAMPLES), ("validation", LEAST_VALIDATION_EXAMPLES)):
        split: Split = getattr(data, part)
        if len(split) < least:
            raise InputError(f"{data.name}: {len(split)} {part} examples are too few for tables; {least} are needed")
        if not np.isfinite(split.x).all():
            raise InputError(f"{data.name}: the {part} examples hold NaN or infinite values")


def _activated(mlp: MLP) -> list[int]:
    hidden = len(mlp.layers) - 1
    return list(range(hidden + (mlp.classes >= LEAST_CLASSES_TO_RANK)))


def _shares_seen(layer: int, settings: Settings) -> tuple[float, ...]:
    """The k at which a layer's inputs are to be seen; nothing thins those of the first."""
    return settings.shares if layer else (1.0,)


def _fitting_bits(mlp: MLP, examples: int, settings: Settings) -> int:
    """Most bits whose lists, as long as the largest k, fit the budget and whose buckets hold enough examples."""
    list_bytes = 0.0
    for layer in _activated(mlp):
        units = mlp.layers[layer].units
        list_bytes += settings.shares[-1] * units * np.min_scalar_type(units - 1).itemsize + 2
    bytes_per_bucket = settings.tables * (list_bytes + 4 * len(settings.shares))
    affordable = min(TABLE_BYTES_SHARE * mlp.nbytes / bytes_per_bucket, examples / EXAMPLES_PER_BUCKET)
    fewest_nodes = min(mlp.layers[layer].units for layer in _activated(mlp))
    return max(1, min(int(np.log2(max(affordable, 2))), fewest_nodes))


def _learn_layer(
    mlp: MLP,
    train: Split,
    before: dict[int, Activator],
    layer: int,
    kind: type[FreeHash],
    settings: Settings,
    bits: int,
    progress: Callable[[], None],
) -> tuple[Activator, float]:
    """Algorithm 1 for one layer, and the entropy of its buckets in bits."""
    rng = np.random.default_rng([settings.seed, layer])
    scores_of = softmax if layer == len(mlp.layers) - 1 else (lambda values: np.maximum(values, 0.0))
    scores = scores_of(_pre_activations(mlp, {}, train, 1.0, layer)).astype(np.float32)
    seen = []
    for share in _shares_seen(layer, settings):
        seen.append(_pre_activations(mlp, before, train, share, layer))
        progress()
    ranker = kind.fit(scores, np.concatenate(seen), tables=settings.tables, bits=bits, rng=rng)
    sums = NodeScores(ranker.tables, ranker.buckets, mlp.layers[layer].units)
    keys = [ranker.keys(values) for values in seen]
    for keys_of_share in keys:
        sums.add(keys_of_share, scores)
    longest = node_count(mlp.layers[layer].units, settings.shares[-1])
    return Activator(ranker, NodeLists.rank(sums, longest)), bucket_entropy(np.concatenate(keys), ranker.buckets)


def _cut_to_budget(mlp: MLP, activators: dict[int, Activator], settings: Settings) -> dict[int, Activator]:
    """Shorten all lists by one factor, so that all tables together stay within their share of the network's bytes."""
    rows = activators[0].lists.rows
    fixed = rows * len(settings.shares) * np.dtype(np.float32).itemsize
    fixed += sum(a.nbytes - a.lists.lists.nbytes for a in activators.values())
    lists = sum(a.lists.lists.nbytes for a in activators.values())
    fixed += Calibration.largest_nbytes(len(settings.shares))
    factor = min(1.0, max(0.0, TABLE_BYTES_SHARE * mlp.nbytes - fixed) / lists)
    return {
        layer: Activator(a.ranker, a.lists.cut(max(1, int(factor * a.lists.lists.shape[1]))))
        for layer, a in activators.items()
    }


def _learn_confidence(
    mlp: MLP, train: Split, activators: dict[int, Activator], shares: Sequence[float], progress: Callable[[], None]
) -> ConfidenceTables:
    full = _logits(mlp, activators, train, 1.0)
    confidences = np.empty((len(train), len(shares)))
    for at, share in enumerate(shares):
        confidences[:, at] = closeness(full, _logits(mlp, activators, train, share))
        progress()
    return ConfidenceTables.learn(_first_buckets(mlp, activators, train), activators[0].lists.rows, confidences)


def _calibrate(
    mlp: MLP,
    held_out: Split,
    activators: dict[int, Activator],
    shares: Sequence[float],
    confidence: ConfidenceTables,
) -> Calibration:
    answers = [_logits(mlp, activators, held_out, share).argmax(axis=1) for share in (*shares, 1.0)]
    correct = np.stack(answers, axis=1) == held_out.y[:, None]
    return Calibration.measure(confidence.estimate(_first_buckets(mlp, activators, held_out)), correct)


def _pre_activations(mlp: MLP, before: dict[int, Activator], split: Split, share: float, layer: int) -> np.ndarray:
    """float32 [n, units]: w·x + b of a layer when those before it compute the share k of their nodes."""

    def of(x: np.ndarray) -> np.ndarray:
        return mlp.layers[layer].pre_activations(layer_input(mlp, before, x, share, layer))

    return _in_chunks(split, of)


def _logits(mlp: MLP, activators: dict[int, Activator], split: Split, share: float) -> np.ndarray:
    return _in_chunks(split, lambda x: logits(mlp, activators, x, share))


def _first_buckets(mlp: MLP, activators: dict[int, Activator], split: Split) -> np.ndarray:
    return _in_chunks(split, lambda x: activators[0].buckets(mlp.layers[0].pre_activations(x)))


def _in_chunks(split: Split, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``function`` over flattened examples, a bounded number at a time."""
    flat = split.x.reshape(len(split), -1)
    return np.concatenate([function(flat[start : start + CHUNK]) for start in range(0, len(flat), CHUNK)])
