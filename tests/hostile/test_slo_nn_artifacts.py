"""Artifacts whose checksums are right and whose contents are not: a sentence, exit code 2, and never a crash."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slotool.artifacts import open_artifact
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.stored import DESCRIPTION_FILE, TABLES_FILE, WEIGHTS_FILE
from slotool.errors import ArtifactError
from tests.hostile import kernel_fuzz

Tensors = dict[str, np.ndarray]


@cache
def model_with(ranker: str) -> SloNN:
    for seed in range(5_000):
        model = kernel_fuzz.random_model(np.random.default_rng(seed))
        alike = {activator.ranker.name for activator in model.activators.values()} == {ranker}
        if alike and 0 in model.activators and len(model.shares) > 1 and model.activators[0].lists.rows > 2:
            return model
    raise AssertionError("no such model")


def stored(model: SloNN, path: Path) -> Path:
    # Of a random network nothing was measured.
    model.entropy = dict.fromkeys(model.activators, 1.0)
    model.save(path, config={}, seed=0)
    return path


def reseal(path: Path) -> None:
    """Make the manifest's checksums those of the files."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name, record in manifest["files"].items():
        data = (path / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        manifest["files"][name] = (
            {**record, "sha256": digest, "bytes": len(data)} if isinstance(record, dict) else digest
        )
    (path / "manifest.json").write_text(json.dumps(manifest))


def change_tensors(path: Path, file: str, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(path / file)
    change(tensors)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path / file)
    reseal(path)


def set_to(name: str, value: Any, at: Any = 0) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[at] = value

    return change


def replace_by(name: str, new: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, new(tensors[name]))


def refused(path: Path, sentence: str | None) -> None:
    with pytest.raises(ArtifactError, match=sentence):
        SloNN.load(open_artifact(path))


LISTS = {
    "a slot beyond the lists": (set_to("activator.0.slots", 65_535), "slots: 0 to 65535|slots: .* to 65535"),
    "slots of another shape": (replace_by("activator.0.slots", lambda a: a[:, :-1]), "slots"),
    "negative slots": (replace_by("activator.0.slots", lambda a: a.astype(np.int64) - 50), "slots"),
    "slots that are no whole numbers": (
        replace_by("activator.0.slots", lambda a: a.astype(np.float32)),
        "whole numbers",
    ),
    "a node beyond the layer": (
        replace_by("activator.0.lists", lambda a: np.full_like(a, 255, dtype=np.uint16)),
        "ranked lists",
    ),
    "a list that names a node twice": (replace_by("activator.0.lists", lambda a: a * 0), "twice|ranked lists"),
    "no list": (replace_by("activator.0.lists", lambda a: a[:0]), "do not belong together"),
    "an overall ranking with a gap": (replace_by("activator.0.overall", lambda a: a * 0), "each of"),
    "an overall ranking cut short": (replace_by("activator.0.overall", lambda a: a[:-1]), "each of"),
    "confidences of another shape": (replace_by("confidence.means", lambda a: a[:-1]), "confidences"),
    "confidences that are NaN": (set_to("confidence.means", np.nan), "confidences: NaN"),
    "confidences of another type": (replace_by("confidence.means", lambda a: a.astype(np.float64)), "confidences"),
    "thresholds that descend": (replace_by("calibration.thresholds", lambda a: a[::-1]), "ascend"),
    "accuracies of fewer thresholds": (replace_by("calibration.accuracy", lambda a: a[:-1]), "thresholds"),
    "accuracies that are NaN": (set_to("calibration.accuracy", np.nan), "NaN"),
    "accuracies above 1": (set_to("calibration.by_point", 1e38), "between 0 and 1"),
    "accuracies of fewer points": (replace_by("calibration.by_point", lambda a: a[:-1]), "accuracies of points"),
}


@pytest.mark.parametrize("what", LISTS)
def test_crafted_tables_are_refused(what: str, tmp_path: Path) -> None:
    change, sentence = LISTS[what]
    path = stored(model_with("freehash"), tmp_path / "model")
    change_tensors(path, TABLES_FILE, change)
    refused(path, sentence)


RANKER_TABLES = {
    "freehash": [
        set_to("activator.0.nodes", 255),
        replace_by("activator.0.nodes", lambda a: a.astype(np.int64) - 200),
        replace_by("activator.0.nodes", lambda a: a.astype(np.float32) + np.nan),
        replace_by("activator.0.nodes", lambda a: np.repeat(a, 30, axis=1)),
        replace_by("activator.0.nodes", lambda a: a[0]),
        replace_by("activator.0.thresholds", lambda a: a[:, :0]),
        set_to("activator.0.thresholds", np.nan),
    ],
    "mongoose": [
        replace_by("activator.0.projections", lambda a: a[..., :-1]),
        replace_by("activator.0.projections", lambda a: a.astype(np.float32)),
        replace_by("activator.0.thresholds", lambda a: np.repeat(a, 30, axis=1)),
        set_to("activator.0.thresholds", np.inf),
    ],
    "clusters": [
        replace_by("activator.0.coarse", lambda a: a[:, :-1]),
        replace_by("activator.0.coarse", lambda a: a[:0]),
        replace_by("activator.0.fine", lambda a: a[:, :, :-1]),
        replace_by("activator.0.fine", lambda a: a[:, :0]),
        replace_by("activator.0.fine", lambda a: a[0]),
        set_to("activator.0.coarse_scale", np.nan),
        set_to("activator.0.fine_scale", np.inf),
        set_to("activator.0.sizes", 60_000),
        set_to("activator.0.sizes", 0),
    ],
    "random": [set_to("activator.0.slots", 9_999), replace_by("activator.0.slots", lambda a: np.repeat(a, 2, axis=1))],
}


@pytest.mark.parametrize("ranker", RANKER_TABLES)
def test_crafted_rankers_are_refused(ranker: str, tmp_path: Path) -> None:
    whole = stored(model_with(ranker), tmp_path / "whole")
    assert SloNN.load(open_artifact(whole)).ranker == ranker
    for at, change in enumerate(RANKER_TABLES[ranker]):
        path = tmp_path / f"crafted-{at}"
        shutil.copytree(whole, path)
        change_tensors(path, TABLES_FILE, change)
        refused(path, None)


def fingerprint_of(path: Path) -> None:
    """Make the description's fingerprint that of the weights."""
    description = json.loads((path / DESCRIPTION_FILE).read_text())
    digest, weights = hashlib.sha256(), load_file(path / WEIGHTS_FILE)
    for name in description["layers"]:
        digest.update(f"{weights[f'{name}.weight'].shape}".encode())
        digest.update(weights[f"{name}.weight"].tobytes())
        digest.update(weights[f"{name}.bias"].tobytes())
    description["weights_sha256"] = digest.hexdigest()
    (path / DESCRIPTION_FILE).write_text(json.dumps(description))
    reseal(path)


WEIGHTS = [
    replace_by("dense_0.bias", lambda a: np.repeat(a, 3)),
    replace_by("dense_0.bias", lambda a: a[:, None]),
    replace_by("dense_0.bias", lambda a: a.astype(np.float64)),
    replace_by("dense_0.weight", lambda a: a[:, :-1]),
    replace_by("dense_0.weight", lambda a: a[..., None]),
    replace_by("dense_0.weight", lambda a: a.astype(np.int32)),
    replace_by("dense_0.weight", lambda a: a[:0]),
    set_to("dense_0.weight", np.nan),
    set_to("dense_0.bias", np.inf),
]


def test_crafted_weights_are_refused(tmp_path: Path) -> None:
    whole = stored(model_with("freehash"), tmp_path / "whole")
    for at, change in enumerate(WEIGHTS):
        path = tmp_path / f"crafted-{at}"
        shutil.copytree(whole, path)
        change_tensors(path, WEIGHTS_FILE, change)
        fingerprint_of(path)
        refused(path, None)


HUGE = 10**30
DESCRIPTIONS: list[tuple[str, Any]] = [
    ("input_shape", [-1, -1]),
    ("input_shape", [0]),
    ("input_shape", "ab"),
    ("input_shape", [HUGE]),
    ("input_shape", None),
    ("layers", []),
    ("layers", ["dense_9"]),
    ("layers", 5),
    ("layers", [["dense_0"]]),
    ("ranker", "clusters"),
    ("ranker", []),
    ("shares", []),
    ("shares", [0.5, 0.5]),
    ("shares", [0.5, 2.0]),
    ("shares", [-1.0, 0.5]),
    ("shares", [float("nan"), 0.5]),
    ("shares", ["a", "b"]),
    ("shares", [True, 2]),
    ("shares", None),
    ("entropy", {}),
    ("entropy", {"-1": 1.0}),
    ("entropy", {"99": 1.0}),
    ("entropy", {"x": 1.0}),
    ("entropy", []),
    ("measure", 5),
    ("measure", "astrology"),
    ("input_shape", [1] * 70),
    ("mean_k", {"cross-entropy": "much"}),
    ("mean_k", []),
    ("int8", "yes"),
    ("sparse", 1),
]


def test_crafted_descriptions_are_refused(tmp_path: Path) -> None:
    whole = stored(model_with("freehash"), tmp_path / "whole")
    for at, (field, value) in enumerate(DESCRIPTIONS):
        path = tmp_path / f"crafted-{at}"
        shutil.copytree(whole, path)
        description = json.loads((path / DESCRIPTION_FILE).read_text())
        (path / DESCRIPTION_FILE).write_text(json.dumps({**description, field: value}))
        reseal(path)
        refused(path, None)


def test_int8_weights_of_a_layer_without_activator_are_refused(tmp_path: Path) -> None:
    model = next(m for m in map(hidden_only, range(5_000)) if m is not None)
    path = stored(model, tmp_path / "hidden")
    description = json.loads((path / DESCRIPTION_FILE).read_text())
    (path / DESCRIPTION_FILE).write_text(json.dumps({**description, "int8": True}))
    reseal(path)
    with pytest.raises(ArtifactError, match="no activator of the last layer"):
        SloNN.load(open_artifact(path))


def hidden_only(seed: int) -> SloNN | None:
    model = kernel_fuzz.random_model(np.random.default_rng(seed))
    return None if len(model.mlp.layers) - 1 in model.activators else model


def test_evaluate_refuses_a_crafted_artifact(tmp_path: Path, slotool: Any) -> None:
    path = stored(model_with("freehash"), tmp_path / "model")
    change_tensors(path, TABLES_FILE, set_to("activator.0.slots", 65_535))
    ended = slotool("evaluate", path, "-o", tmp_path / "out")
    assert ended.exit_code == 2
    assert "slots" in ended.stderr
