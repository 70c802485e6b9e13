"""Boosted trees in their libraries' own text and JSON formats: XGBoost (``.ubj``, ``.json``), LightGBM (``.txt``)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import slotool.process
from slotool import extras, strict_json
from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.regular_files import read_bytes, read_text, require_regular
from slotool.tables import FULL, OperatingPoint

INPUT = "features"
MAX_TEXT_MODEL_BYTES = 2**31
# Programs that read a model from standard input and write it again. Both libraries follow sizes and names of a file as
# they read: a forged one can end the process.
_READERS = {
    "XGBoost": """
import sys, xgboost
try:
    model = xgboost.Booster(model_file=bytearray(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(model.save_raw("json"))
except (xgboost.core.XGBoostError, ValueError, KeyError) as error:
    sys.exit((str(error).strip() or type(error).__name__).splitlines()[0])
""",
    "LightGBM": """
import sys, lightgbm
try:
    model = lightgbm.Booster(model_str=sys.stdin.buffer.read().decode())
    sys.stdout.buffer.write(model.model_to_string().encode())
except lightgbm.basic.LightGBMError as error:
    sys.exit(str(error).splitlines()[0])
""",
}
MAX_READING_S = 120.0
# Arrays of a tree that have a value for each node.
_PER_NODE = ("right_children", "parents", "split_indices", "split_conditions", "split_type", "default_left")


class _Boosted(Model):
    """``features`` [n, features] → ``probabilities`` [n, classes] of a classifier, ``value`` [n] of a regressor."""

    names_inputs = False

    def _describe(self, path: Path, features: int, classes: int) -> None:
        """Set the signature; ``classes`` is 0 for a regressor."""
        self.name, self._classes = path.stem, classes
        output = (
            TensorSpec("probabilities", "FP64", (FREE, classes)) if classes else TensorSpec("value", "FP64", (FREE,))
        )
        self.signature = Signature((TensorSpec(INPUT, "FP64", (FREE, features)),), (output,))

    def _output(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        output = self.signature.outputs[0]
        scores = np.asarray(scores, dtype=output.dtype)
        if self._classes == 2 and scores.ndim == 1:  # of two classes a booster gives the second one's
            scores = np.column_stack([1 - scores, scores])
        return {output.name: scores}


class XGBoostModel(_Boosted):
    """A booster that XGBoost's ``save_model`` wrote.

    Raises ``InputError`` for an objective without probabilities, ``MissingPackageError`` without XGBoost.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None):
        extras.require("xgboost", needed_by="an XGBoost model")
        import xgboost

        path = Path(path)
        require_regular(path)
        written = _written_again(path, "XGBoost", read_bytes(path, MAX_TEXT_MODEL_BYTES))
        with strict_json.assembling(path, "a model of XGBoost"):
            document = strict_json.decode(written, max_bytes=MAX_TEXT_MODEL_BYTES)
            _require_sound(path, document)
            learner = document["learner"]
        options = {} if threads is None else {"nthread": threads}
        try:
            self._booster = xgboost.Booster(params=options, model_file=bytearray(written))
        except xgboost.core.XGBoostError as error:
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


def _written_again(path: Path, library: str, content: bytes) -> bytes:
    """Return ``content`` as ``library`` writes what it reads, in a process of its own.

    Raises:
        InputError: The library rejects the content, crashes on it, or does not finish.
    """
    try:
        command = [slotool.process.INTERPRETER, "-P", "-c", _READERS[library]]
        read = subprocess.run(command, input=content, capture_output=True, timeout=MAX_READING_S)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: {library} has not read it within {MAX_READING_S:.0f} s") from None
    if read.returncode:
        lines = read.stderr.decode(errors="replace").strip().splitlines() if read.returncode == 1 else []
        words = reason(ValueError(lines[-1])) if lines else f"its reader ended with code {read.returncode}"
        raise InputError(f"{path}: {library} cannot load it ({words})")
    return read.stdout


def _require_sound(path: Path, document: Any) -> None:
    """Raise ``InputError`` for a tree of which a node, feature or category leads nowhere; XGBoost looks at none."""
    learner = document["learner"]
    booster, features = learner["gradient_booster"], int(learner["learner_model_param"]["num_feature"])
    booster = booster.get("gbtree", booster)
    if "model" not in booster or "trees" not in booster["model"]:
        raise InputError(f"{path}: a booster of trees is expected, this is {booster.get('name')!r}")
    groups = max(1, int(learner["learner_model_param"]["num_class"]))
    model = booster["model"]
    sound = len(model["tree_info"]) == len(model["trees"]) and _within(model["tree_info"], groups)
    for tree in model["trees"]:
        count, inner = len(tree["left_children"]), np.array(tree["left_children"]) != -1
        if any(len(tree[name]) != count for name in _PER_NODE):
            raise InputError(f"{path}: the arrays of a tree differ in length")
        children = np.concatenate([np.array(tree[side])[inner] for side in ("left_children", "right_children")])
        ends = np.add(tree["categories_segments"], tree["categories_sizes"])
        # If no node is reached twice and the root never, every path from the root ends.
        sound = sound and bool(
            count > 0
            and int(tree["tree_param"]["size_leaf_vector"]) <= 1
            and _within(children - 1, count - 1)
            and len(np.unique(children)) == len(children)
            and _within(np.array(tree["split_indices"])[inner], features)
            and _within(tree["categories_nodes"], count)
            and _within(tree["categories_segments"], len(tree["categories"]) + 1)
            and _within(ends, len(tree["categories"]) + 1)
            and set(np.flatnonzero(np.array(tree["split_type"]) & inner)) <= set(tree["categories_nodes"])
        )
    if not sound:
        raise InputError(f"{path}: a node, feature or category of a tree leads nowhere")


def _within(numbers: Any, count: int) -> bool:
    array = np.asarray(numbers)
    return bool(((array >= 0) & (array < count)).all())


class LightGBMModel(_Boosted):
    """Booster that LightGBM's ``save_model`` wrote as text.

    Raises ``InputError`` if it cannot be read, ``MissingPackageError`` without LightGBM.
    """

    def __init__(self, path: str | Path, *, threads: int | None = None):
        extras.require("lightgbm", needed_by="a LightGBM model")
        import lightgbm

        path = Path(path)
        require_regular(path)
        text = read_text(path, MAX_TEXT_MODEL_BYTES, "replace")
        if not text.startswith("tree\n"):
            raise InputError(f"{path}: not a text file that LightGBM's save_model wrote")
        with strict_json.assembling(path, "a model of LightGBM"):
            try:
                text = checked(text)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
        _written_again(path, "LightGBM", text.encode())
        self._booster = lightgbm.Booster(model_str=text)
        features, columns = self._booster.num_feature(), self._booster.num_model_per_iteration()
        objective = next((line[10:] for line in text.splitlines() if line.startswith("objective=")), "")
        self._options: dict[str, Any] = {} if threads is None else {"num_threads": threads}
        self._describe(path, features, columns if columns > 1 else 2 * objective.startswith("binary"))

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            return self._output(np.asarray(self._booster.predict(inputs[INPUT], **self._options)))
        except Exception as error:
            raise RunError(f"{self.name}: LightGBM failed ({reason(error)})") from error


_LEAVES, _NODES = {"leaf_value", "leaf_weight", "leaf_count"}, {
    "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child", "internal_value",
    "internal_weight", "internal_count",
}  # fmt: skip
_ONE = {"num_leaves", "num_cat", "is_linear", "shrinkage"}
_NUMBERS = re.compile(r"[-+.0-9einfa ]*")
_WHOLE = {"split_feature", "decision_type", "left_child", "right_child", "cat_boundaries", "cat_threshold", *_ONE}
_WHOLE -= {"shrinkage"}
MAX_FEATURES, IS_CATEGORICAL = 2**24, 1


def checked(text: str) -> str:
    """Return the trees of a text model and the header that they need, put together again.

    The sizes of trees are left out: with them LightGBM reads trees in parallel, where an error ends the process.

    Raises:
        InputError: If counts differ or a node, feature or category leads nowhere.
    """
    head, *blocks = text.partition("\nend of trees")[0].replace("\r", "").split("\nTree=")
    lines = [line for line in head.splitlines() if line and not line.startswith("tree_sizes=")]
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    features, per_round = int(fields["max_feature_idx"]) + 1, int(fields["num_tree_per_iteration"])
    stated = re.search(r"num_class:(\d+)", fields.get("objective", ""))
    classes = {int(fields["num_class"]), per_round, int(stated[1]) if stated else per_round}
    if not 0 < features <= MAX_FEATURES or len(classes) > 1 or per_round < 1 or len(blocks) % per_round:
        raise InputError("numbers of features, classes and trees do not fit each other")
    if any(len(fields[name].split()) != features for name in ("feature_names", "feature_infos")):
        raise InputError(f"{features} features are stated, and another number of them is named")
    trees = [f"Tree={at}\n{_checked_tree(at, block, features)}" for at, block in enumerate(blocks)]
    return "\n".join(lines) + "\n\n" + "\n\n\n".join(trees) + "\n\n\nend of trees\n"


def _checked_tree(at: int, block: str, features: int) -> str:
    lines = block.partition("\n")[2].partition("\n\n")[0].splitlines()
    fields = dict(line.split("=", 1) for line in lines)
    values = {name: _numbers(name, text) for name, text in fields.items()}
    leaves, categories = (int(values[name][0]) for name in ("num_leaves", "num_cat"))
    counts = {
        **dict.fromkeys(_LEAVES, leaves),
        **dict.fromkeys(_NODES, leaves - 1),
        **dict.fromkeys(_ONE, 1),
        "cat_boundaries": categories + 1,
        "cat_threshold": len(values.get("cat_threshold", ())),
    }
    empty = {name for name in _LEAVES - {"leaf_value"} if leaves == 1 and not len(values.get(name, ()))}
    fits = len(fields) == len(lines) and all(len(values[name]) == counts.get(name) for name in fields.keys() - empty)
    if not fits or leaves < 1 or values.get("is_linear", np.zeros(1))[0] != 0:
        raise InputError(f"tree {at}: it is linear, or its arrays differ in length")
    nodes, children = np.arange(leaves - 1), np.stack([values["left_child"], values["right_child"]])
    leads_down = ((children > nodes) & (children < leaves - 1)) | ((children < 0) & (-children <= leaves))
    is_category = values["decision_type"].astype(np.int64) & IS_CATEGORICAL > 0 if leaves > 1 else nodes < 0
    bounds = values.get("cat_boundaries", np.zeros(1))
    words = len(values.get("cat_threshold", ()))
    if not (
        leads_down.all()
        and _within(values["split_feature"], features)
        and _within(values["threshold"][is_category], categories)
        and bounds[0] == 0
        and bounds[-1] == words
        and (np.diff(bounds) >= 0).all()
    ):
        raise InputError(f"tree {at}: a node, feature or category leads nowhere")
    return "\n".join(lines)


def _numbers(name: str, text: str) -> np.ndarray:
    pattern = re.compile(r"[-0-9 ]*") if name in _WHOLE else _NUMBERS
    if not pattern.fullmatch(text):
        raise InputError(f"{name[:40]}: a number is expected, not {text[:40]!r}")
    return np.array(text.split(), dtype=np.float64)
