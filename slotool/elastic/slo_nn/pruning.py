"""Static neuron pruning before tables are built (slo-aware-neural-networks, §4, Model Pruning): units no input needs.

A hidden unit that never fires can go at no cost at all. One whose output hardly varies goes at little: its mean output
joins the next layer's bias, and what is lost is its deviation from that mean, times the weights that read it. Units go
in that order while validation accuracy holds. The output layer has nothing to prune.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.precision import top_labels
from slotool.elastic.slo_nn.build import AnyData, flat, right
from slotool.elastic.slo_nn.grid_evaluation import CHUNK
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import InputError

# Accuracy that pruning may cost, one standard error included: the most units whose loss just keeps a promise on one
# sample are too many on the next. For the same reason the examples that choose are not those that confirm.
PRUNING_LOSS = 0.003
# So many training examples must keep it too: there a network has more to lose, and more examples tell it surer.
TRAINING_EXAMPLES = 20_000


@dataclass(frozen=True)
class Usage:
    """What a hidden layer puts out on training data, after ReLU: ``mean``, ``std``, ``largest``, each [units]."""

    mean: np.ndarray
    std: np.ndarray
    largest: np.ndarray

    @property
    def dead(self) -> np.ndarray:
        """bool [units]: never above 0."""
        return self.largest <= 0


@dataclass(frozen=True)
class Pruned:
    """``mlp``: what is left. ``before``, ``dead``, ``kept``: units per hidden layer; ``dead`` are among the removed.

    ``accuracy_before``, ``accuracy``: of the validation split, in full and pruned.
    """

    mlp: MLP
    before: tuple[int, ...]
    dead: tuple[int, ...]
    kept: tuple[int, ...]
    accuracy_before: float
    accuracy: float

    @property
    def document(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "units_before": list(self.before),
            "units_dead": list(self.dead),
            "units_kept": list(self.kept),
            "validation_accuracy_before": self.accuracy_before,
            "validation_accuracy": self.accuracy,
        }


def prune(mlp: MLP, data: AnyData, loss: float = PRUNING_LOSS, progress: Callable[[], None] = lambda: None) -> Pruned:
    """Remove dead hidden units, then the least needed while accuracy falls by at most ``loss``.

    Half of the validation examples and the training examples choose how many, the paired standard error counted as
    lost; the other half, which chose nothing, must bear it out, or fewer go. Other examples may still lose more. At
    least one unit per layer is kept. ``progress`` is called per network that is tried, ``steps`` times at most.
    Raises ``InputError`` for a loss below 0 or above 1.
    """
    if not 0 <= loss <= 1:
        raise InputError(f"pruning may cost a share of accuracy between 0 and 1, not {loss}")
    usages = measure(mlp, flat(data.train.x))
    order = _least_needed_first(mlp, usages)

    def evaluated(network: MLP) -> _Correct:
        progress()
        return _correct(network, data)

    full = evaluated(mlp)
    # The dead go whatever happens; beyond them, the most that keep the promise, by bisection.
    most = len(order)
    fewest = min(sum(int(usage.dead.sum()) for usage in usages), most)
    best = remove(mlp, order[:fewest], usages)
    kept = [(best, evaluated(best))]
    while fewest < most:
        count = (fewest + most + 1) // 2
        candidate = remove(mlp, order[:count], usages)
        now = evaluated(candidate)
        if max(map(_surely_lost, full.choosing, now.choosing)) <= loss:
            fewest = count
            kept.append((candidate, now))
        else:
            most = count - 1
    while len(kept) > 1 and _surely_lost(full.confirming, kept[-1][1].confirming) > loss:
        kept.pop()
    best, reached = kept[-1]
    hidden = mlp.layers[:-1]
    return Pruned(
        best,
        tuple(layer.units for layer in hidden),
        tuple(int(usage.dead.sum()) for usage in usages),
        tuple(layer.units for layer in best.layers[:-1]),
        float(full.validation.mean()),
        float(reached.validation.mean()),
    )


@dataclass(frozen=True)
class _Correct:
    """float [n]: 1 where the first label is right."""

    validation: np.ndarray
    train: np.ndarray

    @property
    def choosing(self) -> list[np.ndarray]:
        return [self.validation[::2], self.train]

    @property
    def confirming(self) -> np.ndarray:
        return self.validation[1::2]


def _correct(mlp: MLP, data: AnyData) -> _Correct:
    few = np.arange(min(len(data.train), TRAINING_EXAMPLES))
    known = data.train.y[few] if isinstance(data.train.y, np.ndarray) else data.train.y.take(few)
    parts = ((data.validation.x, data.validation.y), (data.train.x[: len(few)], known))
    return _Correct(*(right(top_labels(mlp, flat(x), 1), y)[:, 0].astype(float) for x, y in parts))


def _surely_lost(before: np.ndarray, now: np.ndarray) -> float:
    lost = before - now
    return float(lost.mean() + lost.std() / np.sqrt(len(lost)))


def steps(mlp: MLP) -> int:
    """How often ``prune`` calls its progress at most."""
    return 2 + sum(layer.units for layer in mlp.layers[:-1]).bit_length()


def measure(mlp: MLP, x: Any) -> list[Usage]:
    """Usage of every hidden layer over examples [n, inputs], an array or CSR, a bounded number at a time."""
    hidden = mlp.layers[:-1]
    sums, squares, largest = ([np.zeros(layer.units) for layer in hidden] for _ in range(3))
    for start in range(0, x.shape[0], CHUNK):
        values = x[start : start + CHUNK]
        for at, layer in enumerate(hidden):
            values = np.maximum(layer.pre_activations(values), 0.0)
            sums[at] += values.sum(axis=0, dtype=np.float64)
            squares[at] += np.square(values, dtype=np.float64).sum(axis=0)
            largest[at] = np.maximum(largest[at], values.max(axis=0))
    usages = []
    for total, square, most in zip(sums, squares, largest, strict=True):
        mean = total / x.shape[0]
        usages.append(Usage(mean, np.sqrt(np.maximum(square / x.shape[0] - mean**2, 0.0)), most))
    return usages


def remove(mlp: MLP, units: Sequence[tuple[int, int]], usages: Sequence[Usage]) -> MLP:
    """``mlp`` without ``units`` (layer, unit), their mean outputs in the next layers' biases."""
    layers = list(mlp.layers)
    for at, usage in enumerate(usages):
        gone = np.zeros(layers[at].units, dtype=bool)
        gone[[unit for layer, unit in units if layer == at]] = True
        if not gone.any():
            continue
        layer, after = layers[at], layers[at + 1]
        bias = after.bias + after.weights[:, gone] @ usage.mean[gone].astype(np.float32)
        layers[at] = _layer(layer.name, layer.weights[~gone], layer.bias[~gone])
        layers[at + 1] = _layer(after.name, after.weights[:, ~gone], bias)
    return MLP(mlp.input_shape, tuple(layers))


def _layer(name: str, weights: np.ndarray, bias: np.ndarray) -> DenseLayer:
    return DenseLayer(name, np.ascontiguousarray(weights, dtype=np.float32), np.ascontiguousarray(bias, np.float32))


def _least_needed_first(mlp: MLP, usages: Sequence[Usage]) -> list[tuple[int, int]]:
    """(layer, unit) of all hidden units but the most needed of each layer: the dead first, then by what their loss
    changes, as a share of what their layer's outputs change."""
    found = []
    for at, usage in enumerate(usages):
        effect = usage.std * np.sqrt(np.square(mlp.layers[at + 1].weights, dtype=np.float64).sum(axis=0))
        share = effect / max(float(np.sqrt((effect**2).sum())), np.finfo(float).tiny)
        share[usage.dead] = -1.0
        units = np.argsort(share, kind="stable")[:-1]
        found += [(float(share[unit]), at, int(unit)) for unit in units]
    return [(at, unit) for _, at, unit in sorted(found)]
