"""The full network's answers to training inputs at a large output layer: the likeliest labels are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse

from slotool.elastic.activators.mlp import DenseLayer

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
    """``probabilities``: CSR float32 [n, units], the softmax of the labels kept; ``first``: int32 [n], the label that
    scores highest; ``log_partition``: float32 [n], the logarithm of the softmax's denominator."""

    probabilities: sparse.csr_matrix
    first: np.ndarray
    log_partition: np.ndarray

    @classmethod
    def of(cls, layer: DenseLayer, inputs: np.ndarray, progress: Callable[[], None] = lambda: None) -> FullOutputs:
        """Of an output layer, for float32 [n, inputs]; in chunks, ``progress`` being called after each."""
        n, kept = len(inputs), min(LABELS_KEPT, layer.units)
        labels, scores = np.empty((n, kept), dtype=np.int32), np.empty((n, kept), dtype=np.float32)
        log_partition = np.empty(n, dtype=np.float32)
        weights, bias = torch.from_numpy(layer.weights), torch.from_numpy(layer.bias)
        with torch.inference_mode():
            for part in chunks(n, layer.units):
                logits = torch.addmm(bias, torch.from_numpy(inputs[part]), weights.T)
                best, at = logits.topk(kept, dim=1)
                partition = logits.sub_(best[:, :1]).exp_().sum(dim=1)
                log_partition[part] = (partition.log() + best[:, 0]).numpy()
                labels[part] = at.numpy()
                scores[part] = (best - best[:, :1]).exp_().div_(partition[:, None]).numpy()
                progress()
        indptr = np.arange(n + 1) * kept
        matrix = sparse.csr_matrix((scores.ravel(), labels.ravel(), indptr), shape=(n, layer.units))
        return cls(matrix, labels[:, 0].copy(), log_partition)

    def take(self, rows: np.ndarray) -> FullOutputs:
        """Those to the inputs numbered ``rows``, int [m]."""
        return FullOutputs(self.probabilities[rows], self.first[rows], self.log_partition[rows])

    def scores(self, sharpness: float) -> sparse.csr_matrix:
        """CSR float32 [n, units]: probabilities to the power ``sharpness``, 1 a row."""
        powers = self.probabilities.copy()
        np.power(powers.data, np.float32(sharpness), out=powers.data)
        kept = powers.data.reshape(len(self.first), -1)
        kept /= kept.sum(axis=1, keepdims=True)
        return powers


def chunks(n: int, units: int) -> Iterator[slice]:
    """Parts of n inputs whose logits fit ``CHUNK_BYTES``."""
    size = max(1, CHUNK_BYTES // (4 * units))
    return (slice(start, min(n, start + size)) for start in range(0, n, size))
