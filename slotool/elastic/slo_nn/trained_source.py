"""A trained network and its data, wherever it comes from: an artifact, a Keras or ONNX file, a PyTorch module."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slotool.artifacts import Artifact, open_artifact
from slotool.data import DataSource, has_many_labels, load_dataset, load_multilabel, numbered
from slotool.elastic.family import NETWORK_KINDS, Family
from slotool.elastic.loading import load_model
from slotool.elastic.network import Network
from slotool.elastic.queries import dataset_of
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.importers.chain import in_shape
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import GraphError, InputError, RunError

if TYPE_CHECKING:
    from torch import nn

FILES = (".keras", ".onnx")


class NotAChain(InputError):
    """A network that is no chain of dense layers with ReLU; the sentence names the layer."""


@dataclass(frozen=True)
class TrainedSource:
    """Source ``version``, a trained network, with ``data``, a ``Dataset`` or ``MultiLabelDataset``.

    ``parents``: the artifact that the network comes from, if any.
    """

    version: Network
    data: Any
    parents: tuple[Artifact, ...] = ()

    @classmethod
    def of(cls, path: Path, version: str | None, data: str | DataSource | None) -> TrainedSource:
        """Return the network at ``path``: an artifact, a file of ``FILES``, or module:factory of a torch module.

        ``version``: which of a family; ``data``: name of a data set, by default the one that an artifact says it was
        trained on; of its classes some may not occur, where labels are class numbers. Raises ``InputError`` for a
        version that is not there or not said, and for a network of another library without ``data``.
        """
        if not is_foreign(path):
            parent = open_artifact(path, NETWORK_KINDS)
            family = cast(Family, load_model(parent))
            source = _version(family, version)
            dataset = dataset_of(family, data or parent.manifest["config"].get("data", "auto"))
            return cls(source, numbered(dataset, source.mlp.classes), (parent,))
        if version is not None:
            raise InputError(f"{path} is one network and no family: --version has no effect on it")
        if data is None:
            raise InputError(f"{path} does not say what it was trained on; name the data set by --data")
        return cls._foreign(path, data)

    @classmethod
    def _foreign(cls, path: Path, data: str | DataSource) -> TrainedSource:
        """Return a network of another library."""
        from slotool.graphs.capture.loading import load_keras, load_torch

        if path.suffix == ".onnx":
            mlp = _as_chain(lambda: importers.from_onnx(path))
        elif path.suffix == ".keras":
            model = load_keras(str(path))
            mlp = _as_chain(lambda: importers.from_keras(model))
        if path.suffix in FILES:
            dataset = load_data(data, flat=len(mlp.input_shape) == 1)
        else:
            module, dataset = load_torch(str(path)), load_data(data)
            mlp = _as_chain(lambda: _of_torch(module, dataset.input_shape))
        sparse = getattr(dataset, "sparse", False)
        version = Network.of_mlp(path.stem, in_shape(mlp, dataset.input_shape), sparse=sparse)
        return cls(version, numbered(dataset, mlp.classes))


def is_foreign(path: Path) -> bool:
    """True if ``path`` names a network of another library, and no artifact."""
    return path.suffix in FILES or (":" in str(path) and not path.exists())


def load_data(name: Any, *, flat: bool = True) -> Any:
    """Return the data set called ``name``, with one label per example or, for ``flat`` inputs, many."""
    return load_multilabel(name) if flat and has_many_labels(name) else load_dataset(name)


def _as_chain(imported: Callable[[], MLP]) -> MLP:
    """Raise ``NotAChain`` where the network itself can be read, and is no chain of layers with ReLU."""
    try:
        return imported()
    except (GraphError, RunError):
        raise
    except InputError as error:
        raise NotAChain(str(error)) from error


def _of_torch(module: nn.Module, input_shape: tuple[int, ...]) -> MLP:
    """Import a torch module, also one that takes rows of numbers for images of as many."""
    try:
        return importers.from_torch(module, input_shape)
    except GraphError as error:
        if len(input_shape) == 1:
            raise
        try:
            return importers.from_torch(module, (math.prod(input_shape),))
        except GraphError:
            raise error from error.__cause__


def _version(family: Family, name: str | None) -> Network:
    names = [version.name for version in family.versions]
    if name is None and len(names) > 1:
        raise InputError(f"{family.name} has several versions: {', '.join(names)}; choose one by --version")
    if name is not None and name not in names:
        raise InputError(f"{family.name} has no version {name!r}; it has {', '.join(names)}")
    return family.networks[names.index(name) if name else 0]
