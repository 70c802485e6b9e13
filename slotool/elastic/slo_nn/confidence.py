"""Confidence tables (slo-aware-neural-networks, §3.2): closeness of the answer at k % to the full network's.

The measure of confidence that needs the fewest nodes at the allowed loss is selected here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.activator import sum_by_key
from slotool.elastic.slo_nn.calibration import ThresholdCalibration, mean_share, min_share

# Cross-entropy needs a probability above 0 for dropped classes too.
MIN_PROBABILITY = 1e-6
# Number of average examples in every bucket of a confidence table besides its own.
PRIOR_EXAMPLES = 5.0
# Folds of the cross-validation of tables that are learnt on held-out inputs.
FOLDS = 5


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities float64 [n, classes] of logits [n, classes]; a −inf logit has probability 0."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def closeness(full_logits: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return c(k, x) of Eq. 1 with cross-entropy as the distance: float64 [n], at most 0.

    ``full_logits``, ``logits``: float [n, classes], of the full network and at k.
    """
    probability = np.maximum(softmax(logits), MIN_PROBABILITY)
    return (softmax(full_logits) * np.log(probability)).sum(axis=1)


@dataclass(frozen=True)
class GridResults:
    """Answers of each k of the grid and, last, of the full network to n inputs.

    ``labels``: int32 [n, shares + 1], the best label. ``closeness``: float [n, shares], minus the cross-entropy to the
    full answer. ``closest``: float [n], the same of the full answer itself, or of the largest k if that was not
    computed. ``probability``: float32 [n, shares + 1], the full network's softmax of each of ``labels``.
    """

    labels: np.ndarray
    closeness: np.ndarray
    closest: np.ndarray
    probability: np.ndarray

    def take(self, chosen: np.ndarray) -> GridResults:
        return GridResults(self.labels[chosen], self.closeness[chosen], self.closest[chosen], self.probability[chosen])


@dataclass(frozen=True)
class CalibrationExamples:
    """Inputs that confidence is learnt from.

    ``buckets``: int [n, tables], rows of the first activated layer's lists. ``results``: the answers of each k.
    ``correct``: bool [n, shares + 1], whether they are right, last the full network's.
    """

    buckets: np.ndarray
    results: GridResults
    correct: np.ndarray

    def take(self, chosen: np.ndarray) -> CalibrationExamples:
        return CalibrationExamples(self.buckets[chosen], self.results.take(chosen), self.correct[chosen])

    @property
    def same_first(self) -> np.ndarray:
        """1 where k has the full network's best label, else 0: float32 [n, shares]."""
        return (self.results.labels[:, :-1] == self.results.labels[:, -1:]).astype(np.float32)

    @property
    def lost(self) -> np.ndarray:
        """1 where the full network is right and k has another label, else 0: float32 [n, shares]."""
        return (1.0 - self.same_first) * self.correct[:, -1:]

    @property
    def divergence(self) -> np.ndarray:
        """Kullback-Leibler divergence of k's answer from the full one, nats, float32 [n, shares]."""
        return np.maximum(self.results.closest[:, None] - self.results.closeness, 0.0).astype(np.float32)


@dataclass(frozen=True)
class Measure:
    """Estimator of each k's closeness to the full answer, from an input's buckets.

    ``of``: c(k, x), float [n, shares]. ``entries``: table entries from the means of c per bucket [rows, shares] and the
    k grid. ``prior``: as in ``ConfidenceTables.learn``. ``held_out``: learn from validation inputs, because a network
    is more confident on inputs it was trained on. ``backed``: use the means of training inputs, scaled to the mean of
    the held-out ones, as the prior of each bucket, because held-out inputs are few.
    """

    name: str
    of: Callable[[CalibrationExamples], np.ndarray]
    prior: float = PRIOR_EXAMPLES
    held_out: bool = True
    backed: bool = False
    entries: Callable[[np.ndarray, Sequence[float]], np.ndarray] = lambda means, shares: means

    def fit(
        self,
        trained: CalibrationExamples,
        held_out: CalibrationExamples,
        rows: int,
        shares: Sequence[float],
        rng: np.random.Generator,
    ) -> tuple[ConfidenceTables, np.ndarray]:
        """Return the tables, and unbiased ĉ(k, x) of the held-out inputs: float64 [n, shares].

        ``rows``: of the tables. ``rng`` assigns the folds. Where tables are learnt on held-out inputs, all of them make
        the tables, and each input's ĉ comes from tables of the other ``FOLDS`` − 1 folds.
        """
        if not self.held_out:
            tables = self._learn(trained, rows, shares)
            return tables, tables.estimate(held_out.buckets)
        backing = ConfidenceTables.learn(trained.buckets, rows, self.of(trained)).means if self.backed else None
        part = rng.permutation(len(held_out.buckets)) % FOLDS
        estimates = np.empty((len(part), len(shares)))
        for fold in range(FOLDS):
            others = self._learn(held_out.take(np.flatnonzero(part != fold)), rows, shares, backing)
            estimates[part == fold] = others.estimate(held_out.buckets[part == fold])
        return self._learn(held_out, rows, shares, backing), estimates

    def _learn(
        self, examples: CalibrationExamples, rows: int, shares: Sequence[float], backing: np.ndarray | None = None
    ) -> ConfidenceTables:
        means = ConfidenceTables.learn(examples.buckets, rows, self.of(examples), self.prior, backing).means
        return ConfidenceTables(self.entries(means, shares).astype(np.float32))


def rates(lost: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Minus the greatest rate at which more nodes reduce the expected loss: float64 [rows, shares], at most 0.

    ``lost``: expected loss of each k, float [rows, shares]. The rate is loss saved per additional share of nodes, over
    all larger k and the full network, which loses nothing. Taking the least k whose entry is at least −λ minimises
    nodes + loss / λ over all inputs. A threshold on the loss itself would spend nodes on inputs that stay wrong.
    """
    costs = np.append(np.asarray(shares, dtype=np.float64), 1.0)
    reached = np.concatenate([lost, np.zeros((len(lost), 1))], axis=1)
    result = np.empty(lost.shape)
    for at in range(lost.shape[1]):
        saved = (reached[:, at : at + 1] - reached[:, at + 1 :]) / (costs[at + 1 :] - costs[at])
        result[:, at] = -np.maximum(saved.max(axis=1), 0.0)
    return result


# ``select_measure`` keeps the one that saves most on validation data. The first is the paper's. The last gives every
# input the same estimate, so that k chosen per input is never worse there than a fixed k.
MEASURES = (
    Measure("cross-entropy", lambda examples: examples.results.closeness, held_out=False),
    Measure("cross-entropy, held out", lambda examples: examples.results.closeness),
    Measure("zero-one, held out", lambda examples: examples.same_first),
    Measure("rate of errors, held out", lambda examples: examples.lost, entries=rates),
    Measure("rate of divergence, held out", lambda examples: examples.divergence, backed=True, entries=rates),
    Measure("none", lambda examples: examples.same_first, np.inf),
)


@dataclass(frozen=True)
class ConfidenceTables:
    """Mean confidence per bucket of the first activated layer (Eq. 4, arithmetic mean).

    ``means``: float32 [rows, shares]; rows are those of the layer's ``NodeLists``, row 0 the mean over all inputs.
    """

    means: np.ndarray

    @classmethod
    def learn(
        cls,
        buckets: np.ndarray,
        rows: int,
        confidences: np.ndarray,
        prior: float = PRIOR_EXAMPLES,
        backing: np.ndarray | None = None,
    ) -> ConfidenceTables:
        """Learn from ``buckets`` int [n, tables], which are rows, and ``confidences`` c(k, x) float [n, shares].

        ``prior``: number of average examples that every bucket counts besides its own, against extreme means of buckets
        with few inputs; infinite: every bucket gets the mean over all inputs. ``backing``: means of other inputs, float
        [rows, shares]; then a bucket's average example is its entry there, scaled so that row 0 becomes the mean here.
        """
        mean = confidences.mean(axis=0, dtype=np.float64)
        if np.isinf(prior):
            return cls(np.tile(mean, (rows, 1)).astype(np.float32))
        tables = buckets.shape[1]
        sums = sum_by_key(buckets.ravel(), np.repeat(confidences, tables, axis=0), rows)
        counts = np.bincount(buckets.ravel(), minlength=rows)[:, None]
        average = np.tile(mean, (rows, 1))
        if backing is not None:
            average = backing * np.divide(mean, backing[0], out=np.ones_like(mean), where=backing[0] != 0)
        means = np.divide(sums + prior * average, counts + prior, out=average.copy(), where=counts + prior > 0)
        means[0] = mean
        return cls(means.astype(np.float32))

    def estimate(self, buckets: np.ndarray) -> np.ndarray:
        """Return ĉ(k, x): float64 [n, shares], the mean over tables of the rows ``buckets`` int [n, tables]."""
        return self.means[buckets].mean(axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Expectation:
    """Isotonic regressions from the full network's softmax of a label to the probability that it is right.

    ``first`` is for the full network's best labels, ``others`` for labels that a smaller k has in their place.
    """

    first: Any
    others: Any

    @classmethod
    def learn(cls, results: GridResults, correct: np.ndarray) -> Expectation:
        """Fit to ``results`` and ``correct`` bool [n, shares + 1]. A label that several k give an input counts once."""
        labels, probability = results.labels, results.probability
        new = labels[:, :-1] != labels[:, -1:]
        new[:, 1:] &= labels[:, 1:-1] != labels[:, :-2]
        first = _isotonic(probability[:, -1], correct[:, -1])
        return cls(first, _isotonic(probability[:, :-1][new], correct[:, :-1][new]) if new.any() else first)

    def of(self, results: GridResults) -> np.ndarray:
        """Return the probability that each label is right, float64 [n, shares + 1].

        Over the inputs of ``learn`` its mean for the full network is the observed accuracy.
        """
        expected = np.repeat(self.first.predict(results.probability[:, -1])[:, None], results.labels.shape[1], axis=1)
        other = results.labels != results.labels[:, -1:]
        if other.any():
            expected[other] = self.others.predict(results.probability[other])
        return expected


def _isotonic(probability: np.ndarray, correct: np.ndarray) -> Any:
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(probability.astype(np.float64), correct.astype(np.float64))


@dataclass(frozen=True)
class SelectedMeasure:
    """The selected measure with its tables and calibration; ``mean_k``: by measure, mean k at the estimated loss."""

    measure: str
    mean_k: dict[str, float]
    confidence: ConfidenceTables
    calibration: ThresholdCalibration


def select_measure(
    trained: CalibrationExamples,
    held_out: CalibrationExamples,
    rows: int,
    shares: Sequence[float],
    levels: int,
    allowed_loss: float,
    seed: int,
) -> SelectedMeasure:
    """Learn confidence by each of ``MEASURES`` and keep the one that promises the allowed loss at the least mean k.

    Ties, such as where only the full network promises it, are broken by the mean k at which the loss is estimated.
    ``rows``: of the tables. ``levels``: number of thresholds. ``seed`` assigns the folds. Calibration uses estimates by
    tables that the same example had no part in.
    """
    expected = Expectation.learn(held_out.results, held_out.correct).of(held_out.results)
    measured: dict[str, tuple[tuple[float, float], ConfidenceTables, ThresholdCalibration]] = {}
    for measure in MEASURES:
        # Select all measures on the same parts.
        confidence, estimates = measure.fit(trained, held_out, rows, shares, np.random.default_rng([seed, FOLDS]))
        calibration = ThresholdCalibration.measure(estimates, held_out.correct, levels, expected)
        mean_k = _mean_k(estimates, calibration, shares, allowed_loss)
        measured[measure.name] = (mean_k, confidence, calibration)
    best = min(measured, key=lambda name: measured[name][0])
    _, confidence, calibration = measured[best]
    estimated = {name: entry[0][1] for name, entry in measured.items()}
    return SelectedMeasure(best, estimated, confidence, calibration)


def _mean_k(
    estimates: np.ndarray, calibration: ThresholdCalibration, shares: Sequence[float], allowed_loss: float
) -> tuple[float, float]:
    """Return the mean k chosen per input at which the allowed loss is promised, and at which it is estimated."""
    promised = calibration.thresholds[int((calibration.bounds() <= allowed_loss).argmax())]
    estimated = calibration.threshold(float(calibration.by_point[-1]) - allowed_loss)
    assert estimated is not None  # the full network reaches it
    mean_ks = [mean_share(shares, min_share(estimates, t)) for t in (promised, estimated)]
    return mean_ks[0], mean_ks[1]
