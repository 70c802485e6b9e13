"""Families read back from their artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import factories, strict_json
from slotool.artifacts import Artifact
from slotool.data.columns import Columns
from slotool.data.options import DataOptions
from slotool.elastic.family import EXAMPLES_FILE, KIND, NETWORK_KINDS, VERSIONS_FILE, WEIGHTS_FILE, Family
from slotool.elastic.versions import ModelVersion, checksum, common_signature
from slotool.errors import ArtifactError, GraphError
from slotool.models import Model, Signature
from slotool.models.adapters.remote import open_remote
from slotool.models.inference_messages import of_bytes
from slotool.models.loading import is_code, load
from slotool.models.model import RenamedModel, batched
from slotool.models.tasks import task_of_document
from slotool.process import torch_threads

if TYPE_CHECKING:
    from slotool.elastic.network import Network


@dataclass(frozen=True)
class _Stored:
    """Content of ``VERSIONS_FILE`` for a user's models. ``examples``: shapes of the inputs in ``EXAMPLES_FILE``."""

    versions: list[ModelVersion]
    task: dict[str, Any]
    labels: list[str]
    examples: dict[str, list[int]]
    calibrations: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)
    signatures: dict[str, dict[str, Any]] = field(default_factory=dict)


def load_family(artifact: Artifact) -> Family:
    """Read a family of either kind back; each model runs on as many threads as torch has here.

    Raises ``ArtifactError`` when weights and graphs do not belong together, a file that it refers to is missing or is
    not the one it was made of, and where it names code that may not be run (``factories.allow_code``).
    """
    return _load_networks(artifact) if artifact.kind in NETWORK_KINDS else _load_models(artifact)


def _load_models(artifact: Artifact) -> Family:
    stored = strict_json.convert(artifact.json(VERSIONS_FILE), _Stored)
    if stored.calibrations:
        raise ArtifactError(f"{artifact.path} has calibrations, which slotool no longer learns; make the family again")
    versions: list[tuple[ModelVersion, Model]] = []
    for version in stored.versions:
        location = str(artifact.file(version.stored)) if version.stored else version.location
        if is_code(location):
            factories.require_allowed(f"{artifact.path}: version {version.name} is {location}", ArtifactError)
        _require_same(artifact, version, location)
        signature = stored.signatures.get(version.name)
        if "://" in location and signature is not None:
            # The server may be down for now: its calls fail, and the other versions serve.
            model: Model = open_remote(location, signature=Signature.of_document(signature))
        else:
            model = load(location, threads=torch_threads())
        model = batched(model)
        versions.append((version, RenamedModel(model, version.renames) if version.renames else model))
    return Family(
        artifact.name,
        versions,
        task_of_document(stored.task),
        stored.labels,
        _examples(artifact, stored.examples, versions),
        reading=DataOptions.of_document(stored.reading),
    )


def require_same_files(artifact: Artifact) -> None:
    """Raise ``ArtifactError`` naming a file the family refers to that is not the one it was made of."""
    if artifact.kind != KIND:
        return
    for version in strict_json.convert(artifact.json(VERSIONS_FILE), _Stored).versions:
        if not version.stored:
            _require_same(artifact, version, version.location)


def _require_same(artifact: Artifact, version: ModelVersion, location: str) -> None:
    if is_code(location):
        factories.require_same(location, version.sha256, ArtifactError)
    elif version.sha256 and checksum(location, ArtifactError) != version.sha256:
        raise ArtifactError(f"{artifact.path}: {location} has changed since the family was made; make it again")


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


@dataclass(frozen=True)
class _StoredNetwork:
    """Content of ``VERSIONS_FILE`` for a network."""

    name: str
    graph: dict[str, Any]
    scores: dict[str, float]
    sparse: bool = False


def _load_networks(artifact: Artifact) -> Family:
    tensors = artifact.weights(WEIGHTS_FILE)
    entries = strict_json.convert(artifact.json(VERSIONS_FILE), list[_StoredNetwork])
    return Family.of(artifact.name, [_load_network(artifact, entry, tensors) for entry in entries])


def _load_network(artifact: Artifact, entry: _StoredNetwork, tensors: Mapping[str, np.ndarray]) -> Network:
    # Families of ONNX files are served without PyTorch.
    import torch

    from slotool.elastic.network import Network
    from slotool.graphs import OperatorGraph
    from slotool.graphs.torch_module import GraphModule

    prefix = f"{entry.name}/"
    state = {name.removeprefix(prefix): torch.from_numpy(t) for name, t in tensors.items() if name.startswith(prefix)}
    try:
        module = GraphModule(OperatorGraph.from_document(entry.graph), device="meta")
        module.load_state_dict(state, strict=True, assign=True)
    except (GraphError, RuntimeError) as error:
        raise ArtifactError(f"{artifact.path}: weights of {entry.name} do not fit its graph") from error
    return Network(entry.name, module, entry.scores, entry.sparse)
