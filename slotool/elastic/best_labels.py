"""A model of many labels as a server offers it: a sparse example as two tensors in, its best labels out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import devices
from slotool.data.columns import Columns, Inputs
from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.session import CompiledSession

INDICES, VALUES, TOP = "indices", "values", "top"
LABELS, SCORES = "labels", "scores"
# Behind the last feature of an example that has fewer than others of its batch.
PADDING = -1
DEFAULT_TOP, MAX_TOP = 5, 128
# Sessions that one thread keeps ready.
_MAX_SESSIONS = 64
_SIGNATURE = Signature(
    (TensorSpec(INDICES, "INT32", (FREE, FREE)), TensorSpec(VALUES, "FP32", (FREE, FREE))),
    (TensorSpec(LABELS, "INT32", (FREE, FREE)), TensorSpec(SCORES, "FP32", (FREE, FREE))),
)


class BestLabels(ElasticModel):
    """Sparse model with named tensors: ``indices`` INT32, ``values`` FP32 in, ``labels`` INT32, ``scores`` FP32 out.

    Inputs are [n, entries], outputs [n, top], best first. The features of an example ascend; a shorter one is filled up
    with index −1 and value 0. If fewer than ``top`` nodes were computed, the rest is label −1 at the lowest score.
    Inputs may have a column ``top``, the number of labels per example, by default 5.
    """

    leaves_out = True
    task = None
    parameters: Mapping[str, int] = {TOP: MAX_TOP}

    def __init__(self, model: ElasticModel):
        self.model = model
        self.signature = _SIGNATURE
        self.estimates_each = model.estimates_each
        self.name, self.points, self.classes = model.name, model.points, model.classes
        self.input_shape, self.labels = model.input_shape, model.labels
        self._features = int(model.input_shape[0])
        self._local = threading.local()
        self.identity = model.identity
        self.device, self.precision, self.compiles = model.device, model.precision, model.compiles

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        placed = self.model.on(device, precision)
        return self if placed is self.model else BestLabels(placed)

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        return self.model.forward(x, point)

    def inputs(self, x: Inputs) -> dict[str, np.ndarray]:
        if not isinstance(x, Columns):
            raise InputError(f"named inputs {INDICES} and {VALUES} are expected")
        return x.arrays

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        indices, values = inputs[INDICES], inputs[VALUES]
        if indices.shape != values.shape:
            raise InputError(
                f"{INDICES} has shape {list(indices.shape)}, {VALUES} {list(values.shape)}: each index needs one value"
            )
        if indices.shape[1] > self._features:
            raise InputError(f"{indices.shape[1]} features in an example, but there are only {self._features}")
        if not np.logical_and.reduce(np.isfinite(values), axis=None):
            raise InputError(f"{VALUES}: it holds NaN or infinity")
        if not indices.size:
            return
        ascending = np.logical_and.reduce(indices[:, 1:] > indices[:, :-1], axis=None)
        if not (ascending and indices[:, 0].min() >= 0 and indices[:, -1].max() < self._features):
            self._check_padded(indices, values)

    def _check_padded(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Check padded examples; raise ``InputError`` for any fault."""
        filled = indices == PADDING
        outside = ~filled & ((indices < 0) | (indices >= self._features))
        if outside.any():
            row, at = np.argwhere(outside)[0]
            raise InputError(
                f"{INDICES}: {indices[row, at]} in example {row + 1}, but there are features 0 to {self._features - 1}"
            )
        if (filled & (values != 0)).any():
            raise InputError(f"{VALUES}: index {PADDING} fills an example up: its value is 0")
        before, after = indices[:, :-1], indices[:, 1:]
        wrong = (after <= before) & (after != PADDING) | (before == PADDING) & (after != PADDING)
        if wrong.any():
            row, at = np.argwhere(wrong)[0]
            named = f"{before[row, at]} is followed by {after[row, at]}"
            raise InputError(
                f"{INDICES}: the features of an example ascend, each named once; in example {row + 1} {named}"
            )

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        indices, values, tops = inputs[INDICES], inputs[VALUES], inputs.get(TOP)
        top = min(DEFAULT_TOP if tops is None else int(tops.max()), self.classes)
        if len(indices) == 1:
            labels, scores = self._one(indices[0], values[0], top, point)
        else:
            labels, scores = self.model.top(self._rows(indices, values), top, point=point)
        return {LABELS: labels.astype(np.int32, copy=False), SCORES: scores.astype(np.float32, copy=False)}

    def answers(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return outputs[LABELS][:, 0].astype(np.int64)

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        self.model.set_cancellation_check(check)

    def expected_accuracy(self, x: Any) -> Mapping[OperatingPoint, float] | None:
        inputs = self.inputs(x)
        return self.model.expected_accuracy(self._rows(inputs[INDICES], inputs[VALUES]))

    def _one(
        self, indices: np.ndarray, values: np.ndarray, top: int, point: OperatingPoint
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answer one example, by this thread's session for the point if the model has compiled ones."""
        from slotool.elastic.slo_nn.model import SloNN

        if not isinstance(self.model, SloNN):
            return self.model.top(self._rows(indices[None], values[None]), top, point=point)
        if len(indices) and indices[-1] == PADDING:
            length = int(np.count_nonzero(indices != PADDING))
            indices, values = indices[:length], values[:length]
        session = self._session(top, point, self.model)
        session.sparse(indices, values)
        return session.labels.copy()[None], session.scores.copy()[None]

    def _session(self, top: int, point: OperatingPoint, model: Any) -> CompiledSession:
        sessions = self._local.__dict__.setdefault("sessions", {})
        session: CompiledSession | None = sessions.get((top, point))
        if session is None:
            if len(sessions) >= _MAX_SESSIONS:
                sessions.clear()
            session = sessions[top, point] = model.compiled_session(top, point=point)
        return session

    def _rows(self, indices: np.ndarray, values: np.ndarray) -> Any:
        """Return the examples as CSR."""
        from scipy.sparse import csr_matrix

        length = indices != PADDING
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(length, axis=1))]).astype(np.int32)
        return csr_matrix((values[length], indices[length], starts), shape=(len(indices), self._features))


def columns_of_rows(x: Any) -> Columns:
    """Return the tensors of examples that are rows of a CSR matrix: features sorted, those named twice summed."""
    rows = x.tocsr().copy()
    rows.sum_duplicates()
    counts = np.diff(rows.indptr)
    shape = (rows.shape[0], int(counts.max(initial=0)))
    indices, values = np.full(shape, PADDING, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    filled = np.arange(shape[1])[None] < counts[:, None]
    indices[filled], values[filled] = rows.indices, rows.data
    return Columns({INDICES: indices, VALUES: values})
