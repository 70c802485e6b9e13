"""An SLO-NN's weights and tables as named arrays, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.artifacts import Artifact
from slotool.elastic.slo_nn.activator import Activator, NodeLists
from slotool.elastic.slo_nn.calibration import ThresholdCalibration
from slotool.elastic.slo_nn.confidence import MEASURES, ConfidenceTables
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import require_array
from slotool.elastic.slo_nn.rankers.registry import ranker_class
from slotool.errors import ArtifactError, InputError

DESCRIPTION_FILE = "slo-nn.json"
WEIGHTS_FILE = "weights.safetensors"
TABLES_FILE = "tables.safetensors"
# NumPy has arrays of 64 axes at most; no data have half as many.
MAX_INPUT_AXES = 32


def description(
    mlp: MLP, ranker: str, shares: Sequence[float], entropy: Mapping[int, float], **others: Any
) -> dict[str, Any]:
    """Return the document ``slo-nn.json``: all that is no array."""
    return {
        "input_shape": list(mlp.input_shape),
        "layers": [layer.name for layer in mlp.layers],
        **({"partial": True} if mlp.partial else {}),
        "weights_sha256": mlp.fingerprint,
        "ranker": ranker,
        "shares": list(shares),
        "entropy": {str(at): bits for at, bits in entropy.items()},
        **others,
    }


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the arguments of ``SloNN`` from its three files.

    Raises ``ArtifactError`` if the tables were built for other weights; ``InputError`` and lookup errors for the rest.
    """
    document, tables = artifact.json(DESCRIPTION_FILE), artifact.tensors(TABLES_FILE)
    mlp = read_mlp(document, artifact.weights(WEIGHTS_FILE))
    if mlp.fingerprint != document["weights_sha256"]:
        raise ArtifactError(f"{artifact.path}: its tables were built for other weights than it holds")
    kind, shares = ranker_class(document["ranker"]), document["shares"]
    entropy = {int(at): float(bits) for at, bits in document["entropy"].items()}
    if not entropy or not all(0 <= at < len(mlp.layers) for at in entropy):
        raise InputError(f"activators of layers {sorted(entropy)}, of {len(mlp.layers)}")
    if document["int8"] is True and len(mlp.layers) - 1 not in entropy:
        raise InputError("int8 weights, but no activator of the last layer")
    _require_shares(shares)
    for field, of in (("measure", str), ("int8", bool), ("sparse", bool)):
        if not isinstance(document[field], of):
            raise InputError(f"{field} is {document[field]!r}")
    if document["measure"] not in {measure.name for measure in MEASURES}:
        raise InputError(f"measure is {document['measure']!r}, none of those of this slotool")
    activators = {at: read_activator(kind, tables, at) for at in entropy}
    confidence = ConfidenceTables(tables["confidence.means"])
    require_array(
        "confidences", confidence.means, np.float32, (len(activators[min(activators)].lists.lists), len(shares))
    )
    calibration = ThresholdCalibration.from_tensors(under("calibration", tables))
    _require_calibration(calibration, len(shares))
    return {
        "mlp": mlp,
        "shares": shares,
        "activators": activators,
        "confidence": confidence,
        "calibration": calibration,
        "entropy": entropy,
        "measure": document["measure"],
        "mean_k": {str(name): float(value) for name, value in document["mean_k"].items()},
        "int8": document["int8"],
        "sparse": document["sparse"],
    }


def _require_shares(shares: Any) -> None:
    numbers = isinstance(shares, list) and all(type(share) in (int, float) for share in shares)
    if not numbers or not all(low < high for low, high in zip([0.0, *shares], [*shares, math.inf], strict=True)):
        raise InputError(f"shares of nodes must ascend from above 0, and are {shares!r}")
    if not shares or not shares[-1] <= 1:
        raise InputError(f"shares of nodes must be at most 1, and are {shares!r}")


def _require_calibration(calibration: ThresholdCalibration, shares: int) -> None:
    thresholds, accuracy, by_point = calibration.thresholds, calibration.accuracy, calibration.by_point
    require_array("accuracies of thresholds", accuracy, np.float64, (len(accuracy),))
    require_array("accuracies of points", by_point, np.float64, (shares + 1,))
    # Levels of one accuracy are kept apart by some billionths, which may lead out of the range.
    if not all((np.abs(values - 0.5) <= 0.501).all() for values in (accuracy, by_point)):
        raise InputError("accuracies that are not all between 0 and 1")
    if thresholds.shape != accuracy.shape or not len(accuracy) or not (np.diff(accuracy) >= 0).all():
        raise InputError(f"{thresholds.shape} thresholds and {accuracy.shape} accuracies, which must not fall")
    if thresholds[0] != -math.inf or not (thresholds[1:] > thresholds[:-1]).all():
        raise InputError("thresholds that do not ascend from minus infinity")


def weight_tensors(mlp: MLP) -> dict[str, np.ndarray]:
    """Return ``<layer>.weight`` and ``<layer>.bias`` of every layer."""
    weights = {f"{layer.name}.weight": layer.weights for layer in mlp.layers}
    return {**weights, **{f"{layer.name}.bias": layer.bias for layer in mlp.layers}}


def read_mlp(description: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> MLP:
    """Return the network of ``weight_tensors`` and their order. Raises ``KeyError`` for a missing one."""
    layers = [DenseLayer(name, weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in description["layers"]]
    shape = description["input_shape"]
    # True is an int to Python, and none to what compiles.
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise InputError(f"input_shape is {shape!r}, expected sizes of at least 1")
    if len(shape) > MAX_INPUT_AXES:
        raise InputError(f"input_shape has {len(shape)} axes, at most {MAX_INPUT_AXES} can be served")
    return MLP(tuple(shape), tuple(layers), partial=description.get("partial") is True)


def table_tensors(
    confidence: ConfidenceTables, calibration: ThresholdCalibration, activators: Mapping[int, Activator]
) -> dict[str, np.ndarray]:
    """Return ``confidence.…``, ``calibration.…`` and ``activator.<layer>.…``."""
    parts: dict[str, Mapping[str, np.ndarray]] = {
        "confidence": {"means": confidence.means},
        "calibration": calibration.tensors(),
    }
    for at, activator in activators.items():
        parts[f"activator.{at}"] = {**activator.ranker.tensors(), **activator.lists.tensors()}
    return {f"{part}.{name}": array for part, tensors in parts.items() for name, array in tensors.items()}


def read_activator(kind: Any, tables: Mapping[str, np.ndarray], layer: int) -> Activator:
    """Return the activator of a layer, with a ranker of class ``kind``, from ``table_tensors``."""
    tensors = under(f"activator.{layer}", tables)
    return Activator(kind.from_tensors(tensors), NodeLists.from_tensors(tensors))


def under(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors called ``<part>.…``, without that prefix."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
