"""Computation of all nodes for a batch: weights are read once, in one product per layer, not once per query.

Micro-batches of queries that share a bucket were measured too and were not faster: docs/explanation/batches.md.
Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool.compilation import njit
from slotool.elastic.slo_nn.inputs import is_sound
from slotool.elastic.slo_nn.kernels.compiled import Compiled
from slotool.elastic.slo_nn.kernels.int8 import FAST, insert
from slotool.elastic.slo_nn.mlp import DenseLayer

# Outputs held at a time.
CHUNK_BYTES = 32 << 20
# Scores that are looked at together for whether any is among the best.
AT_A_TIME = 64
# Batch sizes from which one product per layer is faster than one query after another.
MIN_DENSE, MIN_SPARSE = 16, 64


def best_labels(compiled: Compiled, x: Any, labels: np.ndarray, scores: np.ndarray) -> bool:
    """Fill ``labels`` int32 and ``scores`` float32 [n, p], best first, for ``x`` float32 [n, inputs] or CSR.

    False, with nothing worth reading in them, for values that are not finite and features that the network lacks.
    """

    def keep(part: slice, values: np.ndarray) -> None:
        best_of_rows(values, labels[part], scores[part])

    return _in_chunks(compiled, x, keep) and bool(np.isfinite(scores).all())


def logits(compiled: Compiled, x: Any, out: np.ndarray) -> bool:
    """Fill ``out`` float32 [n, classes]; as ``best_labels``."""
    return _in_chunks(compiled, x, out.__setitem__) and bool(np.isfinite(out).all())


def _in_chunks(compiled: Compiled, x: Any, keep: Callable[[slice, np.ndarray], None]) -> bool:
    """Pass the logits of ``x`` to ``keep``, so many rows at a time; False where one cannot be answered."""
    if not is_sound(x):
        return False
    size = max(1, CHUNK_BYTES // (4 * compiled.mlp.widest))
    for start in range(0, x.shape[0], size):
        part = slice(start, start + size)
        keep(part, _logits(compiled, x[part]))
    return True


def _logits(compiled: Compiled, x: Any) -> np.ndarray:
    first, *others = compiled.mlp.layers
    if isinstance(x, np.ndarray):
        values = _outputs(first, torch.from_numpy(x))
    else:
        # Use the laid-out columns: SciPy would copy the rows of weights at every call.
        values = torch.from_numpy(x @ compiled.columns(0) + first.bias)
    for layer in others:
        values = _outputs(layer, values.relu_())
    return values.numpy()


def _outputs(layer: DenseLayer, x: Tensor) -> Tensor:
    """Return float32 [n, units] before ReLU. By PyTorch, so that its number of threads holds."""
    return torch.addmm(torch.from_numpy(layer.bias), x, torch.from_numpy(layer.weights).T)


@njit(cache=True, fastmath=FAST)
def best_of_rows(values: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> None:
    """Find the best of each row of ``values`` float32 [n, classes]: ``labels`` int32, ``scores`` float32 [n, p].

    Raises ``ValueError`` if shapes do not fit.
    """
    count = labels.shape[1]
    if labels.shape != scores.shape or len(labels) != len(values) or not 0 < count <= values.shape[1]:
        raise ValueError("arrays of shapes that do not belong together")
    for query in range(len(values)):
        row, nodes, best = values[query], labels[query], scores[query]
        for i in range(count):
            nodes[i], best[i] = -1, -np.inf
        for start in range(0, len(row), AT_A_TIME):
            part = row[start : start + AT_A_TIME]
            highest = np.float32(-np.inf)
            for i in range(len(part)):
                highest = max(highest, part[i])
            if highest > best[count - 1]:
                for i in range(len(part)):
                    if part[i] > best[count - 1]:
                        insert(part[i], start + i, count, best, nodes)
