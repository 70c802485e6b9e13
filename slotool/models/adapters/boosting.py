"""Boosted trees in their libraries' own text and JSON formats: XGBoost (``.ubj``, ``.json``), LightGBM (``.txt``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotool import extras
from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.regular_files import read_text
from slotool.tables import FULL, OperatingPoint

INPUT = "features"
MAX_TEXT_MODEL_BYTES = 2**31


class _Boosted(Model):
    """``features`` [n, features] → ``probabilities`` [n, classes] of a classifier, ``value`` [n] of a regressor."""

    def _describe(self, path: Path, features: int, classes: int) -> None:
        """``classes``: 0 for a regressor."""
        self.name, self._classes = path.stem, classes
        output = (
            TensorSpec("probabilities", "FP64", (FREE, classes)) if classes else TensorSpec("value", "FP64", (FREE,))
        )
        self.signature = Signature((TensorSpec(INPUT, "FP64", (FREE, features)),), (output,))

    def _output(self, made: np.ndarray) -> dict[str, np.ndarray]:
        output = self.signature.outputs[0]
        made = np.asarray(made, dtype=output.dtype)
        if self._classes == 2 and made.ndim == 1:  # of two classes a booster gives the second one's
            made = np.column_stack([1 - made, made])
        return {output.name: made}


class XGBoostModel(_Boosted):
    """A booster that XGBoost's ``save_model`` wrote.

    Raises ``InputError`` for an objective without probabilities, ``MissingPackageError`` without XGBoost.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None):
        extras.require("xgboost", needed_by="an XGBoost model")
        import xgboost

        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        try:
            self._booster = xgboost.Booster(params={} if threads is None else {"nthread": threads}, model_file=path)
            learner = json.loads(self._booster.save_config())["learner"]
        except (xgboost.core.XGBoostError, ValueError, KeyError) as error:
            raise InputError(f"{path}: XGBoost cannot load it ({reason(error)})") from error
        objective = learner["objective"]["name"]
        if objective.startswith("rank:") or objective in ("multi:softmax", "binary:hinge", "binary:logitraw"):
            raise InputError(
                f"{path}: its objective {objective} gives no probabilities; use binary:logistic or multi:softprob"
            )
        classes = {"multi:": int(learner["learner_model_param"]["num_class"]), "binary": 2}.get(objective[:6], 0)
        self._describe(path, self._booster.num_features(), classes)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            return self._output(self._booster.inplace_predict(inputs[INPUT], validate_features=False))
        except Exception as error:
            raise RunError(f"{self.name}: XGBoost failed ({reason(error)})") from error


class LightGBMModel(_Boosted):
    """A booster that LightGBM's ``save_model`` wrote as text. Raises ``InputError`` when it cannot be read,
    ``MissingPackageError`` without LightGBM."""

    def __init__(self, path: str | Path, *, threads: int | None = None):
        extras.require("lightgbm", needed_by="a LightGBM model")
        import lightgbm

        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        text = read_text(path, MAX_TEXT_MODEL_BYTES, "replace")
        if not text.startswith("tree\n"):
            raise InputError(f"{path}: not a text file that LightGBM's save_model wrote")
        try:
            self._booster = lightgbm.Booster(model_str=text)
            features, columns = self._booster.num_feature(), self._booster.num_model_per_iteration()
        except lightgbm.basic.LightGBMError as error:
            raise InputError(f"{path}: LightGBM cannot load it ({reason(error)})") from error
        objective = next((line[10:] for line in text.splitlines() if line.startswith("objective=")), "")
        self._options: dict[str, Any] = {} if threads is None else {"num_threads": threads}
        self._describe(path, features, columns if columns > 1 else 2 * objective.startswith("binary"))

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            return self._output(np.asarray(self._booster.predict(inputs[INPUT], **self._options)))
        except Exception as error:
            raise RunError(f"{self.name}: LightGBM failed ({reason(error)})") from error
