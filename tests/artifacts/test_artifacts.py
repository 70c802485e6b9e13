"""Bundles: whole or absent, and opened only if every byte is as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slotool import __version__
from slotool.artifacts import create_artifact, open_artifact
from slotool.errors import AlreadyExistsError, ArtifactError, InputError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    with create_artifact(path, "toy", config={"units": 3}, seed=5) as writer:
        writer.write_json("facts.json", {"a": 1})
        writer.write_tensors("weights.safetensors", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    return path


def test_round_trip_and_manifest(bundle: Path) -> None:
    artifact = open_artifact(bundle, "toy")
    assert artifact.json("facts.json") == {"a": 1}
    assert artifact.tensors("weights.safetensors")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["slotool_version"] == __version__
    assert manifest["config"] == {"units": 3}
    assert manifest["seed"] == 5
    assert manifest["machine"]["cores_given"] >= 1
    assert set(manifest["files"]) == {"facts.json", "weights.safetensors"}
    assert all(len(entry["sha256"]) == 64 for entry in manifest["files"].values())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what is mapped")
def test_mapped_tensors_are_the_files_own_pages_until_they_are_written(bundle: Path) -> None:
    def maps() -> str:
        return Path("/proc/self/maps").read_text()

    name = str(bundle / "weights.safetensors")
    plain = open_artifact(bundle).tensors("weights.safetensors")
    assert name not in maps()
    mapped = open_artifact(bundle, mapped=True).tensors("weights.safetensors")
    assert name in maps()
    np.testing.assert_array_equal(mapped["w"], plain["w"])
    mapped["w"][:] = 7.0
    assert open_artifact(bundle).tensors("weights.safetensors")["w"].tolist() == plain["w"].tolist()


def test_parents_are_recorded_by_content(bundle: Path, tmp_path: Path) -> None:
    parent = open_artifact(bundle)
    with create_artifact(tmp_path / "child", "toy", config={}, parents=[parent]) as writer:
        writer.write_json("facts.json", {})
    assert open_artifact(tmp_path / "child").manifest["parents"] == [{"name": "bundle", "kind": "toy", "id": parent.id}]


@pytest.mark.parametrize("name", ["facts.json", "weights.safetensors"])
def test_an_altered_file_is_refused(bundle: Path, name: str) -> None:
    raw = bytearray((bundle / name).read_bytes())
    raw[-2] ^= 1
    (bundle / name).write_bytes(bytes(raw))
    with pytest.raises(ArtifactError, match=rf"{name} is not what was written"):
        open_artifact(bundle)


def test_a_missing_file_a_missing_manifest_and_a_torn_one_are_refused(bundle: Path) -> None:
    manifest = bundle / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"manifest\.json: not a JSON file"):
        open_artifact(bundle)
    manifest.write_text(whole)
    (bundle / "facts.json").unlink()
    with pytest.raises(ArtifactError, match=r"facts\.json is missing"):
        open_artifact(bundle)
    manifest.unlink()
    with pytest.raises(ArtifactError, match="cut short"):
        open_artifact(bundle)
    with pytest.raises(ArtifactError, match=r"a file, but an artifact is a folder; make one .* -o weights$"):
        open_artifact(bundle / "weights.safetensors")
    (bundle / "table.csv").write_text("subject,latency_s\n")
    with pytest.raises(ArtifactError, match="a table, but an artifact is a folder"):
        open_artifact(bundle / "table.csv")
    with pytest.raises(ArtifactError, match="no such artifact folder"):
        open_artifact(bundle / "nowhere")


def test_a_manifest_cannot_point_outside(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["../secret"] = {"sha256": "0" * 64, "bytes": 1}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="outside the bundle"):
        open_artifact(bundle)


def test_another_kind_and_a_newer_format_are_refused(bundle: Path) -> None:
    with pytest.raises(ArtifactError, match="this is a toy artifact, expected predictor"):
        open_artifact(bundle, "predictor")
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"format_version": 2}))
    with pytest.raises(ArtifactError, match="format 2"):
        open_artifact(bundle)


def test_a_crash_while_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    def crash() -> None:
        with create_artifact(tmp_path / "torn", "toy", config={}) as writer:
            writer.write_json("facts.json", {})
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        crash()
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_replacing_keeps_the_old_one(bundle: Path) -> None:
    before = open_artifact(bundle).id

    def crash() -> None:
        with create_artifact(bundle, "toy", config={}, force=True) as writer:
            writer.write_json("facts.json", {"a": 2})
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        crash()
    assert open_artifact(bundle).id == before


def test_overwriting_needs_force_and_never_hits_a_foreign_folder(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError), create_artifact(bundle, "toy", config={}):
        pass
    with create_artifact(bundle, "toy", config={}, force=True) as writer:
        writer.write_json("facts.json", {"a": 2})
    assert open_artifact(bundle).json("facts.json") == {"a": 2}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("mine")
    with pytest.raises(InputError), create_artifact(tmp_path / "home", "toy", config={}, force=True):
        pass
    assert (tmp_path / "home" / "diary.txt").read_text() == "mine"
