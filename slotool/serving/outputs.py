"""What a call gives: scores of classes, or the outputs that a model names itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.models import Task
from slotool.rules.policies.routing import takes_second

Rows = slice | np.ndarray


@dataclass(frozen=True, slots=True)
class Scores:
    """Of a model without a signature.

    ``logits``: float32 [n, classes]; ``confidence``: float64 [n], NaN where the scores are not numbers; ``answers``:
    int64 [n], the class of the highest score.
    """

    logits: np.ndarray
    confidence: np.ndarray
    answers: np.ndarray

    @classmethod
    def of(cls, logits: np.ndarray, confidence: np.ndarray) -> Scores:
        return cls(logits, confidence, logits.argmax(axis=1).astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def first(self) -> object:
        """The answer to the first example, which is often the only one."""
        return int(self.answers[0])

    def take(self, rows: Rows) -> Scores:
        """Those examples."""
        return Scores(self.logits[rows], self.confidence[rows], self.answers[rows])


@dataclass(frozen=True, slots=True)
class Outputs:
    """Of a model with a signature. ``tensors``: its outputs [n, ...] by name; ``model``: knows what they mean;
    ``confidence``: float64 [n], None where the model states none."""

    tensors: Mapping[str, np.ndarray]
    model: ElasticModel
    confidence: np.ndarray | None

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def answers(self) -> np.ndarray:
        """The answer to each example: [n, ...], class numbers int64 [n] of a classification."""
        return self.model.answers(self.tensors)

    @property
    def first(self) -> object:
        """The answer to the first example."""
        return self.answers[:1].tolist()[0]

    @property
    def task(self) -> Task | None:
        return self.model.task

    def take(self, rows: Rows) -> Outputs:
        """Those examples."""
        tensors = {name: array[rows] for name, array in self.tensors.items()}
        return Outputs(tensors, self.model, None if self.confidence is None else self.confidence[rows])


Computed = Scores | Outputs


def lowest(confidence: np.ndarray) -> float:
    """The lowest of one confidence or more; NaN where one of them is."""
    return float(confidence.item() if len(confidence) == 1 else np.minimum.reduce(confidence))


def combined(first: Computed, unsure: np.ndarray, second: Computed) -> Computed:
    """Of two answers the surer one; ``second`` holds the examples where ``unsure`` (bool [n]) is set.

    Raises ``RunError`` when the versions' outputs have shapes of which no batch can be made.
    """
    assert first.confidence is not None
    assert second.confidence is not None
    better = takes_second(first.confidence[unsure], second.confidence)
    rows = np.flatnonzero(unsure)[better]
    if len(rows) == len(first):
        return second
    confidence = _replaced(first.confidence, rows, second.confidence[better])
    if isinstance(first, Scores):
        assert isinstance(second, Scores)
        return Scores.of(_replaced(first.logits, rows, second.logits[better]), confidence)
    assert isinstance(second, Outputs)
    for name, array in first.tensors.items():
        if array.shape[1:] != second.tensors[name].shape[1:] and len(rows):
            other = list(second.tensors[name].shape[1:])
            raise RunError(f"output {name} has shape {list(array.shape[1:])} of one version and {other} of the other")
    tensors = {name: _replaced(array, rows, second.tensors[name][better]) for name, array in first.tensors.items()}
    return Outputs(tensors, first.model, confidence)


def gathered(parts: Sequence[tuple[np.ndarray, Computed | None]], own: np.ndarray) -> Computed:
    """A batch of several versions' answers. ``parts``: per version the examples it answered (int, ascending), and its
    answers; ``own``: int [n], the part that each example's answer is of.

    Raises ``RunError`` when the versions' outputs have shapes of which no batch can be made.
    """
    taken = []
    for number, (rows, part) in enumerate(parts):
        here = np.flatnonzero(own == number)
        if len(here):
            assert part is not None
            taken.append((here, part.take(np.searchsorted(rows, here))))
    order = np.argsort(np.concatenate([rows for rows, _ in taken]))
    answers = [part for _, part in taken]
    sure = [part.confidence for part in answers if part.confidence is not None]
    confidence = np.concatenate(sure)[order] if len(sure) == len(answers) else None
    first = answers[0]
    if isinstance(first, Scores):
        assert confidence is not None
        logits = np.concatenate([part.logits for part in answers if isinstance(part, Scores)])[order]
        return Scores.of(logits, confidence)
    named = [part.tensors for part in answers if isinstance(part, Outputs)]
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
