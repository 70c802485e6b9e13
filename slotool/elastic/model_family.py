"""A family of a user's own models: versions of one classifier, from any library, run as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slotool import strict_json
from slotool.artifacts import Artifact, create_artifact
from slotool.elastic.model import ElasticModel
from slotool.errors import ArtifactError, InputError
from slotool.models import Classification, Model, Signature
from slotool.models.adapters.remote import RemoteModel, open_remote
from slotool.models.loading import load
from slotool.models.signature import FREE
from slotool.models.tasks import infer_task, scores_of, task_of_document
from slotool.tables import OperatingPoint

VERSIONS_FILE = "versions.json"
KIND = "model-family"
# A probability of 0 scores as this one does: the least that float32 tells from 0.
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class ModelVersion:
    """One version: ``location`` is a file or a URL, ``sha256`` the file's checksum ("" of a URL). ``stored``: the name
    of the copy in the artifact, "" where the artifact only refers to it."""

    name: str
    location: str
    sha256: str = ""
    stored: str = ""


class ModelFamily(ElasticModel):
    """Versions of one classifier, cheapest first; the last is the most accurate. Points are ``version=<name>``.

    ``input_shape``: of one example, for inputs whose sizes the models leave open. Models take one input of numbers and
    give scores of the same classes: logits, or probabilities, whose logarithms are the scores here.
    Raises ``InputError`` naming the version and the tensor when two signatures differ or are of another form.
    """

    task: Classification

    def __init__(
        self,
        name: str,
        versions: Sequence[tuple[ModelVersion, Model]],
        task: Classification,
        input_shape: Sequence[int],
        labels: Sequence[str],
    ):
        if not versions:
            raise InputError(f"{name}: a family needs at least one version")
        self.name, self.task, self.labels = name, task, tuple(labels)
        self.input_shape, self.classes = tuple(input_shape), len(labels)
        self.versions = tuple(version for version, _ in versions)
        self._models = {OperatingPoint.of(version=version.name): model for version, model in versions}
        if len(self._models) < len(versions):
            raise InputError(f"{name}: two versions have the same name")
        require_versions([(version.name, model) for version, model in versions])
        self.points = tuple(self._models)
        self.remote_points = {
            point: model.timeout_s for point, model in self._models.items() if isinstance(model, RemoteModel)
        }
        first = versions[0][1]
        task.require(first.signature)
        self._input = _only_input(name, first, self.input_shape)
        count = first.signature.output(task.output).shape[-1]
        if count not in (FREE, self.classes):
            raise InputError(f"{name}: {task.output} has {count} classes, the data set has {self.classes}")

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        """As ``ElasticModel.forward``. Raises ``RunError`` when the model itself fails."""
        self.require(point)
        return self._scores(x, point, self._models[point]({self._input: x}))

    def forward_within(self, x: np.ndarray, point: OperatingPoint, timeout_s: float) -> np.ndarray:
        model = self._models[point]
        if not isinstance(model, RemoteModel):
            return self.forward(x, point)
        inputs = model.signature.conform({self._input: x})
        return self._scores(x, point, model.run_within(inputs, min(timeout_s, model.timeout_s)))

    def _scores(self, x: np.ndarray, point: OperatingPoint, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        scores = outputs[self.task.output]
        if scores.shape != (len(x), self.classes):
            raise InputError(f"{point}: {self.task.output} has shape {list(scores.shape)}, expected one score a class")
        if self.task.scores == "probabilities":
            scores = np.log(np.maximum(scores, MIN_PROBABILITY))
        return scores.astype(np.float32)

    def save(self, path: str | Path, *, config: Mapping[str, Any], seed: int, copy: bool, force: bool = False) -> None:
        """Write the artifact. ``copy``: with the model files, so that it can be moved; else it refers to them."""
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as bundle:
            versions = []
            for version in self.versions:
                stored = f"{version.name}{Path(version.location).suffix}" if copy and version.sha256 else ""
                if stored:
                    bundle.copy_file(stored, Path(version.location))
                versions.append({**vars(version), "stored": stored})
            document = {
                "versions": versions,
                "task": self.task.document(),
                "input_shape": list(self.input_shape),
                "labels": list(self.labels),
                "signatures": {
                    version.name: model.signature.document()
                    for version, model in zip(self.versions, self._models.values(), strict=True)
                },
            }
            bundle.write_json(VERSIONS_FILE, document)

    @classmethod
    def load(cls, artifact: Artifact) -> ModelFamily:
        """Read it back; each model runs on as many threads as torch does here. Raises ``ArtifactError`` when a file
        that it refers to is missing or is not the one it was made of."""
        import torch

        stored = strict_json.convert(artifact.json(VERSIONS_FILE), _Stored)
        task = task_of_document(stored.task)
        if not isinstance(task, Classification):
            raise ArtifactError(f"{artifact.path}: its task is {task.name}; only classification can be served")
        versions = []
        for version in stored.versions:
            location = str(artifact.file(version.stored)) if version.stored else version.location
            if version.sha256 and checksum(location, ArtifactError) != version.sha256:
                raise ArtifactError(f"{artifact.path}: {location} has changed since the family was made; make it again")
            known = stored.signatures.get(version.name)
            if "://" in location and known is not None:
                # It may be gone for now: calls of it fail then, and the other versions serve.
                model: Model = open_remote(location, signature=Signature.of_document(known))
            else:
                model = load(location, threads=torch.get_num_threads())
            versions.append((version, model))
        return cls(artifact.name, versions, task, stored.input_shape, stored.labels)


@dataclass(frozen=True)
class _Stored:
    """What ``VERSIONS_FILE`` holds."""

    versions: list[ModelVersion]
    task: dict[str, Any]
    input_shape: list[int]
    labels: list[str]
    signatures: dict[str, dict[str, Any]] = field(default_factory=dict)


def open_versions(locations: Mapping[str, str], threads: int) -> list[tuple[ModelVersion, Model]]:
    """Each version's model and what the artifact says of it; ``locations``: file or URL by name."""
    opened = []
    for name, location in locations.items():
        is_url = "://" in location
        where = location if is_url else str(Path(location).absolute())
        model = load(where, threads=threads)
        opened.append((ModelVersion(name, where, "" if is_url else checksum(where, InputError)), model))
    return opened


def require_versions(models: Sequence[tuple[str, Model]]) -> None:
    """Raises ``InputError`` naming version and tensor when the models are not versions of one service."""
    first_name, first = models[0]
    for name, model in models[1:]:
        difference = first.signature.difference(model.signature)
        if difference is not None:
            raise InputError(f"version {name} is none of the same service as {first_name}: its {difference}")


def task_of(model: Model, output: str | None, scores: str | None) -> Classification:
    """The task that the options name, else what the signature suggests. Raises ``InputError`` where it is unclear."""
    if output is None:
        found = infer_task(model.signature)
        return found if scores is None else Classification(found.output, scores=scores)
    return Classification(output, scores=scores or scores_of(output))


def checksum(location: str, error: type[InputError]) -> str:
    """SHA-256 of a file. Raises ``error`` when it cannot be read."""
    try:
        with open(location, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as reason:
        raise error(f"{location}: cannot be read ({reason.strerror})") from reason


def _only_input(name: str, model: Model, input_shape: tuple[int, ...]) -> str:
    if len(model.signature.inputs) != 1:
        inputs = ", ".join(tensor.name for tensor in model.signature.inputs)
        raise InputError(f"{name}: models of several inputs ({inputs}) cannot be served yet; give them one input")
    spec = model.signature.inputs[0]
    if not spec.datatype.startswith(("FP", "BF")):
        raise InputError(f"{name}: input {spec.name} is {spec}; only floating-point inputs can be served yet")
    fits = len(spec.shape) == 1 + len(input_shape) and all(
        size in (FREE, given) for size, given in zip(spec.shape[1:], input_shape, strict=True)
    )
    if not fits:
        raise InputError(f"{name}: input {spec.name} is {spec}, the data set has examples of {list(input_shape)}")
    return spec.name
