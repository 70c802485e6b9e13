"""An SLO-aware network (slo-aware-neural-networks, Definition 1): one trained network, k % of its nodes per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.artifacts import Artifact, create_artifact
from slotool.artifacts.bundle import ArtifactWriter
from slotool.data.columns import Inputs, only_array
from slotool.elastic.model import ElasticModel, InferenceSession
from slotool.elastic.slo_nn import stored
from slotool.elastic.slo_nn.activator import Activator, layer_input
from slotool.elastic.slo_nn.calibration import ThresholdCalibration, min_share
from slotool.elastic.slo_nn.confidence import ConfidenceTables
from slotool.elastic.slo_nn.inputs import check_rows, dense_rows, not_finite, number, row_values, sparse_rows
from slotool.elastic.slo_nn.mlp import MLP, Int8Weights
from slotool.errors import ArtifactError, InputError
from slotool.tables import FULL, OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.kernels.compiled import Compiled
    from slotool.elastic.slo_nn.session import CompiledSession

KIND = "slo-nn"
# Ways of asking that ``top`` keeps ready.
MAX_SESSIONS = 16


class SloNN(ElasticModel):
    """A ReLU network that computes, per query, only the share k of the nodes of each layer with an activator.

    Points: ``k=<share>`` for each of ``shares`` (ascending), then ``full``, which equals the given network. k counts
    all computed nodes, also those that a hash needs; where a hash needs more than k, those are computed.
    ``activators``: by layer index. ``entropy``: by layer index, of the bucket occupancy, in bits. ``measure``: name of
    the measure of confidence. ``mean_k``: by measure, mean k on validation data at the allowed loss. ``int8``: weights
    of the output layer, which then has an activator, are read as int8 at every k below 100 %. ``sparse``: inputs come
    as CSR matrices.
    Raises ``InputError`` for int8 weights of an output layer without an activator.
    """

    compiles = True
    leaves_out = True
    estimates_each = True

    def __init__(
        self,
        name: str,
        mlp: MLP,
        shares: Sequence[float],
        activators: Mapping[int, Activator],
        confidence: ConfidenceTables,
        calibration: ThresholdCalibration,
        entropy: Mapping[int, float],
        *,
        measure: str = "cross-entropy",
        mean_k: Mapping[str, float] | None = None,
        int8: bool = False,
        sparse: bool = False,
    ):
        self.name = name
        self.mlp = mlp
        self.shares = tuple(shares)
        self.activators = dict(activators)
        self.confidence = confidence
        self.calibration = calibration
        self.entropy = dict(entropy)
        self.measure, self.mean_k = measure, dict(mean_k or {})
        self.int8, self.sparse = int8, sparse
        if int8 and len(mlp.layers) - 1 not in self.activators:
            raise InputError(f"{name}: int8 weights need an output layer with an activator; it has none")
        self.input_shape = mlp.input_shape
        self.classes = mlp.classes
        self.first = min(self.activators)
        self._inputs = mlp.layers[0].inputs
        self.points = (*(OperatingPoint.of(k=share) for share in self.shares), FULL)
        self._at = {point: at for at, point in enumerate(self.points)}

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        """Return the logits at ``point``: float32 [batch, classes]; one compiled call.

        ``x``: float32 [batch, *input_shape], or CSR [batch, inputs]. Raises ``InputError`` for a point it does not
        have, another shape, or NaN and infinite values.
        """
        at = self._at.get(point)
        if at is None:
            self.require(point)
            at = self._at[point]
        flat = self.flat(x)
        out = np.empty((flat.shape[0], self.classes), dtype=np.float32)
        if point == FULL and self._all_at_once(flat, out):
            return out
        bad = self.compiled.logits(flat, out, at)
        if bad >= 0:
            raise not_finite(flat, bad)
        return out

    def _all_at_once(self, flat: Any, out: np.ndarray) -> bool:
        """True if ``out`` could be filled with a batch's logits from all nodes by one product per layer."""
        from slotool.elastic.slo_nn.kernels import full_batch

        pays_from = full_batch.MIN_DENSE if isinstance(flat, np.ndarray) else full_batch.MIN_SPARSE
        return len(out) >= pays_from and full_batch.logits(self.compiled, flat, out)

    def top(
        self, x: Any, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ``p`` best labels and their logits, best first: int32 and float32 [batch, p].

        At ``point``, or at the least k with which ``accuracy`` is promised (see ``target``), or in full. No other
        logits are made. If fewer than p nodes were computed, the rest is label −1 at −inf. Raises ``InputError`` as
        ``forward`` does, and for an accuracy that cannot be met.
        """
        flat, target = self.flat(x), (p, point, accuracy)
        session = self._sessions.get(target)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS:
                self._sessions.clear()
            session = self._sessions[target] = self.compiled_session(p, point=point, accuracy=accuracy)
        return session.many(flat)

    @cached_property
    def _sessions(self) -> dict[tuple[int, OperatingPoint | None, float | None], CompiledSession]:
        """Sessions of ``top`` by its arguments. Any thread may use them: ``many`` returns new arrays."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the copies leave out what holds addresses or workspaces, and make their own."""
        transient = ("compiled", "_sessions")
        return {name: value for name, value in self.__dict__.items() if name not in transient}

    def compiled_session(
        self, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
    ) -> CompiledSession:
        """Return a session that answers one query after another at ``point`` or ``accuracy``, with the least overhead.

        ``p``: number of best labels. Raises ``InputError`` as ``top`` does.
        """
        from slotool.elastic.slo_nn.session import CompiledSession

        return CompiledSession(self, p, point=point, accuracy=accuracy)

    def session(self, point: OperatingPoint, p: int = 1) -> InferenceSession:
        from slotool.elastic.slo_nn.session import OneQuerySession

        return OneQuerySession(self.compiled_session(p, point=point))

    def at_int8(self, int8: bool = True, calibration: ThresholdCalibration | None = None) -> SloNN:
        """Return a copy whose weights are read as int8, or as float32.

        ``calibration``: one measured with these weights. Without it, a copy that changes to int8 promises only the full
        network, because the evidence is of float32 weights.
        """
        if int8 and not self.int8 and calibration is None:
            calibration = self.calibration.unproven
        tables = (self.activators, self.confidence, calibration or self.calibration, self.entropy)
        options: dict[str, Any] = {"measure": self.measure, "mean_k": self.mean_k, "int8": int8, "sparse": self.sparse}
        return SloNN(self.name, self.mlp, self.shares, *tables, **options)

    def stating(self, confidence: float) -> SloNN:
        """Return a copy that promises with ``confidence`` by default. Raises ``InputError`` outside 0 to 1."""
        stated = replace(self.calibration, stated=confidence)
        stated.bounds()
        return self.at_int8(self.int8, stated)

    def confidences(self, x: np.ndarray) -> np.ndarray:
        """Return ĉ(k, x) of Eq. 4: float64 [shares], for ``x``: float32 [1, *input_shape]."""
        flat = self._checked(x)
        if flat.shape[0] != 1:
            raise InputError(f"{self.name}: k is chosen for one input at a time, not for {flat.shape[0]}")
        inputs = layer_input(self.mlp, {}, flat, 1.0, self.first)
        if not np.isfinite(row_values(inputs, 0)).all():
            raise not_finite(flat, 0)
        out = np.empty(len(self.shares))
        self.compiled.estimate(inputs, out)
        return out

    def expected_accuracy(self, x: Inputs) -> Mapping[OperatingPoint, float]:
        """Per point the held-out accuracy a_t of answering with confidence ĉ(k, x) or more (§3.2)."""
        expected = self.calibration.expected(self.confidences(only_array(x))[None])[0]
        return dict(zip(self.points, expected.tolist(), strict=True))

    def expected_accuracies(self, x: Any) -> np.ndarray:
        return self.calibration.expected(self.estimates(x))

    def estimates(self, x: Any) -> np.ndarray:
        """Return ĉ(k, x) of many inputs, in plain NumPy: float64 [n, shares] from float32 [n, *input_shape] or CSR."""
        inputs = layer_input(self.mlp, {}, self._checked(x), 1.0, self.first)
        return self.confidence.estimate(self.activators[self.first].buckets(self.mlp.layers[self.first], inputs))

    def target(self, loss: float, confidence: float | None = None) -> float:
        """Return the accuracy target at which k chosen per input loses at most ``loss`` with ``confidence``.

        0.003 is 0.3 points. The loss is against the full network, on as many further examples as the tables were
        calibrated with. ``confidence`` None: as stated when the tables were built, 0.9 by default. Where nothing less
        can be promised, the target is the full network's accuracy. Raises ``InputError`` for values out of range.
        """
        enough = self.calibration.bounds(confidence) <= self._loss(loss)
        return float(self._promised[int(enough.argmax()) if enough.any() else -1])

    def fixed_for(self, loss: float, confidence: float | None = None) -> OperatingPoint:
        """Return the least fixed k that loses at most ``loss`` with ``confidence`` (``target``), or all nodes."""
        enough = self.calibration.bounds_by_point(confidence) <= self._loss(loss)
        return self.points[int(enough.argmax()) if enough.any() else -1]

    def threshold(self, accuracy: float | None) -> float | None:
        """Return the least threshold of ĉ(k, x) at which ``accuracy`` is promised; None for None.

        Raises ``InputError`` when not even the full network reaches ``accuracy``.
        """
        if accuracy is None:
            return None
        result = self._threshold(accuracy)
        if result is None:
            best = float(self.calibration.by_point[-1])
            raise InputError(f"{self.name}: an accuracy of {accuracy} cannot be met; the full network has {best:.4f}")
        return result

    def _threshold(self, accuracy: float) -> float | None:
        level = int(np.searchsorted(self._promised, number(accuracy, "accuracy target")))
        if level == len(self._promised):
            return None
        return float(self.calibration.thresholds[level])

    @cached_property
    def _promised(self) -> np.ndarray:
        return self.calibration.promised()

    def _loss(self, loss: float) -> float:
        if not 0 <= number(loss, "allowed loss") <= 1:
            raise InputError(f"{self.name}: the allowed loss {loss} must be a share of answers from 0 to 1")
        return loss

    def cheapest(self, x: Any, accuracy: float) -> np.ndarray:
        """Return the index in ``points`` of each input's least k that promises ``accuracy``, int [n]; −1 out of reach.

        This is accuracy-constrained, latency-optimised choice (ACLO, Eq. 2).
        """
        threshold = self._threshold(accuracy)
        if threshold is None:
            return np.full(x.shape[0], -1)
        return min_share(self.estimates(x), threshold)

    @property
    def ranker(self) -> str:
        """Name of the ranker that made the tables."""
        return self.activators[self.first].ranker.name

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
            self.write_to(bundle)

    def write_to(self, bundle: ArtifactWriter) -> None:
        """Write the files of the model to an artifact that is being made."""
        others = {"measure": self.measure, "mean_k": self.mean_k, "int8": self.int8, "sparse": self.sparse}
        document = stored.description(self.mlp, self.ranker, self.shares, self.entropy, **others)
        tables = stored.table_tensors(self.confidence, self.calibration, self.activators)
        bundle.write_json(stored.DESCRIPTION_FILE, document)
        bundle.write_tensors(stored.WEIGHTS_FILE, stored.weight_tensors(self.mlp))
        bundle.write_tensors(stored.TABLES_FILE, tables)

    @classmethod
    def load(cls, artifact: Artifact) -> SloNN:
        """Read it back. Raises ``ArtifactError`` when the tables were built for other weights, or point beyond them."""
        try:
            model = cls(artifact.name, **stored.read(artifact))
            for at, activator in model.activators.items():
                activator.check(model.mlp.layers[at])
            return model
        except ArtifactError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, InputError) as error:
            raise ArtifactError(f"{artifact.path}: its tables and weights do not belong together ({error})") from error

    @cached_property
    def compiled(self) -> Compiled:
        from slotool.elastic.slo_nn.kernels.compiled import Compiled

        rows = {len(self.mlp.layers) - 1: Int8Weights.of(self.mlp.layers[-1])} if self.int8 else None
        return Compiled(self.mlp, self.activators, self.shares, self.confidence, rows)

    def flat(self, x: Any) -> Any:
        """Return float32 [batch, inputs], contiguous, or CSR. Raises ``InputError`` for another shape or type."""
        if hasattr(x, "tocsr"):
            return sparse_rows(self.name, x, self._inputs)
        return dense_rows(self.name, np.asanyarray(x), self.input_shape)

    def _checked(self, x: Any) -> Any:
        """Return ``flat(x)``, whose values and features are checked too: NumPy and SciPy check neither."""
        flat = self.flat(x)
        check_rows(flat)
        return flat
