"""Estimators of scikit-learn, in memory and in ``.skops`` files: no pickle, classes of a list, checked structure."""

from __future__ import annotations

import gc
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from slotool import extras, strict_json
from slotool.errors import InputError, RunError
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

    names_inputs = False

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
            # Columns of the input array are in the order of the names already.
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
        try:
            return cls(read_estimator(path), name=path.stem)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{path}: not a fitted estimator ({reason(error)})") from error

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            return self._outputs(inputs[INPUT])
        except Exception as error:
            raise RunError(f"{self.name}: scikit-learn failed ({reason(error)})") from error

    def _output_specs(self) -> tuple[TensorSpec, ...]:
        if self.classes is None:
            outputs: tuple[int, ...] = ()
            with suppress(Exception):  # some know no category 0
                outputs = np.shape(self._estimator.predict(np.zeros((1, self._estimator.n_features_in_))))[1:]
            return (TensorSpec("value", "FP64", (FREE, *outputs)),)
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
        """Return the class names as BYTES, numbers as they are."""
        if labels.dtype.kind in "OUS":
            return np.array([str(label).encode() for label in labels], dtype=np.object_)
        return labels


# Classes that predict by NumPy, which checks shapes and indices itself, or that have a rule below.
_CLASSES = """
    ARDRegression AdaBoostClassifier AdaBoostRegressor AdamOptimizer BaggingClassifier BaggingRegressor BayesianRidge
    BernoulliNB Binarizer Bunch CalibratedClassifierCV CategoricalNB ColumnTransformer ComplementNB
    DecisionTreeClassifier DecisionTreeRegressor DummyClassifier DummyRegressor ElasticNet ElasticNetCV
    ExtraTreeClassifier ExtraTreeRegressor ExtraTreesClassifier ExtraTreesRegressor FeatureUnion FunctionTransformer
    GammaRegressor GaussianNB GradientBoostingClassifier GradientBoostingRegressor GridSearchCV
    HistGradientBoostingClassifier HistGradientBoostingRegressor HuberRegressor IncrementalPCA IsotonicRegression
    KBinsDiscretizer KFold KMeans KNeighborsClassifier KNeighborsRegressor LabelBinarizer LabelEncoder Lars LarsCV Lasso
    LassoCV LassoLars LassoLarsCV LassoLarsIC LinearDiscriminantAnalysis LinearRegression LinearSVC LinearSVR
    LogisticRegression LogisticRegressionCV MLPClassifier MLPRegressor MaxAbsScaler MinMaxScaler MiniBatchKMeans
    MultinomialNB NearestCentroid Normalizer NuSVC NuSVR OneClassSVM OneVsOneClassifier OneVsRestClassifier
    OrdinalEncoder OrthogonalMatchingPursuit PCA PassiveAggressiveClassifier PassiveAggressiveRegressor Perceptron
    Pipeline PoissonRegressor PolynomialFeatures PowerTransformer QuadraticDiscriminantAnalysis QuantileRegressor
    QuantileTransformer RandomForestClassifier RandomForestRegressor RandomizedSearchCV Ridge RidgeCV RidgeClassifier
    RidgeClassifierCV RobustScaler SGDClassifier SGDOptimizer SGDRegressor SVC SVR SelectFpr SelectFromModel SelectKBest
    SelectPercentile SimpleImputer StackingClassifier StackingRegressor StandardScaler StratifiedKFold TheilSenRegressor
    TransformedTargetRegressor TreePredictor TruncatedSVD TweedieRegressor VarianceThreshold VotingClassifier
    VotingRegressor _BinMapper _CalibratedClassifier _PassthroughScorer _SigmoidCalibration _TemperatureScaling
    AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss HalfPoissonLoss HalfSquaredError
    HalfTweedieLoss HalfTweedieLossIdentity HuberLoss PinballLoss HalfLogitLink IdentityLink Interval LogLink LogitLink
    MultinomialLogit
"""
# Compiled classes: trees, whose nodes are checked, and losses, which prediction does not call.
_COMPILED = """
    sklearn._loss._loss.CyAbsoluteError sklearn._loss._loss.CyExponentialLoss sklearn._loss._loss.CyHalfBinomialLoss
    sklearn._loss._loss.CyHalfGammaLoss sklearn._loss._loss.CyHalfMultinomialLoss
    sklearn._loss._loss.CyHalfPoissonLoss sklearn._loss._loss.CyHalfSquaredError sklearn._loss._loss.CyHalfTweedieLoss
    sklearn._loss._loss.CyHalfTweedieLossIdentity sklearn._loss._loss.CyHuberLoss sklearn._loss._loss.CyPinballLoss
    sklearn.linear_model._sgd_fast.EpsilonInsensitive sklearn.linear_model._sgd_fast.Hinge
    sklearn.linear_model._sgd_fast.ModifiedHuber sklearn.linear_model._sgd_fast.SquaredEpsilonInsensitive
    sklearn.linear_model._sgd_fast.SquaredHinge sklearn.tree._tree.Tree
"""
_PLAIN = """
    builtins.bool builtins.dict builtins.float builtins.int builtins.list builtins.set builtins.slice builtins.str
    builtins.tuple numpy.bool numpy.bool_ numpy.dtype numpy.float16 numpy.float32 numpy.float64 numpy.int8 numpy.int16
    numpy.int32 numpy.int64 numpy.ma.MaskedArray numpy.ndarray numpy.random._generator.Generator
    numpy.random.mtrand.RandomState numpy.str_ numpy.uint8 numpy.uint16 numpy.uint32 numpy.uint64
"""
_ESTIMATORS, _OTHERS = frozenset(_CLASSES.split()), frozenset((_COMPILED + _PLAIN).split())
_ADVICE = "save the model as ONNX (skl2onnx) instead"
# A tree takes some 20 KB of the schema.
MAX_SCHEMA_BYTES, MAX_UNPACKED_BYTES, MAX_THREADS = 2**28, 2**32, 256
_KERNELS = ("linear", "poly", "rbf", "sigmoid")
_METRICS = ("chebyshev", "cityblock", "cosine", "euclidean", "l1", "l2", "manhattan", "minkowski", "sqeuclidean")


def read_estimator(path: Path) -> Any:
    """Return the estimator that ``skops.io.dump`` wrote to ``path``.

    Raises:
        InputError: If the file holds a class that is not read, or arrays that do not fit each other.
    """
    from skops import io

    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
            schema = archive.read("schema.json") if size <= MAX_UNPACKED_BYTES else b""
        document = strict_json.decode(schema, max_bytes=MAX_SCHEMA_BYTES)
        unknown = sorted(name for name in set(_class_names(document)) if not _is_read(name))
        beyond = [] if unknown else io.get_untrusted_types(file=path)
    except Exception as error:
        raise InputError(f"{path}: not a file that skops wrote ({reason(error)})") from error
    if unknown:
        raise InputError(
            f"{path}: it holds {', '.join(unknown[:3])[:200]}, which is not known to be harmless; {_ADVICE}"
        )
    try:
        estimator = io.load(path, trusted=beyond)
    except Exception as error:
        raise InputError(f"{path}: skops cannot load it ({reason(error)})") from error
    for item in _reachable(estimator):
        name = type(item).__name__
        try:
            fits = name not in _RULES or not _is_fitted(item) or _RULES[name].holds(item)
        except Exception as error:
            raise InputError(f"{path}: not a fitted {name} ({reason(error)})") from error
        if not fits:
            raise InputError(f"{path}: arrays of {name} do not fit each other: a node, size or index leads nowhere")
    return estimator


def _class_names(value: Any) -> Iterator[str]:
    """Yield the names of all classes and functions in the schema of a file."""
    if isinstance(value, Mapping):
        if "__class__" in value or "__module__" in value:
            yield f"{value.get('__module__')}.{value.get('__class__')}"
        for item in value.values():
            yield from _class_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _class_names(item)


def _is_read(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    if name in _OTHERS:
        return True
    if kind not in _ESTIMATORS or not module.startswith("sklearn.") or "test" in module or ".externals" in module:
        return False
    try:
        cls = getattr(import_module(module), kind, None)
    except Exception:
        return False
    return isinstance(cls, type) and cls.__module__ == module


def _reachable(estimator: Any) -> Iterator[Any]:
    """Yield every object that ``estimator`` holds, itself included, once."""
    waiting, seen = [estimator], set[int]()
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        yield item
        # The garbage collector does not look into arrays.
        has_objects = isinstance(item, np.ndarray) and item.dtype.hasobject
        waiting.extend(item.ravel().tolist() if has_objects else gc.get_referents(item))


def _is_fitted(estimator: Any) -> bool:
    """True unless an estimator has only options, such as the template of an ensemble's members."""
    return any(name != "_sklearn_version" and "_" in (name[0], name[-1]) for name in vars(estimator))


@dataclass(frozen=True)
class _Rule:
    """Requirements on the attributes of an estimator.

    Attributes:
        shapes: Sizes of each array, by name or number; equal names are equal sizes. Known are ``features``,
            ``classes``, ``rows`` (classes less one) and ``pairs`` (of classes).
        values: Values that an attribute may have.
        bounds: Name of the size below which all numbers of an array are, from 0.
        also: Further condition on estimator and sizes.
    """

    shapes: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    also: Callable[[Any, dict[str, int]], bool] = lambda estimator, sizes: True

    def holds(self, estimator: Any) -> bool:
        sizes = {"features": int(estimator.n_features_in_)}
        if hasattr(estimator, "classes_"):
            count = len(estimator.classes_)
            sizes |= {"classes": count, "rows": count - 1, "pairs": count * (count - 1) // 2}
        return (
            all(_has_shape(getattr(estimator, name), names, sizes) for name, names in self.shapes.items())
            and all(_is_among(getattr(estimator, name), allowed) for name, allowed in self.values.items())
            and all(_within(getattr(estimator, name), sizes[size]) for name, size in self.bounds.items())
            and self.also(estimator, sizes)
        )


def _has_shape(array: Any, names: str, sizes: dict[str, int]) -> bool:
    if not isinstance(array, np.ndarray) or array.ndim != len(names.split()):
        return False
    return all(
        size == (int(name) if name.isdigit() else sizes.setdefault(name, size))
        for name, size in zip(names.split(), array.shape, strict=True)
    )


def _is_among(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in allowed)


def _within(numbers: Any, count: int) -> bool:
    return bool(((numbers >= 0) & (numbers < count)).all())


def _is_sound_tree(estimator: Any, sizes: dict[str, int]) -> bool:
    tree = estimator.tree_
    if f"{type(tree).__module__}.{type(tree).__name__}" != "sklearn.tree._tree.Tree":
        return False
    inner = np.flatnonzero(tree.children_left != -1)
    leads = _leads_down(tree.children_left, tree.children_right, inner)
    return leads and _within(tree.feature[inner], sizes["features"])


def _leads_down(left: np.ndarray, right: np.ndarray, inner: np.ndarray) -> bool:
    """True if there is a root, and both children of every inner node come after it, as scikit-learn numbers nodes."""
    children = np.stack([left[inner], right[inner]]).astype(np.int64)
    return len(left) > 0 and bool((children > inner).all()) and _within(children, len(left))


def _are_alike(estimator: Any, sizes: dict[str, int]) -> bool:
    """True if the members are trees that read as many features: forests pass their input on unchecked."""
    members = np.asarray(estimator.estimators_, dtype=object).ravel()
    return all(type(each).__name__ in _TREES and each.n_features_in_ == sizes["features"] for each in members)


def _are_stages(estimator: Any, sizes: dict[str, int]) -> bool:
    is_first = isinstance(estimator.init_, str) or type(estimator.init_).__name__.startswith("Dummy")
    if not is_first or not _are_alike(estimator, sizes):
        return False
    # Trees add to these numbers in place, one column a tree.
    start = estimator._raw_predict_init(np.zeros((1, sizes["features"]), np.float32))
    return bool(start.shape == (1, estimator.estimators_.shape[1]) and start.dtype == np.float64)


def _are_boosted(estimator: Any, sizes: dict[str, int]) -> bool:
    members = [tree for stage in estimator._predictors for tree in stage]
    bins = estimator._bin_mapper
    return (
        all(type(tree).__name__ == "TreePredictor" and _is_sound_predictor(tree, sizes["features"]) for tree in members)
        and bins.is_categorical_.shape == (sizes["features"],)
        and not bins.is_categorical_.any()
    )


def _is_sound_predictor(predictor: Any, features: int) -> bool:
    nodes = predictor.nodes
    inner = np.flatnonzero(nodes["is_leaf"] == 0)
    is_numerical = not nodes["is_categorical"].any()
    return (
        is_numerical
        and _leads_down(nodes["left"], nodes["right"], inner)
        and _within(nodes["feature_idx"][inner], features)
    )


def _are_support_vectors(estimator: Any, sizes: dict[str, int]) -> bool:
    counts = estimator._n_support.astype(np.int64)
    is_split = "classes" not in sizes or (bool((counts >= 0).all()) and counts.sum() == sizes["vectors"])
    return is_split and sizes["slopes"] in (0, sizes.get("pairs", 1))


def _is_brute(estimator: Any, sizes: dict[str, int]) -> bool:
    counts = estimator.n_neighbors, estimator.n_samples_fit_
    return (
        isinstance(estimator._y, np.ndarray)
        and len(estimator._y) == sizes["rows_fit"] == counts[1]
        and 1 <= counts[0] <= counts[1]
        and set(estimator.effective_metric_params_) <= {"p"}
        and not estimator.metric_params
    )


_TREES = ("DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor")
_TREE, _FOREST = _Rule(also=_is_sound_tree), _Rule(also=_are_alike)
_STAGES = _Rule({"estimators_": "stages trees"}, also=_are_stages)
_HISTOGRAMS = _Rule(values={"_preprocessor": (None,), "is_categorical_": (None,)}, also=_are_boosted)
_VECTORS = {"support_vectors_": "vectors features", "support_": "vectors", "_probA": "slopes", "_probB": "slopes"}
_DENSE = {"_sparse": (False,), "kernel": _KERNELS}
_SVC = _Rule(
    {**_VECTORS, "_dual_coef_": "rows vectors", "_intercept_": "pairs", "_n_support": "classes"},
    _DENSE,
    also=_are_support_vectors,
)
_SVR = _Rule(
    {**_VECTORS, "_dual_coef_": "1 vectors", "_intercept_": "1", "_n_support": "2"}, _DENSE, also=_are_support_vectors
)
_NEIGHBOURS = {
    "_fit_method": ("brute",),
    "_tree": (None,),
    "metric": _METRICS,
    "effective_metric_": _METRICS,
    "weights": ("uniform", "distance"),
}
_CENTRES = _Rule(
    {"cluster_centers_": "clusters features"},
    {"_n_threads": tuple(range(1, MAX_THREADS + 1))},
)
_RULES = {
    **dict.fromkeys(_TREES, _TREE),
    **dict.fromkeys(
        ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor"), _FOREST
    ),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor"), _STAGES),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), _HISTOGRAMS),
    **dict.fromkeys(("SVC", "NuSVC"), _SVC),
    **dict.fromkeys(("SVR", "NuSVR", "OneClassSVM"), _SVR),
    **dict.fromkeys(("KMeans", "MiniBatchKMeans"), _CENTRES),
    "KNeighborsClassifier": _Rule({"_fit_X": "rows_fit features"}, _NEIGHBOURS, {"_y": "classes"}, _is_brute),
    "KNeighborsRegressor": _Rule({"_fit_X": "rows_fit features"}, _NEIGHBOURS, also=_is_brute),
}
