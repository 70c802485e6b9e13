"""An SLO-aware network (slo-aware-neural-networks, Definition 1): one trained network, k % of its nodes per query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.artifacts import Artifact, create_artifact
from slotool.elastic.activators.activator import Activator, logits, node_count
from slotool.elastic.activators.confidence import Calibration, ConfidenceTables
from slotool.elastic.activators.freehash import RANKERS
from slotool.elastic.activators.importance import NodeLists
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.model import ElasticModel
from slotool.errors import ArtifactError, InputError
from slotool.tables import FULL, OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.activators.kernels import Compiled

KIND = "slo-nn"
DESCRIPTION_FILE = "slo-nn.json"
WEIGHTS_FILE = "weights.safetensors"
TABLES_FILE = "tables.safetensors"


class SloNN(ElasticModel):
    """A ReLU network that computes, per query, only the share k of each activated layer's nodes.

    Points: ``k=<share>`` for each of ``shares`` (ascending), then ``full``, which is exactly the plain network.
    k counts computed nodes, those that the hash reads among them; a layer whose hash alone reads more computes those.
    ``activators``: by layer index, layer 0 among them. ``entropy``: by layer index, bits of its bucket occupancy.
    """

    def __init__(
        self,
        name: str,
        mlp: MLP,
        shares: Sequence[float],
        activators: Mapping[int, Activator],
        confidence: ConfidenceTables,
        calibration: Calibration,
        entropy: Mapping[int, float],
    ):
        self.name = name
        self.mlp = mlp
        self.shares = tuple(shares)
        self.activators = dict(activators)
        self.confidence = confidence
        self.calibration = calibration
        self.entropy = dict(entropy)
        self.input_shape = mlp.input_shape
        self.classes = mlp.classes
        self._inputs = mlp.layers[0].inputs
        self.points = (*(OperatingPoint.of(k=share) for share in self.shares), FULL)
        self._counts = {
            point: self._nodes_at(share) for point, share in zip(self.points, (*self.shares, 1.0), strict=True)
        }

    def _nodes_at(self, share: float) -> np.ndarray:
        """int64 [layers]: nodes to compute per layer."""
        units = [layer.units for layer in self.mlp.layers]
        counts = [node_count(n, share) if at in self.activators else n for at, n in enumerate(units)]
        return np.array(counts, dtype=np.int64)

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        """Logits at ``point``: float32 [batch, classes]; ``x``: float32 [batch, *input_shape]. One compiled call.

        Raises ``InputError`` for a point it does not have, another shape, or NaN and infinite values.
        """
        counts = self._counts.get(point)
        if counts is None:
            self.require(point)
            counts = self._counts[point]
        flat = self._flat(x)
        out = np.empty((len(flat), self.classes), dtype=np.float32)
        bad = self._compiled.forward(flat, out, counts)
        if bad >= 0:
            raise _not_finite(flat, bad)
        return out

    def forward_numpy(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        """The same answers in plain NumPy, layer by layer: what the compiled call is held against."""
        self.require(point)
        flat = self._flat(x)
        for row in np.flatnonzero(~np.isfinite(flat).all(axis=1)):
            raise _not_finite(flat, int(row))
        share = 1.0 if point == FULL else self.shares[self.points.index(point)]
        return logits(self.mlp, self.activators, flat, share)

    def confidences(self, x: np.ndarray) -> np.ndarray:
        """ĉ(k, x) of Eq. 4: float64 [shares], for ``x``: float32 [1, *input_shape]."""
        flat = self._flat(x)
        if len(flat) != 1:
            raise InputError(f"{self.name}: k is chosen for one input at a time, not for {len(flat)}")
        out = np.empty(len(self.shares))
        if not self._compiled.estimate(flat[0], out):
            raise _not_finite(flat, 0)
        return out

    def expected_accuracy(self, x: np.ndarray) -> Mapping[OperatingPoint, float]:
        """Per point the held-out accuracy a_t of answering with confidence ĉ(k, x) or more (§3.2)."""
        expected = self.calibration.expected(self.confidences(x)[None])[0]
        return dict(zip(self.points, expected.tolist(), strict=True))

    def estimates(self, x: np.ndarray) -> np.ndarray:
        """ĉ(k, x) of many inputs, in plain NumPy: float64 [n, shares] from float32 [n, *input_shape]."""
        buckets = self.activators[0].buckets(self.mlp.layers[0].pre_activations(self._flat(x)))
        return self.confidence.estimate(buckets)

    def aclo(self, x: np.ndarray, accuracy: float) -> OperatingPoint | None:
        """Accuracy-constrained, latency-optimised (Eq. 2): the least k expected to reach ``accuracy`` on this input.

        None: it cannot be met, because not even the full network is that accurate.
        """
        threshold = self.calibration.threshold(_number(accuracy, "accuracy target"))
        if threshold is None:
            return None
        for point, estimate in zip(self.points, self.confidences(x).tolist(), strict=False):
            if estimate >= threshold:
                return point
        return self.full

    def lcao(
        self, deadline_us: float, t0_us: float, latency_us: Mapping[OperatingPoint, float]
    ) -> OperatingPoint | None:
        """Latency-constrained, accuracy-optimised (Eq. 3): the greatest k with t0 + T(k) ≤ deadline.

        ``latency_us`` is T(k, β) for the present state of the machine; a point it lacks is not considered.
        None: it cannot be met.
        """
        left_us = _number(deadline_us, "deadline") - _number(t0_us, "time already spent")
        return next((point for point in reversed(self.points) if latency_us.get(point, math.inf) <= left_us), None)

    @property
    def ranker(self) -> str:
        """Name of the ranker that made the tables."""
        return self.activators[0].ranker.name

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables: hashes, ranked lists, confidences, calibration."""
        activators = sum(activator.nbytes for activator in self.activators.values())
        return activators + self.confidence.means.nbytes + self.calibration.nbytes

    @property
    def table_share(self) -> float:
        """``table_bytes`` over the bytes of the network."""
        return self.table_bytes / self.mlp.nbytes

    def save(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        seed: int,
        parents: Sequence[Artifact] = (),
        force: bool = False,
    ) -> None:
        """Write the artifact (kind ``slo-nn``): weights, tables, and the fingerprint of the weights they belong to."""
        with create_artifact(path, KIND, config=config, seed=seed, parents=parents, force=force) as bundle:
            bundle.write_json(DESCRIPTION_FILE, self._description())
            bundle.write_tensors(WEIGHTS_FILE, _weight_tensors(self.mlp))
            bundle.write_tensors(TABLES_FILE, self._table_tensors())

    @classmethod
    def load(cls, artifact: Artifact) -> SloNN:
        """Read it back. Raises ``ArtifactError`` when the tables were built for other weights."""
        description, tables = artifact.json(DESCRIPTION_FILE), artifact.tensors(TABLES_FILE)
        try:
            mlp = _read_mlp(description, artifact.tensors(WEIGHTS_FILE))
            if mlp.fingerprint != description["weights_sha256"]:
                raise ArtifactError(f"{artifact.path}: its tables were built for other weights than it holds")
            kind = RANKERS[description["ranker"]]
            return cls(
                artifact.name,
                mlp,
                description["shares"],
                {int(at): _read_activator(kind, _under(f"activator.{at}", tables)) for at in description["entropy"]},
                ConfidenceTables(tables["confidence.means"]),
                Calibration.from_tensors(_under("calibration", tables)),
                {int(at): bits for at, bits in description["entropy"].items()},
            )
        except (KeyError, IndexError, ValueError, InputError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{artifact.path}: its tables and weights do not belong together ({error})") from error

    @cached_property
    def _compiled(self) -> Compiled:
        from slotool.elastic.activators.kernels import Compiled

        return Compiled(self.mlp, self.activators, self.confidence)

    def _flat(self, x: np.ndarray) -> np.ndarray:
        """float32 [batch, inputs], contiguous. Raises ``InputError`` for another shape."""
        if x.shape[1:] != self.input_shape:
            raise InputError(f"{self.name} takes inputs [batch, {_dims(self.input_shape)}], not [{_dims(x.shape)}]")
        return np.ascontiguousarray(x, dtype=np.float32).reshape(len(x), self._inputs)

    def _description(self) -> dict[str, Any]:
        return {
            "input_shape": list(self.input_shape),
            "layers": [layer.name for layer in self.mlp.layers],
            "weights_sha256": self.mlp.fingerprint,
            "ranker": self.ranker,
            "shares": list(self.shares),
            "entropy": {str(at): bits for at, bits in self.entropy.items()},
        }

    def _table_tensors(self) -> dict[str, np.ndarray]:
        parts: dict[str, Mapping[str, np.ndarray]] = {
            "confidence": {"means": self.confidence.means},
            "calibration": self.calibration.tensors(),
        }
        for at, activator in self.activators.items():
            parts[f"activator.{at}"] = {**activator.ranker.tensors(), **activator.lists.tensors()}
        return {f"{part}.{name}": array for part, tensors in parts.items() for name, array in tensors.items()}


def _weight_tensors(mlp: MLP) -> dict[str, np.ndarray]:
    weights = {f"{layer.name}.weight": layer.weights for layer in mlp.layers}
    return {**weights, **{f"{layer.name}.bias": layer.bias for layer in mlp.layers}}


def _read_mlp(description: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> MLP:
    layers = [DenseLayer(name, weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in description["layers"]]
    return MLP(tuple(description["input_shape"]), tuple(layers))


def _read_activator(kind: Any, tensors: Mapping[str, np.ndarray]) -> Activator:
    return Activator(kind.from_tensors(tensors), NodeLists.from_tensors(tensors))


def _under(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    prefix = f"{part}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _not_finite(x: np.ndarray, row: int) -> InputError:
    what = "its values overflow the first layer" if np.isfinite(x[row]).all() else "it holds NaN or infinite values"
    return InputError(f"input {row} cannot be answered: {what}")


def _number(value: float, what: str) -> float:
    if math.isnan(value):
        raise InputError(f"the {what} is not a number")
    return float(value)


def _dims(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
