"""scikit-learn estimators: ``.skops`` files, which hold no pickle, and estimators in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotool import extras, strict_json
from slotool.errors import InputError, RunError
from slotool.models.adapters.sklearn_files import read_estimator
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec, datatype_of
from slotool.printable import reason
from slotool.regular_files import require_regular
from slotool.tables import FULL, OperatingPoint

INPUT = "features"


class SklearnModel(Model):
    """A fitted classifier or regressor of one matrix ``features`` (FP64 [n, features]).

    A classifier gives ``probabilities`` (FP64 [n, classes], columns as in ``classes``), or ``scores`` where it has
    none, or else ``label``, the class as it was in the training data. A regressor gives ``value``.
    Raises ``InputError`` for an estimator that is not fitted or does not predict.
    """

    def __init__(self, estimator: Any, *, name: str | None = None):
        self.name = name or type(estimator).__name__
        self._estimator = estimator
        features = getattr(estimator, "n_features_in_", None)
        if features is None or not hasattr(estimator, "predict"):
            raise InputError(f"{self.name}: not a fitted estimator with predict")
        self.classes = getattr(estimator, "classes_", None)
        if self.classes is not None and not isinstance(self.classes, list):
            self.class_names = tuple(map(str, np.asarray(self.classes).tolist()))
        self.feature_names = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
        if self.feature_names:
            # Its input is an array here, whose columns were put in the order of the names before.
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        self.signature = Signature((TensorSpec(INPUT, "FP64", (FREE, int(features))),), self._output_specs())

    @classmethod
    def load(cls, path: str | Path) -> SklearnModel:
        """Read the estimator that ``skops.io.dump`` wrote to a file.

        Raises ``InputError`` for a class that is not read and for arrays that do not fit each other,
        ``MissingPackageError`` without skops.
        """
        extras.require("skops", needed_by="a scikit-learn model")
        path = Path(path)
        require_regular(path)
        with strict_json.assembling(path, "a fitted estimator"):
            return cls(read_estimator(path), name=path.stem)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            return self._outputs(inputs[INPUT])
        except Exception as error:
            raise RunError(f"{self.name}: scikit-learn failed ({reason(error)})") from error

    def _output_specs(self) -> tuple[TensorSpec, ...]:
        if self.classes is None:
            outputs = np.shape(getattr(self._estimator, "coef_", 0))[:-1]
            return (TensorSpec("value", "FP64", (FREE, *outputs) if len(outputs) == 1 else (FREE,)),)
        if isinstance(self.classes, list):
            raise InputError(f"{self.name}: a classifier of several targets at once is not supported")
        count = len(self.classes)
        if hasattr(self._estimator, "predict_proba"):
            return (TensorSpec("probabilities", "FP64", (FREE, count)),)
        if hasattr(self._estimator, "decision_function"):
            return (TensorSpec("scores", "FP64", (FREE, count)),)
        return (TensorSpec("label", datatype_of(self._labels(np.asarray(self.classes)[:1])), (FREE,)),)

    def _outputs(self, x: np.ndarray) -> dict[str, np.ndarray]:
        if self.classes is None:
            return {"value": np.asarray(self._estimator.predict(x), dtype=np.float64)}
        scores = self.signature.outputs[0].name
        if scores == "label":
            return {"label": self._labels(self._estimator.predict(x))}
        if scores == "probabilities":
            values = np.asarray(self._estimator.predict_proba(x), dtype=np.float64)
        else:
            values = np.asarray(self._estimator.decision_function(x), dtype=np.float64)
            if values.ndim == 1:  # of two classes it gives the second one's
                values = np.column_stack([-values, values])
        return {scores: values}

    def _labels(self, labels: np.ndarray) -> np.ndarray:
        """Class names as BYTES, numbers as they are."""
        if labels.dtype.kind in "OUS":
            return np.array([str(label).encode() for label in labels], dtype=np.object_)
        return labels
