"""Answer one query after another: the best labels of a sparse or dense input, one compiled call each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numba.core.errors import NumbaError

from slotool.elastic.slo_nn.inputs import row_values
from slotool.elastic.slo_nn.kernels import full_batch, layout, single
from slotool.errors import InputError
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.confidence import ConfidenceTables
    from slotool.elastic.slo_nn.kernels.compiled import Compiled
    from slotool.elastic.slo_nn.mlp import MLP


class TabulatedNetwork(Protocol):
    """The part of ``SloNN``, which imports this module, that sessions use; see there."""

    name: str
    classes: int
    points: tuple[OperatingPoint, ...]
    shares: tuple[float, ...]
    mlp: MLP
    confidence: ConfidenceTables
    sparse: bool

    @property
    def full(self) -> OperatingPoint: ...

    @property
    def compiled(self) -> Compiled: ...

    def require(self, point: OperatingPoint) -> None: ...

    def flat(self, x: Any) -> Any: ...

    def threshold(self, accuracy: float | None) -> float | None: ...


# As objects, because NumPy looks up types at every call.
_LABELS, _SCORES = np.dtype(np.int32), np.dtype(np.float32)


class CompiledSession:
    """``p`` best labels at one point, or at the least k expected to reach an accuracy.

    All preparations are made once, so that a call does little besides the compiled one. ``labels`` int32 [p] and
    ``scores`` float32 [p] hold the last answer, best first, and are overwritten by the next; ``taken`` is its operating
    point.

    A session belongs to the thread that sends the first query, and cannot be copied or pickled, because it holds
    addresses. Other threads make their own by ``model.session``. A forked process may continue with its copy.
    """

    def __init__(
        self, model: TabulatedNetwork, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ):
        if type(p) is not int or not 1 <= p <= min(layout.MAX_ANSWERS, model.classes):
            most = min(layout.MAX_ANSWERS, model.classes)
            raise InputError(f"{model.name}: the best {p!r} labels cannot be given, only 1 to {most}")
        if point is not None and accuracy is not None:
            raise InputError(f"{model.name}: k is chosen by a point or by an accuracy, not by both")
        self.model = model
        self._labels, self._scores = np.empty(p, dtype=np.int32), np.empty(p, dtype=np.float32)
        threshold = model.threshold(accuracy)
        self._at = layout.BY_CONFIDENCE
        if threshold is None:
            model.require(point or model.full)
            self._at = model.points.index(point or model.full)
        self._threshold = float("-inf") if threshold is None else threshold
        # Held, because the handle knows no more than their addresses.
        self._compiled = model.compiled
        self._handle = self._compiled.handle(self._labels, self._scores, self._at)
        self._taken = 0

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    @property
    def scores(self) -> np.ndarray:
        return self._scores

    @property
    def taken(self) -> OperatingPoint:
        return self.model.points[self._taken]

    def sparse(self, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the labels for the features ``indices`` int32 [n] with ``values`` float32 [n], both contiguous.

        A feature that is named twice has the sum of its values, as in a CSR matrix. Raises ``InputError`` for arrays
        of another kind or of unequal lengths, features beyond the network's, more entries than it has features, NaN
        and infinite values, and in another thread.
        """
        try:
            point = single.top_sparse(indices, values, self._handle, self._threshold)
        except (TypeError, ValueError, NumbaError) as error:
            raise self._another_kind("indices int32 [n] and values float32 [n]", indices, values) from error
        if point < 0:
            raise self._refusal(point, values, indices)
        self._taken = point
        return self._labels

    def dense(self, x: np.ndarray) -> np.ndarray:
        """Return the labels for ``x`` float32 [inputs], contiguous.

        Raises ``InputError`` for an array of another kind or length, NaN and infinite values, and in another thread.
        """
        try:
            point = single.top_dense(x, self._handle, self._threshold)
        except (TypeError, ValueError, NumbaError) as error:
            raise self._another_kind("an array float32 [inputs]", x) from error
        if point < 0:
            raise self._refusal(point, x)
        self._taken = point
        return self._labels

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a session of {self.model.name} cannot be copied or pickled, because it holds addresses; "
            "make another by the model's compiled_session(...)"
        )

    def row(self, x: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and scores for one row of [n, inputs], an array or CSR."""
        if isinstance(x, np.ndarray):
            self.dense(x[row])
        else:
            part = slice(x.indptr[row], x.indptr[row + 1])
            self.sparse(x.indices[part], x.data[part])
        return self.labels, self.scores

    def many(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return labels int32 and scores float32 [n, p], best first, of a batch, with one call's cost for all of it.

        ``x``: as ``SloNN.flat`` returns it, float32 [n, inputs] or CSR. If all nodes are computed for every query, the
        weights are read once for the batch. Raises ``InputError`` as ``sparse`` and ``dense`` do.
        """
        dense, p = isinstance(x, np.ndarray), len(self._labels)
        n = len(x) if dense else len(x.indptr) - 1
        labels, scores = np.empty((n, p), _LABELS), np.empty((n, p), _SCORES)
        try:
            if n >= self._min_product and full_batch.best_labels(self._compiled, x, labels, scores):
                return labels, scores
            if dense:
                failed = single.rows_dense(x, labels, scores, self._handle, self._threshold)
            else:
                failed = single.rows_sparse(x.indptr, x.indices, x.data, labels, scores, self._handle, self._threshold)
        except ValueError as error:
            raise InputError(f"{self.model.name} cannot take this batch: {error}") from error
        except (TypeError, RuntimeError) as error:
            raise self._another_kind("float32 [n, inputs] or CSR of float32 values", x) from error
        if failed:
            row, code = divmod(-failed, 8)
            features = None if dense else x.indices[x.indptr[row] : x.indptr[row + 1]]
            raise self._refusal(-code, row_values(x, row), features)
        return labels, scores

    @cached_property
    def _min_product(self) -> float:
        """Batch size from which products pay; infinite unless all queries are answered from all nodes in float32."""
        surest = self.model.confidence.means.max(initial=-np.inf)
        in_full = self._at == len(self.model.shares)
        in_full = in_full or (self._at == layout.BY_CONFIDENCE and self._threshold > surest)
        pays_from = full_batch.MIN_SPARSE if self.model.sparse else full_batch.MIN_DENSE
        return pays_from if in_full else np.inf

    def _refusal(self, code: int, values: np.ndarray, indices: np.ndarray | None = None) -> InputError:
        name, width = self.model.name, self.model.mlp.layers[0].inputs
        if code == layout.NOT_FINITE:
            finite = np.isfinite(values).all()
            what = "its values overflow the first layer" if finite else "it holds NaN or infinite values"
            return InputError(f"the input cannot be answered: {what}")
        if indices is None:
            unequal = f"{name} takes {width} values, not {len(values)}"
        else:
            unequal = f"{len(indices)} features and {len(values)} values: each must have one"
        sentences = {
            layout.OUT_OF_RANGE: f"{name} has features 0 to {width - 1}, no others",
            layout.WRONG_LENGTH: unequal,
            layout.TOO_MANY: f"{len(values)} entries for {width} features: sum those that are named twice",
            layout.OTHER_THREAD: f"this session of {name} belongs to another thread; make one here",
        }
        return InputError(sentences[code])

    def _another_kind(self, expected: str, *values: Any) -> InputError:
        answers = " and ".join(
            f"{part.dtype} {list(part.shape)}" if isinstance(part, np.ndarray) else type(part).__name__
            for part in values
        )
        strided = any(isinstance(part, np.ndarray) and not part.flags.c_contiguous for part in values)
        return InputError(
            f"{self.model.name} takes {expected}, contiguous, not {answers}{', which has gaps' if strided else ''}; "
            "numpy.ascontiguousarray(x, dtype) makes one"
        )


class OneQuerySession:
    """A ``CompiledSession`` as an ``InferenceSession``: one compiled call per example, in the model's kind of input."""

    def __init__(self, session: CompiledSession):
        self._session = session
        self._sparse = session.model.sparse
        self.run: Callable[..., object] = session.sparse if self._sparse else session.dense

    def prepare(self, x: Any, row: int) -> tuple[Any, ...]:
        if isinstance(x, np.ndarray):
            values = np.ascontiguousarray(x[row], dtype=np.float32).ravel()
            at = np.flatnonzero(values).astype(np.int32)
            return (at, values[at]) if self._sparse else (values,)
        part = slice(x.indptr[row], x.indptr[row + 1])
        if self._sparse:
            return x.indices[part].astype(np.int32, copy=False), x.data[part].astype(np.float32, copy=False)
        return (x[row].toarray().astype(np.float32).ravel(),)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        return self._session.labels, self._session.scores
