"""Answer one query after another: the best labels of a sparse or dense input, one compiled call each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slotool.elastic.activators import batch_kernels, full_batch, kernels, layout, rounded
from slotool.elastic.activators.slo_nn import LEAST_FOR_PRODUCTS
from slotool.errors import InputError
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.activators.slo_nn import SloNN


class Answers(NamedTuple):
    """Of a batch: ``labels`` int32 and ``scores`` float32 [n, p], best first; ``taken`` int64 [n], the point each query
    was answered at, an index into the model's points."""

    labels: np.ndarray
    scores: np.ndarray
    taken: np.ndarray


class Answerer:
    """``p`` best labels at one point, or at the least k expected to reach an accuracy.

    Everything that can be settled beforehand is, so that a call does little besides the compiled one. ``labels`` int32
    [p] and ``scores`` float32 [p] hold the last answer, best first, and are overwritten by the next; ``taken`` is the
    point it was given at. Not to be shared between threads.
    """

    def __init__(self, model: SloNN, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None):
        if not 1 <= p <= min(layout.MOST_ANSWERS, model.classes):
            most = min(layout.MOST_ANSWERS, model.classes)
            raise InputError(f"{model.name}: the best {p} labels cannot be given, only 1 to {most}")
        if point is not None and accuracy is not None:
            raise InputError(f"{model.name}: k is chosen by a point or by an accuracy, not by both")
        self.model = model
        self.labels = np.empty(p, dtype=np.int32)
        self.scores = np.empty(p, dtype=np.float32)
        threshold = model.threshold(accuracy)
        self._at = layout.BY_CONFIDENCE
        if threshold is None:
            model.require(point or model.full)
            self._at = model.points.index(point or model.full)
        self._threshold = float("-inf") if threshold is None else threshold
        # Held, because the handle knows no more than their addresses.
        self._compiled = model._compiled
        self._handle = self._compiled.handle(self.labels, self.scores, self._at)
        self._taken = 0
        self._rounded: np.ndarray | None = None
        if model.all_int8 and (threshold is not None or self._at == len(model.shares)):
            self._at = len(model.shares)
            self._network = model._rounded
            self._rounded = self._network.handle(self.labels, self.scores)

    @property
    def taken(self) -> OperatingPoint:
        return self.model.points[self._taken]

    def sparse(self, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The labels for the features ``indices`` int32 [n], each at most once, with ``values`` float32 [n].

        Raises ``InputError`` for NaN, infinite values, and features beyond the network's.
        """
        taken = kernels.top_sparse(indices, values, self._handle, self._threshold)
        if taken < 0:
            raise self._refusal(taken, values)
        self._taken = taken
        return self.labels

    def dense(self, x: np.ndarray) -> np.ndarray:
        """The labels for ``x`` float32 [inputs], contiguous. Raises ``InputError`` for NaN and infinite values."""
        if self._rounded is not None and rounded.top_rounded(x, self._rounded) == 0:
            self._taken = self._at
            return self.labels
        taken = kernels.top_dense(x, self._handle, self._threshold)
        if taken < 0:
            raise self._refusal(taken, x)
        self._taken = taken
        return self.labels

    def row(self, x: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores for one row of [n, inputs], an array or CSR."""
        if isinstance(x, np.ndarray):
            self.dense(x[row])
        else:
            part = slice(x.indptr[row], x.indptr[row + 1])
            self.sparse(x.indices[part], x.data[part])
        return self.labels, self.scores

    def many(self, x: Any) -> Answers:
        """The same answers to a batch, float32 [n, inputs], contiguous, or CSR, with one call's cost for all of it.

        Where all nodes are computed for every query, the weights are read once for the batch. Raises ``InputError``
        as ``sparse`` and ``dense`` do.
        """
        n, p = x.shape[0], len(self.labels)
        found = Answers(
            np.empty((n, p), dtype=np.int32), np.empty((n, p), dtype=np.float32), np.empty(n, dtype=np.int64)
        )
        if n >= LEAST_FOR_PRODUCTS and self._all_in_full:
            found.taken[:] = len(self.model.shares)
            if full_batch.best_labels(self._compiled, x, found.labels, found.scores):
                return found
        self._fill(x, found)
        return found

    @property
    def _all_in_full(self) -> bool:
        """Whether every query is answered from all nodes in float32, whatever it is."""
        if self._rounded is not None:
            return False
        surest = self.model.confidence.means.max(initial=-np.inf)
        return self._at == len(self.model.shares) or (self._at == layout.BY_CONFIDENCE and self._threshold > surest)

    def _fill(self, x: Any, found: Answers) -> None:
        """One query after the other, in one compiled call."""
        if not isinstance(x, np.ndarray):
            indptr = x.indptr.astype(np.int64)
            bad = batch_kernels.rows_sparse(indptr, x.indices, x.data, *found, self._handle, self._threshold)
            if bad >= 0:
                raise self._refusal(int(found.taken[bad]), x.data[indptr[bad] : indptr[bad + 1]])
            return
        if self._rounded is None:
            bad = batch_kernels.rows_dense(x, *found, self._handle, self._threshold)
        else:
            bad = batch_kernels.rows_rounded(x, *found, self._rounded, self._handle, self._threshold, self._at)
        if bad >= 0:
            raise self._refusal(int(found.taken[bad]), x[bad])

    def _refusal(self, code: int, values: np.ndarray) -> InputError:
        if code == layout.OUT_OF_RANGE:
            return InputError(f"{self.model.name} has features 0 to {self.model.mlp.layers[0].inputs - 1}, no others")
        what = "its values overflow the first layer" if np.isfinite(values).all() else "it holds NaN or infinite values"
        return InputError(f"the input cannot be answered: {what}")


class OneByOne:
    """An ``Answerer`` as an ``Asker``: one compiled call per example, of the kind of input that the model is for."""

    def __init__(self, answerer: Answerer):
        self._answerer = answerer
        self._sparse = answerer.model.sparse
        self.ask: Callable[..., object] = answerer.sparse if self._sparse else answerer.dense

    def ready(self, x: Any, row: int) -> tuple[Any, ...]:
        if isinstance(x, np.ndarray):
            values = np.ascontiguousarray(x[row], dtype=np.float32).ravel()
            at = np.flatnonzero(values).astype(np.int32)
            return (at, values[at]) if self._sparse else (values,)
        part = slice(x.indptr[row], x.indptr[row + 1])
        if self._sparse:
            return x.indices[part], x.data[part]
        return (x[row].toarray().astype(np.float32).ravel(),)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        return self._answerer.labels, self._answerer.scores
