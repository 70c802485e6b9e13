"""Update the tables of an SLO-NN from served inputs, so that they follow a shift of the inputs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from scipy import sparse

from slotool.elastic.slo_nn.activator import Activator, layer_input
from slotool.elastic.slo_nn.build import MIN_VALIDATION_EXAMPLES, flat, right
from slotool.elastic.slo_nn.confidence import (
    MEASURES,
    CalibrationExamples,
    ConfidenceTables,
    GridResults,
    ThresholdCalibration,
)
from slotool.elastic.slo_nn.grid_evaluation import FullOutputs, evaluate_grid, in_chunks
from slotool.elastic.slo_nn.importance import MIN_IN_BUCKET, NodeLists, NodeScores, sum_by_key
from slotool.elastic.slo_nn.measure_selection import Expectation
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import InputError

# A list of the given model counts as this many examples of its bucket.
REMEMBERED_EXAMPLES = 2 * MIN_IN_BUCKET
HALF_LIFE = 4_096


class TableUpdates:
    """Collects served inputs and builds tables for them that take no more bytes. Weights and rankers stay.

    ``rank`` takes inputs that update the ranked lists, ``count`` takes those that confidence, calibration and promises
    are learnt from. No input may be passed to both: a promise must not rest on inputs that chose the lists. In the
    lists an input's weight halves after ``half_life`` further ones; of the counted inputs only the last ``half_life``
    are kept. A bucket that no longer has enough inputs loses its list to one that has. Not thread-safe.
    Raises ``InputError`` for a half-life of fewer inputs than a calibration needs.
    """

    def __init__(self, model: SloNN, half_life: int = HALF_LIFE):
        if half_life < MIN_VALIDATION_EXAMPLES:
            raise InputError(f"a half-life of {half_life} inputs is too short; {MIN_VALIDATION_EXAMPLES} are needed")
        self.model, self.half_life = model, half_life
        informed = {at: activator for at, activator in model.activators.items() if activator.ranker.informed}
        self._scores = {at: _Fading(activator) for at, activator in informed.items()}
        self._rng = np.random.default_rng(0)
        # Counted inputs and their labels.
        self._recent: list[tuple[Any, Any]] = []

    def rank(self, x: Any) -> None:
        """Update the lists with a batch, float32 [n, *input_shape] or CSR; the full network is evaluated for it.

        Raises ``InputError`` for NaN or infinite values.
        """
        inputs = flat(x)
        _require_finite(inputs)
        faded = 0.5 ** (inputs.shape[0] / self.half_life)
        for at, scores in self._scores.items():
            scores.fade(faded)
            layer, activations = self.model.mlp.layers[at], self._activations(at, inputs)
            before = {index: activator for index, activator in self.model.activators.items() if index < at}
            ranker = self.model.activators[at].ranker
            for share in self.model.shares if before else (1.0,):
                keys = ranker.keys(layer, layer_input(self.model.mlp, before, inputs, share, at))
                scores.add(keys, ranker.considered(layer, keys, activations, self._rng))

    def count(self, x: Any, y: Any = None) -> None:
        """Add a batch that is calibrated by: ``x`` as for ``rank``; ``y``: classes int [n] or ``LabelSets``, if known.

        Its inputs must not have trained the network either. Raises ``InputError`` for NaN or infinite values, and when
        only some batches have labels.
        """
        inputs = flat(x)
        _require_finite(inputs)
        if self._recent and (self._recent[0][1] is None) != (y is None):
            raise InputError("labels must come with all batches or with none")
        self._recent.append((inputs, y))
        while len(self._recent) > 1 and sum(part.shape[0] for part, _ in self._recent[1:]) >= self.half_life:
            self._recent.pop(0)

    def updated(self) -> SloNN:
        """The model with updated tables. Raises ``InputError`` when too few inputs were counted for a calibration.

        Without labels an answer counts as right where it equals the full network's, so every difference counts as a
        loss, and accuracy is relative to the accuracy that the full network had: promises are too low, never too high.
        As by ``build``, promises are counted on inputs that did not update the lists. They hold while inputs stay like
        those of the last half-life.
        """
        model, counted = self.model, sum(part.shape[0] for part, _ in self._recent)
        if counted < MIN_VALIDATION_EXAMPLES:
            raise InputError(
                f"{counted} inputs are too few to calibrate by; {MIN_VALIDATION_EXAMPLES} are needed besides those "
                "that update the lists"
            )
        activators = {
            at: Activator(activator.ranker, self._scores[at].lists(activator.lists))
            if at in self._scores
            else activator
            for at, activator in model.activators.items()
        }
        return model.with_tables(activators, *self._confidence(activators))

    def _activations(self, at: int, inputs: Any) -> Any:
        """Scores that rank the nodes of layer ``at``, as ``TableSubject.activations`` has them."""
        mlp = self.model.mlp
        if at < len(mlp.layers) - 1:
            return layer_input(mlp, {}, inputs, 1.0, at + 1)
        return FullOutputs.of(mlp.layers[at], layer_input(mlp, {}, inputs, 1.0, at)).scores(1.0)

    def _confidence(self, activators: dict[int, Activator]) -> tuple[ConfidenceTables, ThresholdCalibration]:
        model, first = self.model, min(activators)
        parts = [self._calibration_examples(activators, first, x, y) for x, y in self._recent]
        results = (np.concatenate([getattr(part.results, of.name) for part in parts]) for of in fields(GridResults))
        buckets, correct = (np.concatenate([getattr(part, of) for part in parts]) for of in ("buckets", "correct"))
        examples = CalibrationExamples(buckets, GridResults(*results), correct)
        # Backing means of the same inputs would leak into their own estimates.
        measure = replace(next(m for m in MEASURES if m.name == model.measure), held_out=True, backed=False)
        rows = activators[first].lists.rows
        confidence, estimates = measure.fit(examples, examples, rows, model.shares, np.random.default_rng(0))
        levels = max(2, len(model.calibration.thresholds) - 2)
        if self._recent[0][1] is not None:
            expected = Expectation.learn(examples.results, examples.correct).of(examples.results)
            return confidence, ThresholdCalibration.measure(estimates, examples.correct, levels, expected)
        found = ThresholdCalibration.measure(estimates, examples.correct, levels)
        unknown = 1.0 - float(model.calibration.by_point[-1])
        return confidence, replace(found, accuracy=found.accuracy - unknown, by_point=found.by_point - unknown)

    def _calibration_examples(
        self, activators: dict[int, Activator], first: int, x: Any, y: Any
    ) -> CalibrationExamples:
        mlp = self.model.mlp
        results = evaluate_grid(mlp, activators, self.model.shares, x)
        correct = results.labels == results.labels[:, -1:] if y is None else right(results.labels, y)
        layer, activator = mlp.layers[first], activators[first]
        buckets = in_chunks(x, lambda part: activator.buckets(layer, layer_input(mlp, {}, part, 1.0, first)))
        return CalibrationExamples(buckets, results, correct)


def _require_finite(inputs: Any) -> None:
    if not np.isfinite(inputs if isinstance(inputs, np.ndarray) else inputs.data).all():
        raise InputError("the inputs to learn from hold NaN or infinite values")


class _Fading:
    """Sums of activations per bucket, with exponential decay.

    They start from the model's lists. A list keeps only an order, so place p counts 1 / (p + 1), scaled so that all
    places together count as ``REMEMBERED_EXAMPLES`` average examples.
    """

    def __init__(self, activator: Activator):
        lists = activator.lists
        weights = 1.0 / (1.0 + np.arange(lists.lists.shape[1]))
        self._units = len(lists.overall)
        self._order = 1.0 / (1.0 + np.argsort(lists.overall, kind="stable"))
        self._counts = (lists.slots > 0) * float(REMEMBERED_EXAMPLES)
        self._sums = []
        for slots in lists.slots:
            buckets = np.flatnonzero(slots)
            nodes = lists.lists[slots[buckets]].astype(np.int64)
            entries = np.tile(weights / weights.sum() * REMEMBERED_EXAMPLES, len(buckets))
            at = (np.repeat(buckets, nodes.shape[1]), nodes.ravel())
            self._sums.append(sparse.csr_matrix((entries, at), shape=(lists.slots.shape[1], self._units)))
        self._scaled = False

    def fade(self, factor: float) -> None:
        self._counts = self._counts * factor
        self._sums = [sums * factor for sums in self._sums]

    def add(self, keys: np.ndarray, activations: Any) -> None:
        """``keys``: int [n, tables]; ``activations``: float [n, units], an array or CSR."""
        if not self._scaled:
            # The sums of the given lists are in units of an average example's total activation.
            average = float(activations.sum()) / max(1, len(keys))
            self._sums, self._scaled = [sums * average for sums in self._sums], True
            self._order = self._order * (average * 1e-6)
        for table, column in enumerate(keys.T):
            more = sparse.csr_matrix(sum_by_key(column, activations, self._counts.shape[1]))
            self._sums[table] = self._sums[table] + more
            self._counts[table] += np.bincount(column, minlength=self._counts.shape[1])

    def lists(self, before: NodeLists) -> NodeLists:
        """Lists for the fullest buckets: at most as many as in ``before``, and as long."""
        tables, buckets = self._counts.shape
        scores = NodeScores(tables, buckets, self._units)
        fullest = np.argsort(-self._counts.ravel(), kind="stable")[: before.rows - 1]
        kept = np.zeros(self._counts.size, dtype=bool)
        kept[fullest] = True
        scores.counts = np.where(kept.reshape(self._counts.shape), self._counts, 0.0)
        scores.sums = self._sums
        # Nodes without any activation since keep their order.
        scores.elsewhere = self._order
        return NodeLists.rank(scores, before.lists.shape[1])
