"""Outputs of a call: named tensors, and the answers and confidences that the model's task reads from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.rules.policies.routing import takes_second

Rows = slice | np.ndarray


@dataclass(slots=True, eq=False)
class Outputs:
    """Outputs of one or more examples.

    Attributes:
        tensors: arrays [n, ...] by name: those of the model's signature, else ``logits`` alone.
        model: model whose task gives their meaning.
        confidence: float64 [n], NaN where scores are not numbers; None where the model states none.
    """

    tensors: Mapping[str, np.ndarray]
    model: ElasticModel
    confidence: np.ndarray | None
    # Computed once, when first read, for all requests of a call.
    _answers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def answers(self) -> np.ndarray:
        """Answer to each example: [n, ...], class numbers int64 [n] of a classification."""
        if self._answers is None:
            self._answers = self.model.answers(self.tensors)
        return self._answers

    @property
    def first(self) -> object:
        """Answer to the first example, which is often the only one."""
        return self.answers[:1].tolist()[0]

    def take(self, rows: Rows) -> Outputs:
        """Return the outputs of these examples."""
        tensors = {name: array[rows] for name, array in self.tensors.items()}
        confidence = None if self.confidence is None else self.confidence[rows]
        return Outputs(tensors, self.model, confidence, self.answers[rows])


def lowest(confidence: np.ndarray) -> float:
    """Return the lowest confidence; NaN where one is NaN."""
    return float(confidence.item() if len(confidence) == 1 else np.minimum.reduce(confidence))


def combined(first: Outputs, unsure: np.ndarray, second: Outputs) -> Outputs:
    """Take the surer of two answers; ``second`` holds the examples where ``unsure`` (bool [n]) is set.

    Raises ``RunError`` when the versions' output shapes do not fit in one batch.
    """
    assert first.confidence is not None
    assert second.confidence is not None
    better = takes_second(first.confidence[unsure], second.confidence)
    rows = np.flatnonzero(unsure)[better]
    if len(rows) == len(first):
        return second
    confidence = _replaced(first.confidence, rows, second.confidence[better])
    for name, array in first.tensors.items():
        if array.shape[1:] != second.tensors[name].shape[1:] and len(rows):
            other = list(second.tensors[name].shape[1:])
            raise RunError(f"output {name} has shape {list(array.shape[1:])} of one version and {other} of the other")
    tensors = {name: _replaced(array, rows, second.tensors[name][better]) for name, array in first.tensors.items()}
    return Outputs(tensors, first.model, confidence)


def gathered(parts: Sequence[tuple[np.ndarray, Outputs | None]], chosen: np.ndarray) -> Outputs:
    """Gather a batch from several versions' answers.

    ``parts``: per version its examples (int, ascending) and answers; ``chosen``: int [n], each example's part. Raises
    ``RunError`` when the versions' output shapes do not fit in one batch.
    """
    selected = []
    for number, (rows, part) in enumerate(parts):
        examples = np.flatnonzero(chosen == number)
        if len(examples):
            assert part is not None
            selected.append((examples, part.take(np.searchsorted(rows, examples))))
    order = np.argsort(np.concatenate([rows for rows, _ in selected]))
    answers = [part for _, part in selected]
    sure = [part.confidence for part in answers if part.confidence is not None]
    confidence = np.concatenate(sure)[order] if len(sure) == len(answers) else None
    first = answers[0]
    named = [part.tensors for part in answers]
    for name, array in first.tensors.items():
        for other in named:
            if other[name].shape[1:] != array.shape[1:]:
                shapes = f"{list(array.shape[1:])} of one version and {list(other[name].shape[1:])} of the other"
                raise RunError(f"output {name} has shape {shapes}")
    tensors = {name: np.concatenate([other[name] for other in named])[order] for name in first.tensors}
    return Outputs(tensors, first.model, confidence)


def _replaced(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    replaced = array.copy()
    replaced[rows] = values
    return replaced
