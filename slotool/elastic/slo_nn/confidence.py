"""Confidence tables (slo-aware-neural-networks, §3.2): how close the answer at k % comes to the full network's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slotool.elastic.slo_nn.evidence import CONFIDENCE, DiscordantPairs
from slotool.elastic.slo_nn.importance import sum_by_key

# Cross-entropy needs a probability above 0 for dropped classes too.
MIN_PROBABILITY = 1e-6
# Every bucket of a confidence table counts this many average examples besides its own.
PRIOR_EXAMPLES = 5.0
# Folds of the cross-validation of tables that are learnt on held-out inputs.
FOLDS = 5
DEFAULT_THRESHOLDS, MAX_THRESHOLDS = 32, 256
# Levels may promise the same accuracy; they are kept this far apart, so that each can be looked up.
LEVELS_APART = 1e-12


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [n, classes] of logits [n, classes]; a −inf logit has probability 0."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probability: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return probability


def closeness(full_logits: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """c(k, x) of Eq. 1 with cross-entropy as the distance: float64 [n], at most 0.

    ``full_logits``, ``logits``: float [n, classes], of the full network and at k.
    """
    probability = np.maximum(softmax(logits), MIN_PROBABILITY)
    closeness: np.ndarray = (softmax(full_logits) * np.log(probability)).sum(axis=1)
    return closeness


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
        """float32 [n, shares]: 1 where k gives the full network's best label, else 0."""
        same: np.ndarray = (self.results.labels[:, :-1] == self.results.labels[:, -1:]).astype(np.float32)
        return same

    @property
    def lost(self) -> np.ndarray:
        """float32 [n, shares]: 1 where the full network is right and k gives another label, else 0."""
        lost: np.ndarray = (1.0 - self.same_first) * self.correct[:, -1:]
        return lost

    @property
    def divergence(self) -> np.ndarray:
        """float32 [n, shares]: the Kullback-Leibler divergence of k's answer from the full one, in nats."""
        divergence: np.ndarray = np.maximum(self.results.closest[:, None] - self.results.closeness, 0.0).astype(
            np.float32
        )
        return divergence


@dataclass(frozen=True)
class Measure:
    """One way to estimate, from an input's buckets, how close to the full answer each k comes.

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
        """The tables, and unbiased ĉ(k, x) of the held-out inputs: float64 [n, shares].

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
    found = np.empty(lost.shape)
    for at in range(lost.shape[1]):
        saved = (reached[:, at : at + 1] - reached[:, at + 1 :]) / (costs[at + 1 :] - costs[at])
        found[:, at] = -np.maximum(saved.max(axis=1), 0.0)
    return found


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
        """ĉ(k, x): float64 [n, shares], the mean over tables of the rows ``buckets`` int [n, tables]."""
        means: np.ndarray = self.means[buckets].mean(axis=1, dtype=np.float64)
        return means


@dataclass(frozen=True)
class ThresholdCalibration:
    """Confidence thresholds t with the accuracy a_t that each reaches, measured on held-out data.

    ``thresholds``: float64 [levels], ascending, from −inf to one at which every input is answered in full.
    ``accuracy``: float64 [levels], estimated accuracy a_t if every input is answered at its least k with ĉ(k, x) ≥ t,
    or in full if there is none; it never falls with t. ``by_point``: float64 [shares + 1], estimated accuracy of each
    fixed k and, last, of the full network.
    Promises are not made from these estimates but from ``evidence`` of the levels and ``evidence_by_point`` of the
    fixed k, with ``stated`` confidence unless a call says another. None: tables of an older version, which promise only
    the full network. ``estimates``: the ĉ(k, x) float64 [n, shares] of the counted examples; None in loaded tables.
    """

    thresholds: np.ndarray
    accuracy: np.ndarray
    by_point: np.ndarray
    evidence: DiscordantPairs | None = None
    evidence_by_point: DiscordantPairs | None = None
    stated: float = CONFIDENCE
    estimates: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def measure(
        cls,
        estimates: np.ndarray,
        correct: np.ndarray,
        levels: int = DEFAULT_THRESHOLDS,
        expected: np.ndarray | None = None,
    ) -> ThresholdCalibration:
        """Calibrate from ``estimates`` ĉ(k, x) float [n, shares] and whether answers are ``correct`` [n, shares + 1].

        ``correct``: bool, or probabilities, from which no evidence is counted; last the full network's. ``levels``:
        number of thresholds, at quantiles of the estimates. ``expected``: float [n, shares + 1], model-based
        probability that each answer is correct; then the lower of the observed and the expected accuracy is kept.
        Where a_t falls for a higher t, the lower value counts for both.
        """
        values = np.unique(np.quantile(estimates, np.linspace(0, 1, levels), method="nearest"))
        # The last above every estimate: a next greater number might be one that the processor takes for zero.
        thresholds = np.concatenate([[-np.inf], values, [np.inf]])
        every, by_point = np.arange(len(correct)), correct.mean(axis=0)
        chosen = [min_share(estimates, t) for t in thresholds]
        reached = np.array([correct[every, points].mean() for points in chosen])
        if expected is not None:
            by_point[:-1] = np.minimum(by_point, expected.mean(axis=0))[:-1]
            hoped = np.array([expected[every, points].mean() for points in chosen])
            reached[:-1] = np.minimum(reached, hoped)[:-1]
        found = cls(thresholds, np.minimum.accumulate(reached[::-1])[::-1], by_point, estimates=estimates)
        return found.counted(correct) if correct.dtype == bool else found

    def counted(self, correct: np.ndarray) -> ThresholdCalibration:
        """A copy with evidence counted from ``correct`` bool [n, shares + 1], for the inputs of ``estimates``."""
        assert self.estimates is not None
        levels = [min_share(self.estimates, t) for t in self.thresholds]
        points = [np.full(len(correct), at) for at in range(correct.shape[1])]
        return replace(
            self,
            evidence=DiscordantPairs.count(correct, levels),
            evidence_by_point=DiscordantPairs.count(correct, points),
        )

    def promised(self, confidence: float | None = None) -> np.ndarray:
        """Promised accuracy of each level, float64 [levels], ascending: the full network's less the level's bound."""
        full, levels = float(self.by_point[-1]), len(self.thresholds)
        lost = self.bounds(confidence)
        kept = full - lost - LEVELS_APART * np.arange(levels)[::-1]
        kept[-1] = full
        return kept

    def bounds(self, confidence: float | None = None) -> np.ndarray:
        """Upper bound on each level's loss with ``confidence``: float64 [levels]; 0.003: 0.3 points, 1: no bound."""
        return _bounds(self.evidence, len(self.thresholds), self.stated if confidence is None else confidence)

    def bounds_by_point(self, confidence: float | None = None) -> np.ndarray:
        """The same for each fixed k and, last, the full network: float64 [shares + 1]."""
        return _bounds(self.evidence_by_point, len(self.by_point), self.stated if confidence is None else confidence)

    def expected(self, estimates: np.ndarray) -> np.ndarray:
        """Expected accuracy of ``estimates`` ĉ(k, x) [n, shares]: float64 [n, shares + 1], last the full network's."""
        level = np.searchsorted(self.thresholds, estimates, side="right") - 1
        full = np.full((len(estimates), 1), self.by_point[-1])
        return np.concatenate([self.accuracy[level], full], axis=1)

    def threshold(self, accuracy: float) -> float | None:
        """The least t whose estimated a_t is at least ``accuracy``; None if the full network does not reach it."""
        level = int(np.searchsorted(self.accuracy, accuracy))
        return float(self.thresholds[level]) if level < len(self.accuracy) else None

    @property
    def unproven(self) -> ThresholdCalibration:
        """A copy without evidence, which promises only the full network."""
        return replace(self, evidence=None, evidence_by_point=None, estimates=None)

    def tensors(self) -> dict[str, np.ndarray]:
        estimated = {"thresholds": self.thresholds, "accuracy": self.accuracy, "by_point": self.by_point}
        if self.evidence is None or self.evidence_by_point is None:
            return estimated
        counts = {"evidence": self.evidence, "evidence_by_point": self.evidence_by_point}
        tables = {name: np.stack([of.lost, of.gained]).astype(np.int32) for name, of in counts.items()}
        return {**estimated, **tables, "promise": np.array([self.evidence.examples, self.stated])}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> ThresholdCalibration:
        """From ``tensors``, also those of older versions. Raises ``ValueError`` for impossible counts."""
        estimated = cls(tensors["thresholds"], tensors["accuracy"], tensors["by_point"])
        if "promise" not in tensors:
            return estimated
        examples, stated = tensors["promise"].tolist()
        if not (1 <= examples < 2**31 and 0 < stated < 1):
            raise ValueError(f"a promise of confidence {stated:g} by {examples:g} examples")
        levels, points = (
            DiscordantPairs.checked(int(examples), tensors[name], len(of))
            for name, of in (("evidence", estimated.thresholds), ("evidence_by_point", estimated.by_point))
        )
        return replace(estimated, evidence=levels, evidence_by_point=points, stated=float(stated))

    @staticmethod
    def largest_nbytes(shares: int, levels: int = DEFAULT_THRESHOLDS) -> int:
        """The most bytes that a calibration takes: float64 numbers, and pairs of int32 counts."""
        return 8 * (3 * (levels + 2) + 2 * (shares + 1) + 2)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def _bounds(evidence: DiscordantPairs | None, ways: int, confidence: float) -> np.ndarray:
    if evidence is None:
        return np.append(np.ones(ways - 1), 0.0)
    return evidence.bounds(confidence)


def min_share(estimates: np.ndarray, threshold: float) -> np.ndarray:
    """int64 [n]: index of the least share with ĉ ≥ ``threshold``; the number of shares (full network) if none has."""
    enough = estimates >= threshold
    chosen: np.ndarray = np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1])
    return chosen


def mean_share(shares: Sequence[float], chosen: np.ndarray) -> float:
    """Mean k of the points ``chosen`` int [n]; the full network counts as 1."""
    return float(np.append(shares, 1.0)[chosen].mean())
