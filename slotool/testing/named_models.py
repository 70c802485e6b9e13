"""Two versions of a model with named inputs and outputs of several datatypes, as code that a family refers to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotool.data.columns import Columns
from slotool.elastic.family import Family
from slotool.elastic.versions import open_versions
from slotool.models import Classification, Signature, TensorSpec
from slotool.models.adapters.factory import FunctionModel

SIGNATURE = Signature(
    (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("word", "BYTES", (-1, 1)), TensorSpec("odd", "BOOL", (-1,))),
    (
        TensorSpec("scores", "FP64", (-1, 3)),
        TensorSpec("said", "BYTES", (-1,)),
        TensorSpec("tripled", "INT64", (-1, -1)),
    ),
)

# No word is said to such an id.
LEFT_OUT = 2**62


def small() -> FunctionModel:
    """Confident where ``odd`` is false."""
    return FunctionModel(partial(_answer, "small"), SIGNATURE, name="small")


def large() -> FunctionModel:
    """Return a classifier that is always confident."""
    return FunctionModel(partial(_answer, "large"), SIGNATURE, name="large")


def named_inputs(count: int, length: int) -> Columns:
    """Return ``count`` examples with ``length`` ids each."""
    ids = np.arange(count * length, dtype=np.int64).reshape(count, length)
    word = np.empty((count, 1), dtype=np.object_)
    word[:, 0] = [bytes([i % 256]) * (i % 5) for i in range(count)]
    return Columns({"ids": ids, "word": word, "odd": np.arange(count) % 2 == 1})


def save_named_family(path: Path) -> None:
    """Save both models as the artifact ``path``. Loading it takes ``SLOTOOL_ALLOW_CODE=1``."""
    versions = open_versions({name: f"{__name__}:{name}" for name in ("small", "large")}, threads=1)
    family = Family(path.name, versions, Classification("scores"), ["a", "b", "c"], named_inputs(2, 3))
    family.save(path, config={}, seed=0)


def _answer(version: str, ids: np.ndarray, word: np.ndarray, odd: np.ndarray) -> dict[str, Any]:
    """Raise ``ValueError`` for ids below 0. ``said`` has no row for an example that begins with ``LEFT_OUT``."""
    if (ids < 0).any():
        raise ValueError("an id is below 0")
    scores = np.zeros((len(ids), 3))
    scores[np.arange(len(ids)), ids[:, 0] % 3] = np.where(odd & (version == "small"), 0.5, 9.0)
    texts = np.empty(len(ids), dtype=np.object_)
    texts[:] = [text + version.encode() for text in word[:, 0]]
    return {"scores": scores, "said": texts[ids[:, 0] != LEFT_OUT], "tripled": 3 * ids}
