"""P@k: the metric of multi-label classifiers, without holding all scores of all examples at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slotool.data.dataset import LabelSets, MultiLabelSplit
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import InputError

CHUNK_EXAMPLES = 8_192
# Scores held at a time.
CHUNK_BYTES = 128 << 20


def top_labels(mlp: MLP, x: Any, k: int) -> np.ndarray:
    """The ``k`` labels that score highest, best first: int32 [n, k] from float32 [n, inputs], CSR or an array.

    Raises ``InputError`` when ``x`` has another width than the network, or ``k`` is not between 1 and its classes.
    """
    if x.shape[1] != mlp.layers[0].inputs:
        raise InputError(f"the network takes {mlp.layers[0].inputs} features, the examples have {x.shape[1]}")
    if not 1 <= k <= mlp.classes:
        raise InputError(f"the best {k} of {mlp.classes} labels cannot be given")
    answers = np.empty((x.shape[0], k), dtype=np.int32)
    rows = max(1, CHUNK_BYTES // (4 * mlp.classes))
    last = mlp.layers[-1]
    weights, bias = torch.from_numpy(last.weights), torch.from_numpy(last.bias)
    with torch.inference_mode():
        for start in range(0, len(answers), CHUNK_EXAMPLES):
            hidden = torch.from_numpy(_last_input(mlp, x[start : start + CHUNK_EXAMPLES]))
            for at, part in zip(range(start, len(answers), rows), hidden.split(rows), strict=False):
                scores = torch.addmm(bias, part, weights.T)
                answers[at : at + len(part)] = scores.topk(k, dim=1).indices.numpy()
    return answers


def precision_at(answers: np.ndarray, labels: LabelSets, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """P@k for each ``k``: the mean share of an example's first k ``answers`` (int [n, ≥ k]) that are labels of it."""
    right = labels.contain(answers)
    return {k: float(right[:, :k].mean()) for k in ks}


def score(mlp: MLP, split: MultiLabelSplit, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """P@k of a network on a split; a ``k`` beyond the number of classes is left out."""
    possible = [k for k in ks if k <= mlp.classes]
    return precision_at(top_labels(mlp, split.x, max(possible)), split.y, possible)


def _last_input(mlp: MLP, x: Any) -> np.ndarray:
    """float32 [n, inputs of the last layer]."""
    hidden: np.ndarray = x
    for layer in mlp.layers[:-1]:
        hidden = layer.activated(layer.pre_activations(hidden))
    return hidden
