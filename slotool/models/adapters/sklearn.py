"""scikit-learn estimators: ``.skops`` files, which hold no pickle, and estimators in memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from slotool import extras
from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec, datatype_of
from slotool.printable import reason
from slotool.tables import FULL, OperatingPoint

INPUT = "features"
# Compiled types of scikit-learn beyond those that skops vouches for: trees, whose indices ``_require_sound`` checks
# before any of them is followed.
_TREE = "sklearn.tree._tree.Tree"
_PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"
_COMPILED = {_TREE, _PREDICTOR}
# Bits of a class that is made by Python code (Py_TPFLAGS_HEAPTYPE).
_MADE_BY_PYTHON = 1 << 9


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
        """Of a file that ``skops.io.dump`` wrote, whose types are all known to be harmless.

        Raises ``InputError`` naming a type that is not, or a tree whose nodes lead nowhere; ``MissingPackageError``
        without skops.
        """
        extras.require("skops", needed_by="a scikit-learn model")
        from skops import io

        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        try:
            beyond = io.get_untrusted_types(file=path)
        except Exception as error:
            raise InputError(f"{path}: not a file that skops wrote ({reason(error)})") from error
        unknown = [name for name in beyond if name not in _COMPILED and not _is_python_of_sklearn(name)]
        if unknown:
            known = "which is not known to be harmless; save the model as ONNX (skl2onnx) instead"
            raise InputError(f"{path}: it holds {', '.join(unknown[:3])}, {known}")
        try:
            estimator = io.load(path, trusted=beyond)
        except Exception as error:
            raise InputError(f"{path}: skops cannot load it ({reason(error)})") from error
        _require_sound(path, estimator)
        return cls(estimator, name=path.stem)

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


def _is_python_of_sklearn(name: str) -> bool:
    """Whether ``name`` is a class of scikit-learn in plain Python, private ones such as those within a
    ``CalibratedClassifierCV`` included: skops fills its attributes, and what these are is checked by itself. Compiled
    classes follow indices that a file may have forged."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("sklearn.") or "test" in module or ".externals" in module:
        return False
    try:
        found = getattr(import_module(module), kind, None)
    except Exception:
        return False
    if not isinstance(found, type) or found.__module__ != module:
        return False
    return all(each.__flags__ & _MADE_BY_PYTHON or each in (object, dict) for each in found.__mro__)


def _require_sound(path: Path, estimator: Any) -> None:
    """Raises ``InputError`` when a compiled tree in ``estimator`` has a node that leads out of it or back, or reads a
    feature that its input does not have."""
    waiting: list[tuple[Any, int]] = [(estimator, 0)]
    seen = set[int]()
    while waiting:
        held, features = waiting.pop()
        if id(held) in seen or isinstance(held, type | ModuleType | FunctionType):
            continue
        seen.add(id(held))
        sound = _SOUND.get(f"{type(held).__module__}.{type(held).__qualname__}")
        if sound is not None and not sound(held, features):
            raise InputError(f"{path}: a tree in it has a node that leads nowhere")
        own = vars(held).get("n_features_in_") if hasattr(held, "__dict__") else None
        if isinstance(own, int):
            # Ensembles hand their input on to their members unchecked; other estimators check its width.
            unchecked = type(held).__module__.startswith("sklearn.tree.") and features
            features = min(own, features) if unchecked else own
        waiting.extend((inner, features) for inner in gc.get_referents(held))


def _is_sound_tree(tree: Any, features: int) -> bool:
    inner = np.flatnonzero(tree.children_left != -1)
    return _leads_down(tree.children_left, tree.children_right, inner) and _within(tree.feature[inner], features)


def _is_sound_predictor(predictor: Any, features: int) -> bool:
    nodes = predictor.nodes
    inner = np.flatnonzero(nodes["is_leaf"] == 0)
    by_category = nodes[inner]["bitset_idx"][nodes[inner]["is_categorical"] != 0]
    return (
        _leads_down(nodes["left"], nodes["right"], inner)
        and _within(nodes["feature_idx"][inner], features)
        and _within(by_category, len(predictor.raw_left_cat_bitsets))
    )


def _leads_down(left: np.ndarray, right: np.ndarray, inner: np.ndarray) -> bool:
    """Whether both children of every inner node are there and come after it, as scikit-learn numbers nodes."""
    children = np.stack([left[inner], right[inner]]).astype(np.int64)
    return bool((children > inner).all()) and _within(children, len(left))


def _within(numbers: np.ndarray, count: int) -> bool:
    return bool(((numbers >= 0) & (numbers < count)).all())


_SOUND = {_TREE: _is_sound_tree, _PREDICTOR: _is_sound_predictor}
