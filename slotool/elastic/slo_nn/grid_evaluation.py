"""Answers of the full network, and of every k of the grid, on many inputs: what tables are learnt from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse

from slotool.elastic.slo_nn.activator import Activator, layer_input, logits
from slotool.elastic.slo_nn.confidence import GridResults, closeness, softmax
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer

# Labels kept per input; the rest of its probability lies on labels that no neighbour answers first either.
LABELS_KEPT = 64
# Logits held at a time.
CHUNK_BYTES = 96 << 20
# Powers that probabilities are raised to before they are summed per bucket: from the softmax itself, which ranks by how
# much is said of a label, towards its first label alone. Measured: of 1 and 2, tate-16k needs a third fewer nodes with
# the second, tibkat-35k with the first.
SHARPNESSES = (1.0, 2.0)


@dataclass(frozen=True)
class FullOutputs:
    """Outputs of the full network.

    ``probabilities``: CSR float32 [n, units], softmax of the kept labels; ``first``: int32 [n], best label;
    ``log_partition``: float32 [n], logarithm of the softmax's denominator.
    """

    probabilities: sparse.csr_matrix
    first: np.ndarray
    log_partition: np.ndarray

    @classmethod
    def of(cls, layer: DenseLayer, inputs: np.ndarray, progress: Callable[[], None] = lambda: None) -> FullOutputs:
        """Compute outputs of an output layer for float32 [n, inputs], in chunks with a call of ``progress`` each."""
        n, count = len(inputs), min(LABELS_KEPT, layer.units)
        labels, scores = np.empty((n, count), dtype=np.int32), np.empty((n, count), dtype=np.float32)
        log_partition = np.empty(n, dtype=np.float32)
        weights, bias = torch.from_numpy(layer.weights), torch.from_numpy(layer.bias)
        with torch.inference_mode():
            for part in chunks(n, layer.units):
                logits = torch.addmm(bias, torch.from_numpy(inputs[part]), weights.T)
                best, at = logits.topk(count, dim=1)
                partition = logits.sub_(best[:, :1]).exp_().sum(dim=1)
                log_partition[part] = (partition.log() + best[:, 0]).numpy()
                labels[part] = at.numpy()
                scores[part] = (best - best[:, :1]).exp_().div_(partition[:, None]).numpy()
                progress()
        indptr = np.arange(n + 1) * count
        matrix = sparse.csr_matrix((scores.ravel(), labels.ravel(), indptr), shape=(n, layer.units))
        return cls(matrix, labels[:, 0].copy(), log_partition)

    def take(self, rows: np.ndarray) -> FullOutputs:
        """Return the outputs for inputs ``rows``, int [m]."""
        return FullOutputs(self.probabilities[rows], self.first[rows], self.log_partition[rows])

    def scores(self, sharpness: float) -> sparse.csr_matrix:
        """Return CSR float32 [n, units]: probabilities to the power ``sharpness``, 1 a row."""
        powers = self.probabilities.copy()
        np.power(powers.data, np.float32(sharpness), out=powers.data)
        count = powers.data.reshape(len(self.first), -1)
        count /= count.sum(axis=1, keepdims=True)
        return powers


def chunks(n: int, units: int) -> Iterator[slice]:
    """Yield the parts of n inputs whose logits fit ``CHUNK_BYTES``."""
    size = max(1, CHUNK_BYTES // (4 * units))
    return (slice(start, min(n, start + size)) for start in range(0, n, size))


CHUNK = 8192


def only_output(mlp: MLP, activators: Mapping[int, Activator]) -> bool:
    """True if nothing but the output layer is activated: its choices are nested, so one pass tries every k."""
    return list(activators) == [len(mlp.layers) - 1]


def in_chunks(x: Any, function: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Return ``function`` over examples [n, inputs], an array or CSR, a bounded number at a time."""
    return np.concatenate([function(x[start : start + CHUNK]) for start in range(0, x.shape[0], CHUNK)])


def evaluate_grid(
    mlp: MLP,
    activators: Mapping[int, Activator],
    shares: Sequence[float],
    x: Any,
    full: FullOutputs | None = None,
    progress: Callable[[], None] = lambda: None,
) -> GridResults:
    """Return every k on ``x``: float32 [n, inputs], an array or CSR. ``progress`` is called once per k.

    ``full``: where only the output layer is activated, the full answers to ``x``, if they are known.
    """
    if only_output(mlp, activators):
        last = len(mlp.layers) - 1
        hidden = in_chunks(x, lambda part: layer_input(mlp, {}, part, 1.0, last))
        results = _evaluate_nested(mlp, activators, shares, hidden, full or FullOutputs.of(mlp.layers[last], hidden))
        for _ in shares:
            progress()
        return results
    answers = in_chunks(x, lambda part: logits(mlp, activators, part, 1.0))
    labels = [answers.argmax(axis=1)]
    near = np.empty((len(answers), len(shares)), dtype=np.float32)
    for at, share in enumerate(shares):
        thinned = in_chunks(x, lambda part, share=share: logits(mlp, activators, part, share))  # type: ignore[misc]
        near[:, at] = closeness(answers, thinned)
        labels.insert(at, thinned.argmax(axis=1))
        progress()
    every = np.stack(labels, axis=1).astype(np.int32)
    probability = np.take_along_axis(softmax(answers), every.astype(np.int64), axis=1).astype(np.float32)
    return GridResults(every, near, closeness(answers, answers), probability)


def _evaluate_nested(
    mlp: MLP,
    activators: Mapping[int, Activator],
    shares: Sequence[float],
    hidden: np.ndarray,
    full: FullOutputs,
) -> GridResults:
    """Return all k at once by the compiled ``evaluate_nested``."""
    from slotool.elastic.slo_nn.kernels import single
    from slotool.elastic.slo_nn.kernels.compiled import Compiled

    last = MLP((mlp.layers[-1].inputs,), (mlp.layers[-1],), partial=True)
    compiled = Compiled(last, {0: activators[len(mlp.layers) - 1]}, shares, in_full=False)
    best = np.empty((len(hidden), len(shares)), dtype=np.int32)
    near, likely = (np.empty((len(hidden), len(shares)), dtype=np.float32) for _ in range(2))
    single.evaluate_nested(np.ascontiguousarray(hidden), full.log_partition, best, near, likely, *compiled.state)
    probability = np.column_stack([likely, full.probabilities.max(axis=1).toarray()])
    return GridResults(np.column_stack([best, full.first]), near, near[:, -1], probability)
