"""The tensors of a server's model: how a data set's examples become its inputs, and what class its outputs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.models.tasks import Classification, class_numbers, make_task
from slotool.workloads.client.endpoint import ServerAnswer

LABEL, CONFIDENCE, LOGITS = "label", "confidence", "logits"


class ServedSignature:
    """``model``'s ``signature``, as its server states it. ``classes``: names of the classes that it knows, () where the
    server does not say.

    A class is read from an output ``label``; without one, from scores of classes where one output can only hold them,
    or from an output that can only hold names of ``classes``.
    """

    def __init__(self, signature: Signature, model: str, classes: Sequence[str] = ()):
        self.signature, self._model, self._classes = signature, model, tuple(classes)
        named = {spec.name: spec for spec in signature.outputs}
        self._task = None if LABEL in named else _task(signature, named_classes=bool(classes))
        if LABEL in named:
            wanted = [named[name] for name in (LABEL, CONFIDENCE) if name in named]
        else:
            wanted = [signature.output(self._task.output)] if self._task else list(signature.outputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(wanted)

    def inputs_of(self, x: Inputs) -> Columns:
        """The examples as arrays by the names of the model's inputs, of their datatypes. One array, or one column, is
        the input of a model with one, whatever its name; columns that the model does not take are left out.

        Raises ``InputError`` naming the input that the data set does not have, or of another kind.
        """
        given, inputs = x.arrays if isinstance(x, Columns) else {"": x}, self.signature.inputs
        if len(given) == len(inputs) == 1:
            given = {inputs[0].name: next(iter(given.values()))}
        taken = {}
        for spec in inputs:
            if spec.name not in given:
                has = f"it has {', '.join(given)}" if isinstance(x, Columns) else "it has one tensor without a name"
                raise InputError(f"{self._model} takes {spec.name} ({spec}), which the data set lacks: {has}")
            array = given[spec.name]
            # The server says itself where a shape does not fit.
            taken[spec.name] = TensorSpec(spec.name, spec.datatype, (FREE,) * array.ndim).conform(array)
        return Columns(taken)

    def answer(self, outputs: Mapping[str, np.ndarray], said: Mapping[str, Any]) -> ServerAnswer:
        """What the outputs for one example say; class −1 where they tell none. Raises ``ValueError``."""
        if self._task is None and LABEL not in {spec.name for spec in self.outputs}:
            return ServerAnswer.of({LABEL: -1}, said)
        if self._task is None:
            firsts = {name: array.ravel()[0].item() for name, array in outputs.items() if array.dtype.kind != "O"}
            if self._classes:
                firsts[LABEL] = int(class_numbers(outputs[LABEL].ravel()[:1], self._classes)[0])
            return ServerAnswer.of(firsts, said)
        if self._task.scores == "labels":
            return ServerAnswer.of({LABEL: int(class_numbers(outputs[self._task.output], self._classes)[0])}, said)
        scores = outputs[self._task.output].reshape(1, -1)
        return ServerAnswer.of({LABEL: int(self._task.answers({self._task.output: scores})[0])}, said)


def _task(signature: Signature, *, named_classes: bool) -> Classification | None:
    """The classification of a model with scores of two classes or more, or with ``named_classes`` of one that names its
    answer."""
    try:
        task = make_task(signature)
    except InputError:
        return None
    if not isinstance(task, Classification):
        return None
    if task.scores == "labels":
        return task if named_classes else None
    return None if signature.output(task.output).shape[-1] == 1 else task


def is_plain(signature: Signature) -> bool:
    """Whether it is what slotool's own models have: one FP32 tensor ``input``, and an output ``label``."""
    inputs = [(spec.name, spec.datatype) for spec in signature.inputs]
    return inputs == [("input", "FP32")] and {LABEL, CONFIDENCE} <= {spec.name for spec in signature.outputs}


def classes_scored(signature: Signature) -> int | None:
    """How many classes the output ``logits`` of a plain signature scores; None where it says nothing of it."""
    scores = next((spec for spec in signature.outputs if spec.name == LOGITS), None)
    return scores.shape[1] if scores is not None and len(scores.shape) == 2 and scores.shape[1] > 0 else None
