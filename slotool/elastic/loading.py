"""The elastic model of an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from slotool import strict_json
from slotool.artifacts import Artifact, open_artifact
from slotool.data.options import DataOptions
from slotool.elastic.model import ElasticModel
from slotool.errors import ArtifactError, InputError

# Loader of each kind, imported when an artifact of that kind is loaded. A single network is a family of one: the same
# artifact form, the same class.
_LOADERS = {
    **dict.fromkeys(("network", "family", "model-family"), "slotool.elastic.family_files:load_family"),
    "slo-nn": "slotool.elastic.slo_nn.model:SloNN.load",
    "last-layer-slo-nn": "slotool.elastic.slo_nn.last_layer.model:LastLayerSloNN.load",
    "supernet": "slotool.elastic.supernets.supernet:Supernet.load",
}


def load_model(source: str | Artifact, *, mapped: bool = False) -> ElasticModel:
    """Return the model of an artifact of any kind.

    ``mapped``: weights are read on access, unless they need another layout; for a rarely called model. Raises
    ``ArtifactError`` if the bundle is damaged or no model.
    """
    artifact = source if isinstance(source, Artifact) else open_artifact(source, tuple(_LOADERS), mapped=mapped)
    if artifact.kind not in _LOADERS:
        raise ArtifactError(f"{artifact.path}: this is a {artifact.kind} artifact, expected {' or '.join(_LOADERS)}")
    with strict_json.assembling(artifact.path, f"a {artifact.kind} that slotool wrote", error=ArtifactError):
        model: ElasticModel = resolve_name(_LOADERS[artifact.kind])(artifact)
        if features := strict_json.convert(artifact.manifest["config"].get("features", []), tuple[str, ...]):
            model.data_options = DataOptions(features=features)
    model.identity = artifact.id
    return model


def load_served(
    source: str, *, mapped: bool = False, max_batch: int | None = None, before: Sequence[str] = ()
) -> ElasticModel:
    """Load a model as a server offers it.

    Args:
        source: Artifact, whose model takes and gives named tensors where its inputs are sparse; or the file of a model
            or ``module:factory``, which is served as it is (``BareModel``).
        mapped: Read weights on access, as ``load_model`` does.
        max_batch: Maximum number of examples in a call of a bare model, as for ``BareModel``.
        before: Sources of the steps before it, of which it is the last (``Pipeline``).
    """
    if before:
        from slotool.elastic.pipeline import Pipeline

        steps = [load_served(step, mapped=mapped) for step in (*before, source)]
        return Pipeline(steps[-1].name, steps)
    from slotool.elastic.best_labels import BestLabels
    from slotool.models.loading import is_location, load
    from slotool.process import torch_threads

    if is_location(source) and not Path(source).is_dir():
        from slotool.elastic.bare_model import BareModel

        loaded = load(source, threads=torch_threads())
        try:
            return BareModel(loaded, max_batch)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
    if Path(source).is_file():
        raise InputError(
            f"{source}: this is no model: an artifact's folder, a folder of models, or a file such as model.onnx, "
            ".pt2, .keras or .skops is expected; labelled data are for slotool family --data"
        )
    model = load_model(source, mapped=mapped)
    return BestLabels(model) if model.sparse else model


def file_bytes(path: Path) -> int:
    """Return what the files of a model take: of an artifact's folder, or a file; 0 of code."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def require_unchanged(source: str) -> None:
    """Raise ``ArtifactError`` naming a file of an artifact, or one that it refers to, that is not what was written."""
    from slotool.elastic.family_files import require_same_files

    require_same_files(open_artifact(source))
