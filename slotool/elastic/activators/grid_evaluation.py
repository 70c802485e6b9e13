"""Try every k of the grid on many inputs: what confidence tables and calibration are learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.elastic.activators.activator import Activator, layer_input, logits
from slotool.elastic.activators.confidence import GridResults, closeness, softmax
from slotool.elastic.activators.full_outputs import FullOutputs
from slotool.elastic.activators.mlp import MLP

CHUNK = 8192


def only_output(mlp: MLP, activators: Mapping[int, Activator]) -> bool:
    """Whether nothing but the output layer is activated: its choices are nested, so one pass tries every k."""
    return list(activators) == [len(mlp.layers) - 1]


def in_chunks(x: Any, function: Callable[[Any], np.ndarray]) -> np.ndarray:
    """``function`` over examples [n, inputs], an array or CSR, a bounded number at a time."""
    return np.concatenate([function(x[start : start + CHUNK]) for start in range(0, x.shape[0], CHUNK)])


def evaluate_grid(
    mlp: MLP,
    activators: Mapping[int, Activator],
    shares: Sequence[float],
    x: Any,
    full: FullOutputs | None = None,
    progress: Callable[[], None] = lambda: None,
) -> GridResults:
    """Every k on ``x``: float32 [n, inputs], an array or CSR. ``progress`` is called once per k.

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
    """All k at once by the compiled ``evaluate_nested``."""
    from slotool.elastic.activators.kernels import grid
    from slotool.elastic.activators.kernels.compiled import Compiled

    last = MLP((mlp.layers[-1].inputs,), (mlp.layers[-1],), partial=True)
    compiled = Compiled(last, {0: activators[len(mlp.layers) - 1]}, shares, in_full=False)
    best = np.empty((len(hidden), len(shares)), dtype=np.int32)
    near, likely = (np.empty((len(hidden), len(shares)), dtype=np.float32) for _ in range(2))
    grid.evaluate_nested(np.ascontiguousarray(hidden), full.log_partition, best, near, likely, *compiled.state)
    probability = np.column_stack([likely, full.probabilities.max(axis=1).toarray()])
    return GridResults(np.column_stack([best, full.first]), near, near[:, -1], probability)
