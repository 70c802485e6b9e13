"""A family of models as an artifact: the files it refers to or holds, by checksum, and what was learnt about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool import factories, strict_json
from slotool.artifacts import Artifact, create_artifact
from slotool.data.columns import Columns, Inputs
from slotool.data.options import DataOptions
from slotool.data.sequences import RaggedColumns
from slotool.elastic.model_family import ModelFamily, ModelVersion, common_signature
from slotool.errors import ArtifactError, InputError
from slotool.models import Model, Signature
from slotool.models.adapters.factory import model_of
from slotool.models.adapters.remote import ask_shared_outputs, open_remote
from slotool.models.calibration import calibration_of_document
from slotool.models.inference_messages import of_bytes, to_bytes
from slotool.models.loading import is_code, load
from slotool.models.tasks import task_of_document
from slotool.models.wrapped import RenamedModel, Renames, batched, matching, unwrapped
from slotool.process import torch_threads
from slotool.regular_files import open_regular

KIND = "model-family"
VERSIONS_FILE = "versions.json"
EXAMPLES_FILE = "examples.safetensors"
# Inputs that are kept, for warm-up and profiling.
EXAMPLES = 8
# Where a version is that no file holds.
IN_MEMORY = ""


@dataclass(frozen=True)
class _Stored:
    """What ``VERSIONS_FILE`` holds. ``examples``: shapes of the inputs in ``EXAMPLES_FILE``."""

    versions: list[ModelVersion]
    task: dict[str, Any]
    labels: list[str]
    examples: dict[str, list[int]]
    calibrations: dict[str, dict[str, Any]] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)
    signatures: dict[str, dict[str, Any]] = field(default_factory=dict)


def open_versions(
    locations: Mapping[str, Any], threads: int, rename: Mapping[str, Mapping[str, str]] | None = None
) -> list[tuple[ModelVersion, Model]]:
    """Each version's model and what the artifact says of it.

    ``locations``, by name: file, URL or ``module:factory``, or a model as ``model_of`` takes it. ``rename``: by
    version, what tensors are called by their own names; a tensor that alone has another name than in the first version
    is called as there (``matching``). Raises ``InputError`` naming version and tensor when the first dimension of one
    does not count examples, and for a version or tensor to rename that there is not.
    """
    asked = dict(rename or {})
    for name in asked:
        if name not in locations:
            raise InputError(f"rename: no version is called {name!r}; there are {', '.join(locations)}")
    models = {
        name: load(given, threads=threads) if isinstance(given, str) else model_of(given, name=name)
        for name, given in locations.items()
    }
    ask_shared_outputs(list(models.values()), [asked.get(name, {}) for name in models])
    opened: list[tuple[ModelVersion, Model]] = []
    for name, model in models.items():
        where = f"version {name} ({locations[name]})" if isinstance(locations[name], str) else f"version {name}"
        try:
            made = batched(model)
            renames = Renames.of(made.signature, asked.get(name, {}))
            if opened:
                found = matching(opened[0][1].signature, RenamedModel(made, renames).signature)
                renames = renames.then(found)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        version = replace(
            recorded(name, locations[name]),
            inputs=dict(renames.inputs),
            outputs=dict(renames.outputs),
            declared=getattr(unwrapped(model), "declared", ""),
        )
        opened.append((version, RenamedModel(made, renames) if renames else made))
    return opened


def recorded(name: str, location: Any) -> ModelVersion:
    """How an artifact refers to the model at ``location``. Raises ``InputError`` when it cannot be read."""
    if not isinstance(location, str):
        return ModelVersion(name, IN_MEMORY)
    if "://" in location:
        return ModelVersion(name, location)
    if is_code(location):
        return ModelVersion(name, *factories.located(location))
    where = str(Path(location).absolute())
    return ModelVersion(name, where, checksum(where, InputError))


def refuse_in_memory(name: str, location: Any) -> None:
    """Raises ``InputError`` for a model of which an artifact can keep nothing."""
    if location == IN_MEMORY or not isinstance(location, str):
        advice = "save it to a file, or name what makes it as module:factory"
        raise InputError(f"version {name} is an object in memory, of which an artifact keeps nothing: {advice}")


def some_inputs(x: Any) -> Inputs:
    """A few examples of a data set's ``x``, to be kept; one where their lengths differ."""
    first: Inputs | RaggedColumns = x[:EXAMPLES]
    return x[:1] if isinstance(first, RaggedColumns) else first


def save_family(
    family: ModelFamily, path: str | Path, *, config: Mapping[str, Any], seed: int, copy: bool, force: bool = False
) -> None:
    """Write the artifact. ``copy``: with the model files, so that it can be moved; else it refers to them."""
    with create_artifact(path, KIND, config=config, seed=seed, force=force) as bundle:
        versions = []
        for version in family.versions:
            refuse_in_memory(version.name, version.location)
            if copy and is_code(version.location):
                raise InputError(f"version {version.name} is code, {version.location}, of which no copy can be kept")
            stored = f"{version.name}{Path(version.location).suffix}" if copy and version.sha256 else ""
            if stored:
                bundle.copy_file(stored, Path(version.location))
            versions.append(vars(replace(version, stored=stored)))
        arrays = family.examples.arrays
        document = {
            "versions": versions,
            "task": family.task.document(),
            "labels": list(family.labels),
            "examples": {name: list(array.shape) for name, array in arrays.items()},
            "calibrations": {name: made.document() for name, made in family.calibrations.items()},
            "reading": family.data_options.document(),
            "signatures": {name: signature.document() for name, signature in family.signatures.items()},
        }
        bundle.write_json(VERSIONS_FILE, document)
        raw = {spec.name: np.frombuffer(to_bytes(spec, arrays[spec.name]), np.uint8) for spec in family.tensors.inputs}
        bundle.write_tensors(EXAMPLES_FILE, raw)


def load_family(artifact: Artifact) -> ModelFamily:
    """Read it back; each model runs on as many threads as torch has here.

    Raises ``ArtifactError`` when a file that it refers to is missing or is not the one it was made of, and where it
    names code that may not be run (``factories.allow_code``).
    """
    stored = strict_json.convert(artifact.json(VERSIONS_FILE), _Stored)
    versions: list[tuple[ModelVersion, Model]] = []
    for version in stored.versions:
        location = str(artifact.file(version.stored)) if version.stored else version.location
        if is_code(location):
            factories.require_allowed(f"{artifact.path}: version {version.name} is {location}", ArtifactError)
        _require_same(artifact, version, location)
        known = stored.signatures.get(version.name)
        if "://" in location and known is not None:
            # It may be gone for now: calls of it fail then, and the other versions serve.
            model: Model = open_remote(location, signature=Signature.of_document(known))
        else:
            model = load(location, threads=torch_threads())
        model = batched(model)
        versions.append((version, RenamedModel(model, version.renames) if version.renames else model))
    made = {name: calibration_of_document(document) for name, document in stored.calibrations.items()}
    return ModelFamily(
        artifact.name,
        versions,
        task_of_document(stored.task),
        stored.labels,
        _examples(artifact, stored.examples, versions),
        calibrations=made,
        reading=DataOptions.of_document(stored.reading),
    )


def require_same_files(artifact: Artifact) -> None:
    """Raises ``ArtifactError`` naming a file the family refers to that is not the one it was made of."""
    for version in strict_json.convert(artifact.json(VERSIONS_FILE), _Stored).versions:
        if not version.stored:
            _require_same(artifact, version, version.location)


def _require_same(artifact: Artifact, version: ModelVersion, location: str) -> None:
    if is_code(location):
        factories.require_same(location, version.sha256, ArtifactError)
    elif version.sha256 and checksum(location, ArtifactError) != version.sha256:
        raise ArtifactError(f"{artifact.path}: {location} has changed since the family was made; make it again")


def checksum(location: str, error: type[InputError]) -> str:
    """SHA-256 of a file. Raises ``error`` when it cannot be read."""
    try:
        with open_regular(location) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as reason:
        raise error(f"{location}: cannot be read ({reason.strerror})") from reason


def _examples(
    artifact: Artifact, shapes: Mapping[str, list[int]], versions: list[tuple[ModelVersion, Model]]
) -> Columns:
    # Copied, as they are few bytes: to map them takes PyTorch, which ONNX files are served without.
    raw = replace(artifact, mapped=False).tensors(EXAMPLES_FILE)
    specs = common_signature([(version.name, model) for version, model in versions]).inputs
    try:
        return Columns({spec.name: of_bytes(spec, raw[spec.name].tobytes(), shapes[spec.name]) for spec in specs})
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{artifact.path}: {EXAMPLES_FILE} does not hold examples of its models") from error
