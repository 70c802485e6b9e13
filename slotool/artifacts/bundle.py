"""Bundles: written whole or not at all, and opened only when every checksum is right."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import numpy as np

import slotool
from slotool import __version__, strict_json
from slotool.atomic import replaceable, whole_folder
from slotool.errors import AlreadyExistsError, ArtifactError, InputError
from slotool.machine import machine_facts
from slotool.regular_files import open_regular, require_regular

MANIFEST = "manifest.json"
FORMAT = "slotool-artifact"
FORMAT_VERSION = 1
# Length of a file's name that every common file system allows.
MAX_NAME_BYTES = 255


class SavableTable(Protocol):
    def save(self, path: Path) -> None: ...


@dataclass(frozen=True)
class _Entry:
    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Parent:
    name: str
    kind: str
    id: str


@dataclass(frozen=True)
class _Manifest:
    """Required fields of a manifest."""

    format: str
    format_version: int
    kind: str
    files: dict[str, _Entry]
    config: dict[str, Any]
    seed: int | None = None
    created: str = ""
    slotool_version: str = ""
    parents: list[_Parent] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)


class ArtifactWriter:
    """Writes the files of a new bundle."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.files: list[str] = []

    def write_json(self, name: str, document: Any) -> None:
        self._new(name).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")

    def write_tensors(self, name: str, tensors: Mapping[str, np.ndarray]) -> None:
        from safetensors.numpy import save

        # Written by Python, so that a full disk is the OSError it is everywhere else.
        self._new(name).write_bytes(save({key: np.ascontiguousarray(value) for key, value in tensors.items()}))

    def write_table(self, name: str, table: SavableTable) -> None:
        table.save(self._new(name))

    def copy_file(self, name: str, source: Path) -> None:
        shutil.copyfile(source, self._new(name))

    def _new(self, name: str) -> Path:
        if Path(name).name != name or name == MANIFEST or name in self.files:
            raise ValueError(f"{name!r} cannot be a new file of a bundle")
        self.files.append(name)
        return self._folder / name


@dataclass(frozen=True)
class Artifact:
    """A bundle whose files all match their manifest."""

    path: Path
    manifest: Mapping[str, Any]
    mapped: bool = False

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def id(self) -> str:
        """SHA-256 over the checksums of all files: equal content, equal id."""
        sums = json.dumps({name: entry["sha256"] for name, entry in self.manifest["files"].items()}, sort_keys=True)
        return hashlib.sha256(sums.encode()).hexdigest()

    def json(self, name: str) -> Any:
        return strict_json.read(self.file(name), error=ArtifactError)

    def weights(self, name: str) -> dict[str, np.ndarray]:
        """Return ``tensors`` of a network. Raises ``ArtifactError`` also when one of them holds NaN or infinity."""
        read = self.tensors(name)
        for key, array in read.items():
            # The extremes of an array with a NaN are NaN; unlike isfinite they need no memory.
            if array.dtype.kind == "f" and array.size and not np.isfinite([array.min(), array.max()]).all():
                raise ArtifactError(f"{self.path}: {name}: tensor {key[:80]!r} holds NaN or infinity; make it again")
        return read

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Return the file's arrays by name.

        ``mapped`` arrays are the file's own pages: read on access, shared with other processes, copied on write.
        """
        from safetensors import SafetensorError, safe_open
        from safetensors.numpy import load_file

        try:
            if not self.mapped:
                return load_file(self.file(name))
            with safe_open(self.file(name), "pt") as file:
                return {key: file.get_tensor(key).numpy() for key in file.keys()}  # noqa: SIM118 (it is no mapping)
        except SafetensorError as error:
            raise ArtifactError(f"{self.path}: {name} is not a safetensors file ({error})") from error

    def file(self, name: str) -> Path:
        """Return the path of a file of this bundle. Raises ``ArtifactError`` when the manifest does not list it."""
        if name not in self.manifest["files"]:
            raise ArtifactError(f"{self.path}: this {self.kind} artifact holds no {name}")
        return self.path / name


@contextmanager
def create_artifact(
    path: str | Path,
    kind: str,
    *,
    config: Mapping[str, Any],
    seed: int | None = None,
    parents: Sequence[Artifact] = (),
    force: bool = False,
) -> Iterator[ArtifactWriter]:
    """Yield a writer of the bundle ``path``, which appears if the block succeeds; a crash leaves the old one or none.

    ``config`` is the effective configuration, ``parents`` the bundles it was made from. Raises ``AlreadyExistsError``
    if ``path`` exists, without ``force``.
    """
    path = Path(path)
    refuse_existing(path, force)
    if path.is_file():
        raise InputError(f"{path} is a file; an artifact is a folder, choose another name")
    with whole_folder(path) as staging:
        writer = ArtifactWriter(staging)
        yield writer
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": kind,
            "slotool_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": dict(config),
            "seed": seed,
            "parents": [{"name": parent.name, "kind": parent.kind, "id": parent.id} for parent in parents],
            "machine": machine_facts(),
            "files": {name: _entry(staging / name) for name in sorted(writer.files)},
        }
        with (staging / MANIFEST).open("w") as file:
            file.write(json.dumps(manifest, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())


def open_artifact(path: str | Path, kind: str | Sequence[str] | None = None, *, mapped: bool = False) -> Artifact:
    """Return the bundle at ``path``, with every file verified; for ``mapped`` see ``Artifact.tensors``.

    Raises ``ArtifactError`` if it is missing, torn, altered, of a newer format, or not of (one of) ``kind``.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    kinds = [kind] if isinstance(kind, str) else kind
    if kinds and manifest["kind"] not in kinds:
        raise ArtifactError(f"{path}: this is a {manifest['kind']} artifact, expected {' or '.join(kinds)}")
    for name, entry in manifest["files"].items():
        if not _is_file_name(name) or (path / name).is_symlink():
            raise ArtifactError(f"{path}: its manifest names a file outside the bundle: {name[:80]!r}")
        if not (path / name).is_file():
            raise ArtifactError(f"{path}: {name} is missing; the artifact is incomplete, make it again")
        if _entry(path / name) != entry:
            raise ArtifactError(f"{path}: {name} is not what was written (its checksum differs); make it again")
    return Artifact(path, manifest, mapped)


def is_artifact(path: Path) -> bool:
    """True if ``path`` is a folder with a manifest, intact or not."""
    return (path / MANIFEST).is_file()


def refuse_existing(path: Path, force: bool) -> None:
    """Raise ``AlreadyExistsError`` unless ``path`` is free or ``force`` allows replacing it.

    Raises ``InputError`` for a folder that is never replaced, and as ``replaceable``.
    """
    replaceable(path)
    if path.is_dir() and any(path.iterdir()) and not is_artifact(path):
        raise InputError(f"{path} is a folder that slotool did not write; choose another name")
    if path.exists() and not force:
        raise AlreadyExistsError(f"{path} exists already")


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        require_regular(path, ArtifactError, "no such artifact folder")
        if path.suffix in (".csv", ".parquet"):
            raise ArtifactError(f"{path}: a table, but an artifact is a folder that slotool wrote")
        raise ArtifactError(
            f"{path}: a file, but an artifact is a folder; make one of models of your own, "
            f"slotool family {quote(str(path))} --data TABLE:LABEL -o {quote(path.stem)}"
        )
    if not is_artifact(path):
        raise ArtifactError(f"{path}: no {MANIFEST} in it; not an artifact, or one whose writing was cut short")
    try:
        manifest = strict_json.read(path / MANIFEST, error=ArtifactError)
        strict_json.convert(manifest, _Manifest)
        version = manifest["format_version"] if manifest["format"] == FORMAT else None
    except strict_json.JsonError as error:
        raise ArtifactError(f"{path}: its {MANIFEST} cannot be read ({error})") from error
    if version != FORMAT_VERSION:
        raise ArtifactError(f"{path}: artifact format {version}, but this slotool reads format {FORMAT_VERSION}")
    document: dict[str, Any] = manifest
    return document


def _is_file_name(name: str) -> bool:
    """True if ``name`` is valid for a file directly in the bundle's folder."""
    return Path(name).name == name and "\0" not in name and 0 < len(os.fsencode(name)) <= MAX_NAME_BYTES


def _entry(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size}


def shipped_artifact(name: str, kind: str | None = None) -> Artifact:
    """Return the artifact ``name`` shipped with slotool. Raises ``ArtifactError`` if there is none of ``kind``."""
    package = Path(slotool.__file__).parent
    for models in (package / "shipped", package.parent / "models"):
        if (models / name).is_dir():
            return open_artifact(models / name, kind)
    raise ArtifactError(f"this installation of slotool came without the artifact {name}")
