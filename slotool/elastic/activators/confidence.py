"""Confidence tables (slo-aware-neural-networks, §3.2): how close to the full answer k % will come on this input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slotool.elastic.activators.evidence import CONFIDENCE, DiscordantPairs
from slotool.elastic.activators.importance import sum_by_key

# Cross-entropy needs a probability even for a class that was dropped or has vanished.
MIN_PROBABILITY = 1e-6
# So many average examples count in every bucket of a confidence table.
PRIOR_EXAMPLES = 5.0
# Tables learnt on held-out inputs are selected in so many parts, each by tables of the others.
FOLDS = 5
DEFAULT_THRESHOLDS, MAX_THRESHOLDS = 32, 256
# Levels may promise the same; so far apart, each still has an accuracy of its own.
LEVELS_APART = 1e-12


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64 [n, classes]; a −inf logit has probability 0."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probability: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return probability


def closeness(full_logits: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """c(k, x) of Eq. 1 with cross-entropy as the distance: float64 [n], at most 0, from two [n, classes]."""
    probability = np.maximum(softmax(logits), MIN_PROBABILITY)
    closeness: np.ndarray = (softmax(full_logits) * np.log(probability)).sum(axis=1)
    return closeness


@dataclass(frozen=True)
class GridResults:
    """The answers of each k of the grid to n inputs, and those of the full network.

    ``labels``: int32 [n, shares + 1], the label that scored highest, last the full network's; ``closeness``: float
    [n, shares], minus the cross-entropy to the full answer; ``closest``: float [n], that of the full answer to itself,
    or where that was not computed of the largest k; ``probability``: float32 [n, shares + 1], what the full network's
    softmax gives each of ``labels``.
    """

    labels: np.ndarray
    closeness: np.ndarray
    closest: np.ndarray
    probability: np.ndarray

    def take(self, chosen: np.ndarray) -> GridResults:
        return GridResults(self.labels[chosen], self.closeness[chosen], self.closest[chosen], self.probability[chosen])


@dataclass(frozen=True)
class CalibrationExamples:
    """Inputs that confidence is learnt from: ``buckets`` int [n, tables], rows of the first activated layer's lists;
    how each k answered them; ``correct``: bool [n, shares + 1], whether that was right, last the full network."""

    buckets: np.ndarray
    results: GridResults
    correct: np.ndarray

    def take(self, chosen: np.ndarray) -> CalibrationExamples:
        return CalibrationExamples(self.buckets[chosen], self.results.take(chosen), self.correct[chosen])

    @property
    def same_first(self) -> np.ndarray:
        """float32 [n, shares]: 1 where k gives the full network's first label, else 0."""
        same: np.ndarray = (self.results.labels[:, :-1] == self.results.labels[:, -1:]).astype(np.float32)
        return same

    @property
    def lost(self) -> np.ndarray:
        """float32 [n, shares]: 1 where the full network is right and k says something else, else 0."""
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
    """One way to estimate, from the buckets of an input, how close to the full answer each k comes.

    ``of``: c(k, x) of inputs, float [n, shares]; ``entries``: from its means per bucket [rows, shares], and the k grid,
    to what the tables hold. ``prior`` as in ``ConfidenceTables.learn``. ``held_out``: learnt from validation inputs,
    because a network is surer of those it was trained on than of any other. ``backed``: there are few of these, so a
    bucket's average example is that of its training inputs, scaled to what all held-out inputs have on average.
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
        """The tables, and ĉ(k, x) of the held-out inputs, float64 [n, shares], by tables that no input had a part in.

        Of tables learnt on held-out inputs those are of the other ``FOLDS`` − 1 parts; all parts make the tables.
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
    """From the loss expected of each k to how little more nodes still save of it: float64 [rows, shares], at most 0.

    Minus the greatest rate, loss per share of nodes, at which any larger k (in the end all nodes, which lose nothing)
    does better. Taking the least k at which that is no less than −λ minimises nodes + loss / λ over all inputs:
    nodes go where they save most, while a threshold on the loss itself spends them on inputs that stay wrong.
    """
    costs = np.append(np.asarray(shares, dtype=np.float64), 1.0)
    reached = np.concatenate([lost, np.zeros((len(lost), 1))], axis=1)
    found = np.empty(lost.shape)
    for at in range(lost.shape[1]):
        saved = (reached[:, at : at + 1] - reached[:, at + 1 :]) / (costs[at + 1 :] - costs[at])
        found[:, at] = -np.maximum(saved.max(axis=1), 0.0)
    return found


# Of these, build keeps the one that saves most on validation data. The first is the paper's; the last cannot tell
# inputs apart, so what is chosen per input never does worse there than a k fixed beforehand.
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
    """Mean confidence per bucket of the first activated layer's hash (Eq. 4, arithmetic mean).

    ``means``: float32 [rows, shares], rows as in that layer's ``NodeLists`` (row 0: all inputs).
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
        """From rows int [n, tables] and c(k, x) float [n, shares] of training inputs.

        Every bucket counts ``prior`` average examples besides its own: a thin one must not promise the extreme.
        An infinite ``prior`` gives all buckets the mean over all inputs. ``backing``: float [rows, shares], the same
        means of other inputs, row 0 over them all; then a bucket's average example is its own there, scaled so that
        row 0 becomes the mean here.
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
        """ĉ(k, x), float64 [n, shares]: mean over the tables, for rows int [n, tables]."""
        means: np.ndarray = self.means[buckets].mean(axis=1, dtype=np.float64)
        return means


@dataclass(frozen=True)
class ThresholdCalibration:
    """Threshold t ↔ accuracy a_t, measured on held-out data.

    ``thresholds``: float64 [levels], ascending, the first −inf; ``accuracy``: float64 [levels], a_t when every input
    is answered at its least k with ĉ(k, x) ≥ t (in full when there is none), never falling with t; the last level
    answers every input in full.
    ``by_point``: float64 [shares + 1], the same of each k for all inputs, the last that of the full network.
    These are estimates. What is promised, with ``stated`` confidence unless another is asked for, follows from
    ``evidence`` of the levels and ``evidence_by_point``; None: of tables built before there was any, which promise no
    k but all nodes. ``estimates``: the ĉ(k, x) that all was counted with, known only where it was counted.
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
        """From ĉ(k, x) float [n, shares] and correct answers bool [n, shares + 1], the last those of the full network.

        Where a_t falls again for a higher t, the lower value counts for both: an estimate must not promise more than
        a stricter one keeps. ``expected``: float [n, shares + 1], the chance that each is correct; then of what is
        counted and what is expected the lower is promised.
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
        """The same with the evidence of ``correct``, bool [n, shares + 1], for the inputs of ``estimates``."""
        assert self.estimates is not None
        levels = [min_share(self.estimates, t) for t in self.thresholds]
        points = [np.full(len(correct), at) for at in range(correct.shape[1])]
        return replace(
            self,
            evidence=DiscordantPairs.count(correct, levels),
            evidence_by_point=DiscordantPairs.count(correct, points),
        )

    def promised(self, confidence: float | None = None) -> np.ndarray:
        """float64 [levels], ascending: the full network's accuracy less what each level may lose."""
        full, levels = float(self.by_point[-1]), len(self.thresholds)
        lost = self.bounds(confidence)
        kept = full - lost - LEVELS_APART * np.arange(levels)[::-1]
        kept[-1] = full
        return kept

    def bounds(self, confidence: float | None = None) -> np.ndarray:
        """float64 [levels]: the loss (0.003: 0.3 points) that each keeps with ``confidence``; 1: none known."""
        return _bounds(self.evidence, len(self.thresholds), self.stated if confidence is None else confidence)

    def bounds_by_point(self, confidence: float | None = None) -> np.ndarray:
        """float64 [shares + 1]: the same of each k for all inputs."""
        return _bounds(self.evidence_by_point, len(self.by_point), self.stated if confidence is None else confidence)

    def expected(self, estimates: np.ndarray) -> np.ndarray:
        """a of ĉ(k, x), float64 [n, shares + 1]; the full network expects its held-out accuracy."""
        level = np.searchsorted(self.thresholds, estimates, side="right") - 1
        full = np.full((len(estimates), 1), self.by_point[-1])
        return np.concatenate([self.accuracy[level], full], axis=1)

    def threshold(self, accuracy: float) -> float | None:
        """The least t with a_t ≥ ``accuracy``, by what is estimated; None when not even the full network reaches it."""
        level = int(np.searchsorted(self.accuracy, accuracy))
        return float(self.thresholds[level]) if level < len(self.accuracy) else None

    def with_full(self, accuracy: float, lost: int = 0, gained: int = 0) -> ThresholdCalibration:
        """The same where all nodes give another ``accuracy``; no k is promised more.

        ``lost`` and ``gained``: how often the plain network alone was right, and what answers now.
        """
        kept = np.append(np.minimum(self.accuracy[:-1], accuracy), accuracy)
        found = replace(self, accuracy=kept, by_point=np.append(self.by_point[:-1], accuracy))
        if self.evidence is None or self.evidence_by_point is None:
            return found
        ways = (of.with_last(lost, gained) for of in (self.evidence, self.evidence_by_point))
        return replace(found, evidence=next(ways), evidence_by_point=next(ways))

    @property
    def unproven(self) -> ThresholdCalibration:
        """The same estimates, with no evidence for a promise."""
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
        """From ``tensors``, of old tables too. Raises ``ValueError`` for counts that cannot be."""
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
        """What the calibration of that many shares takes at most: numbers of 8 bytes, and counts of two times 4."""
        return 8 * (3 * (levels + 2) + 2 * (shares + 1) + 2)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def _bounds(evidence: DiscordantPairs | None, ways: int, confidence: float) -> np.ndarray:
    if evidence is None:
        return np.append(np.ones(ways - 1), 0.0)
    return evidence.bounds(confidence)


def min_share(estimates: np.ndarray, threshold: float) -> np.ndarray:
    """int64 [n]: index of the least share with ĉ ≥ threshold, or the number of shares (full) when there is none."""
    enough = estimates >= threshold
    chosen: np.ndarray = np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1])
    return chosen


def mean_share(shares: Sequence[float], chosen: np.ndarray) -> float:
    """Mean k of chosen points, counting the full one as 1."""
    return float(np.append(shares, 1.0)[chosen].mean())
