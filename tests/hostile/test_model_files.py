"""Forged model files of other libraries: a sentence or an answer, and no library ends the process.

Whatever is forged is loaded and run in a process of its own, whose end by a signal fails the test.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import load_wine
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OrdinalEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import slotool.process
from slotool.errors import InputError
from slotool.models.loading import load
from tests.hostile.hostile_files import seed

X, Y = load_wine(return_X_y=True)
# Files for one process: starting one takes longer than most files.
AT_ONCE = 200


def outcomes(paths: Iterable[Path]) -> list[str]:
    """Return what became of each file; fail the test if its process did not come to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [slotool.process.INTERPRETER, str(Path(__file__).with_name("model_child.py")), *map(str, paths)],
        capture_output=True, text=True, timeout=500, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout.splitlines()[-1:], done.stderr[-2_000:])
    return done.stdout.splitlines()


ESTIMATORS: list[Any] = [
    SVC(), SVC(kernel="poly"), NuSVC(nu=0.1), SVR(), NuSVR(), LinearSVC(),
    KNeighborsClassifier(algorithm="brute"), KNeighborsRegressor(algorithm="brute", weights="distance"),
    KMeans(3, n_init=1), MiniBatchKMeans(3, n_init=1),
    DecisionTreeClassifier(), DecisionTreeRegressor(), RandomForestClassifier(2), RandomForestRegressor(2),
    ExtraTreesClassifier(2), AdaBoostClassifier(n_estimators=2), BaggingClassifier(n_estimators=2),
    GradientBoostingClassifier(n_estimators=2), GradientBoostingRegressor(n_estimators=2),
    HistGradientBoostingClassifier(max_iter=2), HistGradientBoostingRegressor(max_iter=2),
    MLPClassifier((5,), max_iter=5), GaussianNB(), BernoulliNB(), CategoricalNB(), LogisticRegression(),
    make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge()),
    make_pipeline(KBinsDiscretizer(3, encode="ordinal"), OrdinalEncoder(handle_unknown="use_encoded_value",
                                                                       unknown_value=-1), GaussianNB()),
]  # fmt: skip


def fitted(estimator: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = np.clip(X, 0, 9).astype(int) if isinstance(estimator, CategoricalNB) else X
        return copy.deepcopy(estimator).fit(x, Y)


def parts(estimator: Any) -> list[tuple[Any, str]]:
    """Every attribute of every object in ``estimator`` that a file holds."""
    waiting, seen, found = [estimator], set[int](), []
    while waiting:
        held = waiting.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, list | tuple) or (isinstance(held, np.ndarray) and held.dtype == object):
            waiting.extend(np.ravel(np.array(held, dtype=object)) if isinstance(held, np.ndarray) else held)
        elif hasattr(held, "__dict__") and type(held).__module__.startswith("sklearn."):
            found.extend((held, name) for name in vars(held))
            waiting.extend(vars(held).values())
    return found


NUMBERS = (-1, 0, 1, 2, 7, 12, 14, 4_000, 4_000_000, -(2**31), 2**31 - 5, 2**62, 1.5, np.nan)


def forged(value: Any, random: np.random.Generator) -> Any:
    """Another value in the place of ``value``."""
    number = NUMBERS[random.integers(len(NUMBERS))]
    if not isinstance(value, np.ndarray):
        if isinstance(value, list | tuple) and value and random.random() < 0.5:
            return value[: random.integers(len(value))]
        return (None, True, False, number, "precomputed", [], np.zeros(3), np.zeros((2, 2)))[random.integers(8)]
    altered = value.copy()
    if altered.size and random.random() < 0.5 and altered.dtype != object:
        chosen = altered.reshape(-1)
        if altered.dtype.names:
            name = altered.dtype.names[random.integers(len(altered.dtype.names))]
            chosen = altered[name].reshape(-1) if altered[name].ndim == 1 else chosen[:0]
        if chosen.size and chosen.dtype.kind in "iufb":
            with np.errstate(all="ignore"):
                places = random.integers(chosen.size, size=random.integers(1, 4))
                chosen[places] = np.array(number).astype(chosen.dtype) if chosen.dtype.kind != "f" else number
        if altered.dtype.names and chosen.size:
            altered[name] = chosen
        return altered
    changes: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        lambda array: array[: len(array) // 2] if array.ndim else array,
        lambda array: array[..., : array.shape[-1] // 2] if array.ndim else array,
        lambda array: array[..., :0] if array.ndim else array,
        lambda array: np.concatenate([array, array]) if array.ndim else array,
        lambda array: array.astype(np.float32) if array.dtype.kind in "iuf" else array,
        lambda array: array.T.copy(),
        lambda array: array.ravel(),
    )
    return np.ascontiguousarray(changes[random.integers(len(changes))](altered))


def altered(whole: Any, random: np.random.Generator) -> Any:
    """A copy of an estimator with one or two attributes, at any depth, replaced."""
    copied = copy.deepcopy(whole)
    places = parts(copied)
    for _ in range(random.integers(1, 3)):
        held, name = places[random.integers(len(places))]
        value = vars(held)[name]
        # A compiled tree keeps its arrays to itself.
        vars(held)[name] = (forged_tree if type(value).__name__ == "Tree" else forged)(value, random)
    return copied


@pytest.fixture(scope="module")
def estimators() -> dict[str, Any]:
    """Fitted estimators by the names of their files."""
    return {f"{at}-{type(estimator).__name__}": fitted(estimator) for at, estimator in enumerate(ESTIMATORS)}


def forgeries(
    estimators: dict[str, Any], names: Iterable[str], folder: Path, random: np.random.Generator
) -> list[Path]:
    """Write a forged file of each of the named estimators."""
    io = pytest.importorskip("skops.io")
    paths = []
    for number, name in enumerate(names):
        path = folder / f"{number}-{name}.skops"
        with suppress(Exception):  # a value of which skops makes no file
            io.dump(altered(estimators[name], random), path)
            paths.append(path)
    return paths


def test_whole_estimators_answer_and_one_forgery_of_each_answers_or_is_refused(
    estimators: dict[str, Any], tmp_path: Path
) -> None:
    io = pytest.importorskip("skops.io")
    whole = [tmp_path / f"{name}.skops" for name in estimators]
    for path, estimator in zip(whole, estimators.values(), strict=True):
        io.dump(estimator, path)
    forged_files = forgeries(estimators, estimators, tmp_path, np.random.default_rng(0))
    assert len(forged_files) > len(whole) / 2
    lines = outcomes([*whole, *forged_files])
    assert all(line.endswith("answered") for line in lines[: len(whole)]), lines


@pytest.mark.long
def test_forged_estimators_answer_or_are_refused(
    estimators: dict[str, Any], tmp_path: Path, hostile_seconds: float
) -> None:
    random, until_s, first = np.random.default_rng(seed()), time.monotonic() + hostile_seconds, True
    while first or time.monotonic() < until_s:
        first = False
        outcomes(forgeries(estimators, random.choice(list(estimators), AT_ONCE), tmp_path, random))


def forged_tree(tree: Any, random: np.random.Generator) -> Any:
    state = tree.__getstate__()
    nodes = state["nodes"].copy()
    name = ("left_child", "right_child", "feature")[random.integers(3)]
    nodes[name][random.integers(len(nodes))] = (-2, -1, 0, 1, 5, 14, 10**6, -(10**9))[random.integers(8)]
    forged = type(tree)(tree.n_features, np.atleast_1d(np.array(tree.n_classes)), tree.n_outputs)
    forged.__setstate__({**state, "nodes": nodes})
    return forged


def svc_counts(estimator: Any) -> None:
    total = len(estimator.support_)
    estimator._n_support = np.array([-2_000_000_000, 2_000_000_000 - 5, total + 5], dtype=np.int32)


def shorter(name: str) -> Callable[[Any], None]:
    def shorten(estimator: Any) -> None:
        array = getattr(estimator, name)
        setattr(estimator, name, np.ascontiguousarray(array[..., : array.shape[-1] // 2]))

    return shorten


def wider(estimator: Any) -> None:
    estimator.n_features_in_ = 4_000_000


def more_trees(estimator: Any) -> None:
    estimator.estimators_ = np.repeat(estimator.estimators_, 4, axis=1)


def deep_node(estimator: Any) -> None:
    tree = estimator.estimators_[0, 0].tree_
    state = tree.__getstate__()
    state["nodes"]["left_child"][0] = 10**6
    tree.__setstate__(state)


def no_bins(estimator: Any) -> None:
    estimator._bin_mapper.is_categorical_ = np.zeros(1, np.uint8)
    for stage in estimator._predictors:
        for predictor in stage:
            predictor.nodes["is_categorical"][0] = 1


KNOWN = [
    (SVC(), svc_counts), (SVC(), shorter("support_vectors_")), (SVC(), shorter("_dual_coef_")),
    (SVC(), shorter("_intercept_")), (NuSVR(), shorter("support_vectors_")), (NuSVR(), shorter("_dual_coef_")),
    (KMeans(3, n_init=1), shorter("cluster_centers_")), (KMeans(3, n_init=1), wider),
    (KNeighborsClassifier(algorithm="brute"), wider), (KNeighborsClassifier(algorithm="brute"), shorter("_y")),
    (SVC(), wider), (DecisionTreeClassifier(), lambda tree: setattr(tree, "n_features_in_", 2)),
    (GradientBoostingClassifier(n_estimators=2), more_trees), (GradientBoostingRegressor(n_estimators=2), deep_node),
    (HistGradientBoostingClassifier(max_iter=2), no_bins),
]  # fmt: skip


@pytest.mark.parametrize("which", range(len(KNOWN)))
def test_arrays_that_compiled_code_would_read_beyond_are_refused(which: int, tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    estimator, forge = KNOWN[which]
    altered = fitted(estimator)
    forge(altered)
    io.dump(altered, tmp_path / "forged.skops")
    with pytest.raises(InputError, match="do not fit each other"):
        load(tmp_path / "forged.skops")


@pytest.mark.parametrize("strategy", ["", None, 1])
def test_an_estimator_that_scikit_learn_cannot_call_is_refused(strategy: Any, tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    altered = fitted(GradientBoostingClassifier(n_estimators=2))
    altered.init_._strategy = strategy
    io.dump(altered, tmp_path / "forged.skops")
    with pytest.raises(InputError, match="not a fitted GradientBoostingClassifier"):
        load(tmp_path / "forged.skops")


TEXT_NUMBERS = ("-1", "0", "3", "14", "2000000", "-2000000000", "2147483647", "99999999999999", "1e300", "nan", "")


def altered_text(text: str, random: np.random.Generator) -> str:
    """A text model of LightGBM with one number replaced, or one list cut or doubled."""
    lines = text.split("\n")
    chosen = [at for at, line in enumerate(lines) if "=" in line and not line.startswith(("[", "feature_"))]
    at = chosen[random.integers(len(chosen))]
    key, _, rest = lines[at].partition("=")
    parts = rest.split(" ")
    where = random.integers(len(parts))
    number = TEXT_NUMBERS[random.integers(len(TEXT_NUMBERS))]
    lists = (parts[:where], parts + parts, [*parts[:where], number, *parts[where + 1 :]])
    lines[at] = f"{key}={' '.join(lists[random.choice(3, p=(0.15, 0.15, 0.7))])}"
    return "\n".join(lines)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text model of LightGBM with a categorical feature."""
    lightgbm = pytest.importorskip("lightgbm")
    path = tmp_path_factory.mktemp("text") / "whole.txt"
    trees = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(X.astype(int), Y, categorical_feature=[4])
    trees.booster_.save_model(path)
    return path


def forged_texts(whole: Path, count: int, folder: Path, random: np.random.Generator) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(count)]
    for path in paths:
        path.write_text(altered_text(whole.read_text(), random))
    return paths


def test_a_whole_text_model_answers_and_few_forged_ones_answer_or_are_refused(text_model: Path, tmp_path: Path) -> None:
    lines = outcomes([text_model, *forged_texts(text_model, 5, tmp_path, np.random.default_rng(0))])
    assert lines[0].endswith("answered")


@pytest.mark.long
def test_forged_text_models_answer_or_are_refused(text_model: Path, tmp_path: Path, hostile_seconds: float) -> None:
    random, until_s, first = np.random.default_rng(seed()), time.monotonic() + hostile_seconds, True
    while first or time.monotonic() < until_s:
        first = False
        outcomes(forged_texts(text_model, AT_ONCE // 8, tmp_path, random))


def test_a_booster_whose_tree_leads_nowhere_is_refused(tmp_path: Path) -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    lightgbm.LGBMClassifier(n_estimators=1, verbose=-1).fit(X, Y).booster_.save_model(tmp_path / "a.txt")
    xgboost.XGBClassifier(n_estimators=1).fit(X, Y).get_booster().save_model(tmp_path / "a.json")
    lines = (tmp_path / "a.txt").read_text().split("\n")
    forgeries = (("left_child", "0"), ("left_child", "-2000000000"), ("split_feature", "14"), ("num_leaves", ""))
    for name, number in forgeries:
        at = next(at for at, line in enumerate(lines) if line.startswith(f"{name}="))
        forged_line = f"{name}={' '.join([number, *lines[at].partition('=')[2].split()[1:]])}"
        (tmp_path / "b.txt").write_text("\n".join([*lines[:at], forged_line, *lines[at + 1 :]]))
        with pytest.raises(InputError):
            load(tmp_path / "b.txt")
    # One that names no objective ends the process in which LightGBM reads it.
    objective = next(at for at, line in enumerate(lines) if line.startswith("objective="))
    (tmp_path / "b.txt").write_text("\n".join([*lines[:objective], "objective=", *lines[objective + 1 :]]))
    with pytest.raises(InputError):
        load(tmp_path / "b.txt")
    # XGBoost looks at none of them; the first ends the process in which it is read.
    for name, number in (("parents", -2_000_000_000), ("split_indices", 2_000_000), ("left_children", 0)):
        whole = json.loads((tmp_path / "a.json").read_text())
        whole["learner"]["gradient_booster"]["model"]["trees"][0][name][1 if name == "parents" else 0] = number
        (tmp_path / "b.json").write_text(json.dumps(whole))
        with pytest.raises(InputError):
            load(tmp_path / "b.json")
