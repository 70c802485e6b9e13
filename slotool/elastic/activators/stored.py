"""An SLO-NN's weights and tables as named arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.confidence import Calibration, ConfidenceTables
from slotool.elastic.activators.convolution import ConvLayer
from slotool.elastic.activators.importance import NodeLists
from slotool.elastic.activators.mlp import MLP, DenseLayer


def weight_tensors(mlp: MLP) -> dict[str, np.ndarray]:
    """``<layer>.weight`` and ``<layer>.bias`` of every layer."""
    weights = {f"{layer.name}.weight": layer.weights for layer in mlp.layers}
    return {**weights, **{f"{layer.name}.bias": layer.bias for layer in mlp.layers}}


def read_mlp(description: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> MLP:
    """From ``weight_tensors`` and what says in which order the layers come. Raises ``KeyError`` for one that lacks."""
    geometry, layers = description.get("convolutions", {}), []
    for name in description["layers"]:
        own = (weights[f"{name}.weight"], weights[f"{name}.bias"])
        layers.append(ConvLayer.of(name, *own, geometry[name]) if name in geometry else DenseLayer(name, *own))
    return MLP(tuple(description["input_shape"]), tuple(layers))


def table_tensors(
    confidence: ConfidenceTables, calibration: Calibration, activators: Mapping[int, Activator]
) -> dict[str, np.ndarray]:
    """``confidence.…``, ``calibration.…`` and ``activator.<layer>.…``."""
    parts: dict[str, Mapping[str, np.ndarray]] = {
        "confidence": {"means": confidence.means},
        "calibration": calibration.tensors(),
    }
    for at, activator in activators.items():
        parts[f"activator.{at}"] = {**activator.ranker.tensors(), **activator.lists.tensors()}
    return {f"{part}.{name}": array for part, tensors in parts.items() for name, array in tensors.items()}


def read_activator(kind: Any, tables: Mapping[str, np.ndarray], layer: int) -> Activator:
    """The activator of a layer, with a ranker of class ``kind``, from ``table_tensors``."""
    tensors = under(f"activator.{layer}", tables)
    return Activator(kind.from_tensors(tensors), NodeLists.from_tensors(tensors))


def under(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those called ``<part>.…``, without it."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
