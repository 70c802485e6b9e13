"""Examples answered one at a time, as a server does it that wants the best label and no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slotool.data.columns import Columns
from slotool.data.stored import StoredExamples
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.models import Classification
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.session import CompiledSession


class ExampleInference(NamedTuple):
    """``label(i)``: the best label of example i; ``taken()``: the point that the last one was answered at."""

    label: Callable[[int], int]
    taken: Callable[[], OperatingPoint]


class Queries:
    """The examples of a split, by their number.

    ``split``: of one class per example, or of many labels (dense, or CSR for a ``sparse`` model); of a model with named
    inputs, whatever it takes. ``limit``: of a split that stays in its files, so many examples are read. Raises
    ``InputError`` when it is empty or its examples are not of the model's shape.
    """

    def __init__(self, model: ElasticModel, split: Any, *, limit: int | None = None):
        if not len(split):
            raise InputError("the data set has no examples")
        if isinstance(split.x, StoredExamples):
            split = split.take(np.arange(len(split) if limit is None else min(limit, len(split))))
        self.model, self.y, self._x = model, split.y, split.x
        is_csr = hasattr(split.x, "tocsr")
        if is_csr and not model.sparse:
            raise InputError(f"{model.name} takes arrays, the data set holds sparse examples")
        if not is_csr:
            model.check_inputs(model.inputs(split.x[:1]))
        # Classes that are left out have no scores: such a model is asked for its best labels.
        self._ranks = is_csr or (model.leaves_out and isinstance(split.x, np.ndarray))
        count = split.x.shape[0] if is_csr else len(split.x)
        if self._ranks:
            prepare = model.session(model.full).prepare
            self._rows = [prepare(split.x, i) for i in range(count)]
        else:
            self._rows = [(split.x[i : i + 1],) for i in range(count)]

    def __len__(self) -> int:
        return len(self._rows)

    def answer(self, point: OperatingPoint | None = None, *, accuracy: float | None = None) -> ExampleInference:
        """Return a function for an example's best label at ``point``, or at the least k expected to reach ``accuracy``.

        Everything possible is prepared. Raises ``InputError`` for an unknown point, and for an accuracy out of reach or
        unknown.
        """
        from slotool.elastic.slo_nn.model import SloNN

        model, rows = self.model, self._rows
        if isinstance(model, SloNN):
            session = model.compiled_session(1, point=point, accuracy=accuracy)
            call = session.sparse if model.sparse else session.dense
            return ExampleInference(lambda i: call(*rows[i])[0], lambda: session.taken)
        if accuracy is not None:
            raise InputError(f"{model.name} cannot estimate accuracy per input, so it takes no accuracy target")
        chosen = point or model.full
        model.require(chosen)
        if self._ranks:
            return ExampleInference(lambda i: int(model.top(*rows[i], point=chosen)[0][0, 0]), lambda: chosen)
        if not isinstance(model.task, Classification):
            task = "no task" if model.task is None else model.task.name
            raise InputError(f"{model.name} answers {task}; what is measured here is of classes")
        return ExampleInference(lambda i: int(model.answers(model.respond(rows[i][0], chosen))[0]), lambda: chosen)

    def call(self, point: OperatingPoint) -> Callable[[int], np.ndarray]:
        """Return a function that answers an example at ``point`` with an array."""
        if self._ranks:
            label = self.answer(point).label
            return lambda i: np.array([label(i)])
        self.model.require(point)
        return lambda i: _first_output(self.model, point, self._rows[i][0])

    def batches(self, size: int, point: OperatingPoint | None = None) -> list[Callable[[], np.ndarray]]:
        """Return functions for the best labels, int [size], of ``size`` examples each; a rest is left out.

        A model that scores all classes returns its first output. Raises ``InputError`` for an unknown point, and for
        fewer examples than ``size``.
        """
        from slotool.elastic.slo_nn.model import SloNN

        if size > len(self):
            raise InputError(f"there are {len(self)} examples, too few for batches of {size}")
        model, chosen = self.model, point or self.model.full
        model.require(chosen)
        parts = [self._x[start : start + size] for start in range(0, len(self) - size + 1, size)]
        if not self._ranks:
            if not all(isinstance(part, np.ndarray | Columns) for part in parts):
                raise InputError(f"the examples of {model.name} differ in length: they are answered one at a time")
            return [partial(_first_output, model, chosen, part) for part in parts]
        if isinstance(model, SloNN):
            session = model.compiled_session(1, point=chosen)
            return [partial(_first_labels, session, model.flat(part)) for part in parts]
        return [partial(_best_labels, model, chosen, part) for part in parts]

    def right(self, examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the mask of ``labels`` int [n] that are a class or label of ``examples`` int [n]."""
        if isinstance(self.y, np.ndarray):
            return self.y[examples] == labels
        return self.y.take(examples).contain(labels[:, None])[:, 0]


def _first_labels(session: CompiledSession, x: Any) -> np.ndarray:
    return session.many(x)[0][:, 0]


def _best_labels(model: ElasticModel, point: OperatingPoint, x: Any) -> np.ndarray:
    return model.top(x, point=point)[0][:, 0]


def _first_output(model: ElasticModel, point: OperatingPoint, x: Any) -> np.ndarray:
    return next(iter(model.respond(x, point).values()))


def dataset_of(model: ElasticModel, data: Any, *, needs_labels: bool = True) -> Any:
    """Return the data set ``data`` of ``load_dataset`` for the model, with one class per example or many labels.

    Many labels are for models of flat inputs. Of a model that names its tensors it stays in its files.
    ``needs_labels``: as of ``DataOptions``. Raises ``DataError`` for data that are missing or do not fit the model, and
    ``InputError`` for needed labels that are no classes of the model.
    """
    from slotool.data import DataOptions, has_many_labels, load_multilabel, numbered, open_dataset

    options = model.data_options or DataOptions()
    if not options.tensors and (model.sparse or len(model.input_shape) == 1) and has_many_labels(data):
        return load_multilabel(data)
    options = options if needs_labels else options.or_unlabelled()
    dataset = open_dataset(data, options, stored=bool(options.tensors))
    return dataset if options.tensors or not needs_labels else numbered(dataset, model.classes)
