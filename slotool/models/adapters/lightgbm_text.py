"""Check of LightGBM's text models: its compiled code follows the counts and indices that they state."""

from __future__ import annotations

import re

import numpy as np

from slotool.errors import InputError

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


def _within(numbers: np.ndarray, count: int) -> bool:
    return bool(((numbers >= 0) & (numbers < count)).all())
