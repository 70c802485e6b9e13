"""Meaning of a model's outputs: the answer, its error, and the model's confidence.

Tolerance tiers, switching plans and feedback need an error per example and, to route on, a confidence. A task gives
both for any model that has its outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool import factories
from slotool.errors import InputError
from slotool.models.signature import Signature, TensorSpec

# A probability of 0 scores as this one does: the least that float32 tells from 0.
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)
# Number of scores from which confidence is computed one by one.
FEW_SCORES = 32


def confidence(logits: np.ndarray) -> np.ndarray:
    """Largest softmax probability per row: float64 [batch] from float [batch, classes]; a −inf score counts nothing."""
    # A served request waits for this. Of a few numbers Python's own functions take a quarter of the time of NumPy's.
    if len(logits) == 1 and 0 < logits.size <= FEW_SCORES:
        scores = logits[0].tolist()
        greatest = max(scores)
        return np.array([1.0 / sum([math.exp(score - greatest) for score in scores])])
    # No ``max`` and ``sum``, which are Python functions around these.
    shifted = np.subtract(logits, np.maximum.reduce(logits, axis=1, keepdims=True), dtype=np.float64)
    return 1.0 / np.add.reduce(np.exp(shifted, out=shifted), axis=1)


class Task(ABC):
    """``output``: the output tensor that holds the answer; ``confidence_output``: one that holds a confidence.

    Without ``confidence_output`` the task takes the confidence from the answer, where it can. ``sha256``: of the source
    of a task that is not slotool's own, whose ``name`` is then ``module:Class``. ``target``: what a data set's labels
    are read as (``slotool.data.DataOptions``): class, numbers, sets or text.
    """

    name: str
    target: str = "class"
    sha256: str = ""

    def __init__(self, output: str, *, confidence_output: str | None = None):
        self.output, self.confidence_output = output, confidence_output

    @abstractmethod
    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the answer to each example: an array [n, ...]."""

    @abstractmethod
    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        """Return the error of each answer, from 0 up: float64 [n]. ``truth``: what was right, [n, ...].

        Raises ``InputError`` when ``truth`` does not fit the outputs.
        """

    def confidences(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return the confidence of each answer, greater if it is more likely right, float64 [n]; None without one."""
        if self.confidence_output is None:
            return self._own_confidences(outputs)
        confidence = outputs[self.confidence_output].astype(np.float64)
        return confidence.reshape(len(confidence), -1)[:, 0]

    def _own_confidences(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        return None

    def require(self, signature: Signature) -> None:
        """Raise ``InputError`` when a model of ``signature`` has not the outputs of this task."""
        signature.output(self.output)
        if self.confidence_output is not None:
            signature.output(self.confidence_output)
        fixed = signature.fixed
        if fixed is not None:
            raise InputError(f"{fixed.name} is {fixed}: its first dimension must be free, as it counts examples")

    def document(self) -> dict[str, Any]:
        """Return JSON for ``task_of_document``."""
        fields = {"task": self.name, "output": self.output, "confidence_output": self.confidence_output}
        return fields | ({"sha256": self.sha256} if self.sha256 else {})


class Classification(Task):
    """Classification in one class of several.

    ``scores``: content of ``output``: ``logits`` or ``probabilities`` [n, classes], or class numbers as ``labels`` [n].

    The error is 0 or 1. The confidence is the largest probability; class numbers have none.
    """

    name = "classification"

    def __init__(self, output: str, *, scores: str = "logits", confidence_output: str | None = None):
        if scores not in ("logits", "probabilities", "labels"):
            raise InputError(f"scores {scores!r}: logits, probabilities or labels are expected")
        super().__init__(output, confidence_output=confidence_output)
        self.scores = scores

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        scores = outputs[self.output]
        return scores if self.scores == "labels" else scores.argmax(axis=1)

    def logits(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return scores whose softmax is the probabilities, [n, classes]; not for class numbers."""
        scores = outputs[self.output]
        return np.log(np.maximum(scores, MIN_PROBABILITY)) if self.scores == "probabilities" else scores

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        answers = self.answers(outputs)
        if truth.shape != answers.shape:
            raise InputError(f"classes of shape {list(truth.shape)} for answers of shape {list(answers.shape)}")
        return (answers != truth).astype(np.float64)

    def _own_confidences(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        if self.scores == "labels":
            return None
        scores = outputs[self.output]
        if self.scores == "logits":
            return confidence(scores)
        return np.maximum.reduce(scores.astype(np.float64), axis=1)

    def document(self) -> dict[str, Any]:
        return {**super().document(), "scores": self.scores}


class MultiLabel(Task):
    """Classification with any number of labels: those whose score in ``output`` [n, labels] is above ``threshold``.

    The error is 1 minus the example's F1 score. The confidence is the mean distance of its scores from the threshold.
    """

    name = "multi-label"
    target = "sets"

    def __init__(self, output: str, *, threshold: float = 0.5, confidence_output: str | None = None):
        super().__init__(output, confidence_output=confidence_output)
        self.threshold = threshold

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs[self.output] > self.threshold

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        answers = self.answers(outputs)
        if truth.shape != answers.shape:
            raise InputError(f"labels of shape {list(truth.shape)} for answers of shape {list(answers.shape)}")
        right = truth.astype(bool)
        both, either = (answers & right).sum(axis=1), answers.sum(axis=1) + right.sum(axis=1)
        f1: np.ndarray = np.where(either == 0, 1.0, 2.0 * both / np.maximum(either, 1))
        return 1.0 - f1

    def _own_confidences(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        return np.abs(outputs[self.output].astype(np.float64) - self.threshold).mean(axis=1)

    def document(self) -> dict[str, Any]:
        return {**super().document(), "threshold": self.threshold}


class Regression(Task):
    """Numbers. ``loss``: absolute or squared; the error is its mean over an answer's numbers.

    A regression model has no confidence of its own: name an output that holds one.
    """

    name = "regression"
    target = "numbers"

    def __init__(self, output: str, *, loss: str = "absolute", confidence_output: str | None = None):
        if loss not in ("absolute", "squared"):
            raise InputError(f"loss {loss!r}: absolute or squared is expected")
        super().__init__(output, confidence_output=confidence_output)
        self.loss = loss

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs[self.output]

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        answers = self.answers(outputs).astype(np.float64)
        if truth.size != answers.size or len(truth) != len(answers):
            raise InputError(f"values of shape {list(truth.shape)} for answers of shape {list(answers.shape)}")
        apart = np.abs(answers.reshape(len(answers), -1) - truth.reshape(len(answers), -1))
        return (apart if self.loss == "absolute" else apart**2).mean(axis=1)

    def document(self) -> dict[str, Any]:
        return {**super().document(), "loss": self.loss}


class Text(Task):
    """Text, such as a transcript: ``output`` [n] or [n, 1] of BYTES. The error is the word error rate.

    The rate is the least number of words to insert, delete and substitute, per word of what was right; it may pass 1.
    """

    name = "text"
    target = "text"

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs[self.output].reshape(-1)

    def errors(self, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> np.ndarray:
        answers, right = self.answers(outputs), truth.reshape(-1)
        if len(answers) != len(right):
            raise InputError(f"{len(right)} texts for {len(answers)} answers")
        return np.array([word_error_rate(_words(b), _words(a)) for a, b in zip(answers, right, strict=True)])


def word_error_rate(reference: list[str], hypothesis: list[str]) -> float:
    """Edit distance in words over the number of words of ``reference`` (at least 1)."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(hypothesis, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1] / max(len(reference), 1)


def _words(text: Any) -> list[str]:
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).split()


TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, MultiLabel, Regression, Text)}


def task_of_document(document: Mapping[str, Any]) -> Task:
    """Return the task of a ``document()``.

    Raises ``InputError`` for an unknown task or option, and for code that may not be run (``factories.allow_code``) or
    has changed.
    """
    options = dict(document)
    name, sha256 = options.pop("task", None), options.pop("sha256", "")
    if isinstance(name, str) and factories.is_factory(name):
        factories.require_allowed(f"its task is {name}")
        factories.require_same(name, sha256)
        return _own_task(name, options)
    if name not in TASKS:
        raise InputError(f"no task is called {name!r}; there are {', '.join(TASKS)}")
    return _task(str(name), TASKS[name], options)


_THRESHOLDS = {"logits": 0.0, "probabilities": 0.5}
# Sums of probabilities in half precision differ from 1 by less.
SUM_TOLERANCE = 5e-3


def make_task(
    signature: Signature,
    name: str = Classification.name,
    *,
    output: str | None = None,
    scores: str | None = None,
    confidence_output: str | None = None,
) -> Task:
    """Return the task called ``name`` (one of ``TASKS``, or ``module:Class``, a subclass of ``Task``) of a model.

    ``output``: by default the one that can hold its answers. ``scores``: what that holds, logits or probabilities (by
    default as its name says; ``scores_held`` reads its values), or labels. Raises ``InputError`` when the output is not
    clear, or an option does not fit.
    """
    options: dict[str, Any] = {"confidence_output": confidence_output}
    if factories.is_factory(name):
        if scores is not None:
            raise InputError(f"scores {scores!r} have no effect on the task {name}")
        return _own_task(name, {**options, "output": output or _only(signature.outputs, signature)})
    if name not in TASKS:
        raise InputError(f"no task is called {name!r}; there are {', '.join(TASKS)}, or module:Class")
    if scores is not None and name not in (Classification.name, MultiLabel.name):
        raise InputError(f"scores {scores!r} have no effect on the task {name}")
    if output is None:
        output = _only(_answering(signature, name, scores), signature)
    spec = signature.output(output)
    named = "probabilities" if _says_prob(output) else "logits"
    if name == Classification.name:
        labels = len(spec.shape) == 1 or not spec.datatype.startswith(("FP", "BF"))
        options["scores"] = scores or ("labels" if labels else named)
    elif name == MultiLabel.name:
        if scores == "labels":
            raise InputError("multi-label answers are read from logits or probabilities, not from labels")
        options["threshold"] = _THRESHOLDS[scores or named]
    return _task(name, TASKS[name], {**options, "output": output})


def reads_scores(task: Task) -> bool:
    """True if the output holds logits or probabilities, which its values tell apart."""
    return type(task) is MultiLabel or (type(task) is Classification and task.scores != "labels")


def scores_held(task: Task, outputs: Mapping[str, np.ndarray]) -> str:
    """Return what the values of several examples are, "logits" or "probabilities".

    Probabilities lie within [0, 1]; those of a classification also sum to 1, unless the output's name says "prob".
    """
    values = outputs[task.output].astype(np.float64)
    is_share = bool(((values >= 0) & (values <= 1 + SUM_TOLERANCE)).all())
    sums_to_one = bool((np.abs(values.sum(axis=-1) - 1) <= SUM_TOLERANCE).all())
    any_sum = isinstance(task, MultiLabel) or _says_prob(task.output)
    return "probabilities" if is_share and (sums_to_one or any_sum) else "logits"


def with_scores(task: Task, scores: str) -> Task:
    """Return ``task`` with an output that holds ``scores``, "logits" or "probabilities"."""
    if isinstance(task, MultiLabel):
        return MultiLabel(task.output, threshold=_THRESHOLDS[scores], confidence_output=task.confidence_output)
    return Classification(task.output, scores=scores, confidence_output=task.confidence_output)


def _says_prob(output: str) -> bool:
    return "prob" in output.lower()


def _task(name: str, kind: type[Task], options: Mapping[str, Any]) -> Task:
    try:
        return kind(**options)
    except TypeError:
        raise InputError(f"task {name}: unknown or missing option among {', '.join(options)}") from None


def _own_task(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task of the user's own class, which is imported."""
    what = "a subclass of slotool.models.Task"
    cls = factories.make(name, is_made=lambda value: isinstance(value, type), what=what)
    if not isinstance(cls, type) or not issubclass(cls, Task):
        raise InputError(f"{name} is no subclass of slotool.models.Task")
    task = _task(name, cls, options)
    task.name, task.sha256 = factories.located(name)
    return task


def _answering(signature: Signature, name: str, scores: str | None) -> list[TensorSpec]:
    """Return the outputs that may hold the answers of such a task; classes are read from scores rather than labels."""
    numbers = [spec for spec in signature.outputs if spec.datatype.startswith(("FP", "BF"))]
    others = [spec for spec in signature.outputs if spec not in numbers]
    if name == Text.name:
        return [spec for spec in others if spec.datatype == "BYTES"]
    if name == Regression.name:
        return numbers
    rows = [spec for spec in numbers if len(spec.shape) == 2]
    labels = scores == "labels" or (scores is None and name == Classification.name and not rows)
    return others if labels else rows


def _only(cls: Sequence[TensorSpec], signature: Signature) -> str:
    if len(cls) != 1:
        listed = ", ".join(f"{tensor.name} {tensor}" for tensor in signature.outputs)
        raise InputError(f"which output holds the answers? Name it with --output; there are {listed}")
    return str(cls[0].name)


def class_texts(numbers: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the names of classes by their numbers: BYTES [n], empty where a number is that of none."""
    texts = [names[number].encode() if 0 <= number < len(names) else b"" for number in numbers.tolist()]
    return np.array(texts, dtype=np.object_)


def class_numbers(answers: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the class of each answer, text or number, as int64 [n]; −1 for none of ``names``.

    If no answer is a name, a number is the class's own.
    """
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in answers.flat]
    at = {name: number for number, name in enumerate(names)}
    if not any(text in at for text in texts):
        at = {str(number): number for number in range(len(names))}
    return np.array([at.get(text, -1) for text in texts], dtype=np.int64)
