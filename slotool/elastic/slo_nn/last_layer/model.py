"""An SLO-NN on the last layer of a network of any library, whose other layers stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool import devices
from slotool.artifacts import Artifact, create_artifact
from slotool.elastic.model import ElasticModel
from slotool.elastic.slo_nn.importers.cutting import Features
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import ArtifactError, InputError
from slotool.models.loading import load
from slotool.process import torch_threads
from slotool.tables import OperatingPoint

KIND = "last-layer-slo-nn"
LAYERS_FILE = "layers.json"


def tabled(model: ElasticModel) -> SloNN | None:
    """Return the part of ``model`` with tables: itself, its last layer, or None."""
    if isinstance(model, LastLayerSloNN):
        return model.head
    return model if isinstance(model, SloNN) else None


def seen_by_tables(model: ElasticModel, split: Any) -> Any:
    """Return ``split`` with what the tables of ``model`` receive of its examples."""
    return replace(split, x=model.features(split.x)) if isinstance(model, LastLayerSloNN) else split


class LastLayerSloNN(ElasticModel):
    """``features`` runs the network up to its last layer, of which ``head`` computes the nodes that an input needs.

    Points are those of ``head``; ``full`` gives the network's logits. Points differ on average only: what an input
    may expect of each would cost its features twice. ``front``: the file that ``features`` runs.
    """

    compiles = True
    leaves_out = True

    def __init__(self, name: str, features: Features, head: SloNN, front: Path):
        self.name, self.features, self.head, self.front = name, features, head, front
        self.input_shape, self.classes, self.points = features.input_shape, head.classes, head.points
        self.whole_inputs = features.whole

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        self.require(point)
        return self.head.forward(self.features(self._checked(x)), point)

    def top(
        self, x: np.ndarray, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``SloNN.top``; with ``accuracy``, k is chosen by the features, which are computed once."""
        return self.head.top(self.features(self._checked(x)), p, point=point, accuracy=accuracy)

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        """Return the same with ``features`` on ``device``; ``head`` stays on the CPU, where its calls are compiled."""
        if (devices.required(device), precision) == (self.device, self.precision):
            return self
        front = self.features.model.on(device, precision)
        placed = LastLayerSloNN(self.name, Features(front, self.input_shape), self.head, self.front)
        placed.device, placed.precision, placed.data_options = front.device, front.precision, self.data_options
        return placed

    def _checked(self, x: np.ndarray) -> np.ndarray:
        """Return ``x`` as float32 [n, *input_shape]. Raises ``InputError`` for inputs of another shape."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        if x.shape[1:] != self.input_shape:
            raise InputError(f"{self.name} takes inputs {list(self.input_shape)}, not {list(x.shape[1:])}")
        return x

    def save(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        seed: int,
        parents: Sequence[Artifact] = (),
        force: bool = False,
    ) -> None:
        """Write the artifact, with a copy of the model file that its first layers are."""
        with create_artifact(path, KIND, config=config, seed=seed, parents=parents, force=force) as bundle:
            bundle.copy_file(self.front.name, self.front)
            bundle.write_json(LAYERS_FILE, {"front": self.front.name, "input_shape": list(self.input_shape)})
            self.head.write_to(bundle)

    @classmethod
    def load(cls, artifact: Artifact) -> LastLayerSloNN:
        """Read it back; its first layers run on as many threads as torch has here."""
        document, head = artifact.json(LAYERS_FILE), SloNN.load(artifact)
        front = artifact.file(document["front"])
        try:
            features = Features(load(front, threads=torch_threads()), tuple(document["input_shape"]))
        except InputError as error:
            raise ArtifactError(f"{artifact.path}: {error}") from error
        return cls(artifact.name, features, head, front)
