"""Calibration of k on held-out examples: accuracy by confidence threshold, and upper bounds on lost accuracy.

A bound holds for the loss on as many further examples, not only for the expected loss: a promise is checked on a finite
split too, whose sampling error adds to that of the validation split. The expected loss exceeds the bound far less often
(at a stated confidence of 90 % about once in thirty).

Testing many k needs no correction for their number, because they are tested in a fixed sequence (as in Learn then Test,
arXiv 2110.01052): from all nodes downwards, each at the full error level, until the first one fails. A small k that
passes by luck behind a larger one that fails is therefore never taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slotool.errors import InputError
from slotool.tables.paired import examples_needed, further_losses

CONFIDENCE = 0.9
# Share of the error level reserved for choices made with the same examples: the sharpness of lists,
# the measure of confidence, and tables learnt from other folds.
KEPT_FOR_CHOICES = 1.0 / 3.0
DEFAULT_THRESHOLDS, MAX_THRESHOLDS = 32, 256
# Levels may promise the same accuracy; they are kept this far apart, so that each can be looked up.
LEVELS_APART = 1e-12


@dataclass(frozen=True)
class DiscordantPairs:
    """Counts of held-out examples on which a way of choosing k and the full network differ in being right.

    Ways go from the fewest nodes to all of them; a way is a fixed k, or k chosen per input at a threshold.
    ``examples``: number of examples. ``lost``: int64 [ways], only the full network was right. ``gained``: int64 [ways],
    only the way was right.
    """

    examples: int
    lost: np.ndarray
    gained: np.ndarray

    @classmethod
    def count(cls, correct: np.ndarray, ways: Iterable[np.ndarray]) -> DiscordantPairs:
        """Count from ``correct`` bool [n, points], last the full network, and ``ways``, each int [n]: points chosen."""
        every, full = np.arange(len(correct)), correct[:, -1:]
        right = np.stack([correct[every, chosen] for chosen in ways], axis=1)
        return cls(len(correct), (full & ~right).sum(axis=0), (right & ~full).sum(axis=0))

    @classmethod
    def checked(cls, examples: int, counts: np.ndarray, ways: int) -> DiscordantPairs:
        """Return pairs of valid ``counts`` int [2, ways]: lost, gained. Raises ``ValueError`` for impossible ones."""
        if examples < 1 or counts.shape != (2, ways) or counts.min() < 0 or counts.sum(axis=0).max() > examples:
            raise ValueError(f"evidence of {examples} examples cannot be {counts.shape} counts such as these")
        lost, gained = counts.astype(np.int64)
        return cls(examples, lost, gained)

    def bounds(self, confidence: float = CONFIDENCE) -> np.ndarray:
        """Return the upper bound on each way's loss, a share of answers, with ``confidence``: float64 [ways].

        Bounds never rise with the number of nodes. All nodes lose nothing unless a loss was counted. Raises
        ``InputError`` for a confidence outside 0 to 1.
        """
        lost = further_losses(self.lost, self.gained, _one_test(confidence)) / self.examples
        if not self.lost[-1] and not self.gained[-1]:
            lost[-1] = 0.0
        return np.maximum.accumulate(lost[::-1])[::-1]

    def examples_needed(self, loss: float, confidence: float = CONFIDENCE) -> int | None:
        """About how many held-out examples would bound the loss of a way below all nodes by ``loss``; None: none.

        The way tested first decides, the one just below all nodes: no other is taken unless that one passes.
        """
        if len(self.lost) < 2:
            return None
        return examples_needed(int(self.lost[-2]), int(self.gained[-2]), self.examples, loss, _one_test(confidence))


def _one_test(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"the confidence {confidence} must lie between 0 and 1, such as 0.9")
    return 1.0 - (1.0 - KEPT_FOR_CHOICES) * (1.0 - confidence)


@dataclass(frozen=True)
class ThresholdCalibration:
    """Confidence thresholds t with the accuracy a_t that each reaches, measured on held-out data.

    ``thresholds``: float64 [levels], ascending, from −inf to one at which every input is answered in full.
    ``accuracy``: float64 [levels], estimated accuracy a_t if every input is answered at its least k with ĉ(k, x) ≥ t,
    or in full if there is none; it never falls with t. ``by_point``: float64 [shares + 1], estimated accuracy of each
    fixed k and, last, of the full network.
    Promises are not made from these estimates but from ``evidence`` of the levels and ``evidence_by_point`` of the
    fixed k, with ``stated`` confidence unless a call says another. None: no evidence, which promises only
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
        calibration = cls(thresholds, np.minimum.accumulate(reached[::-1])[::-1], by_point, estimates=estimates)
        return calibration.counted(correct) if correct.dtype == bool else calibration

    def counted(self, correct: np.ndarray) -> ThresholdCalibration:
        """Return a copy with evidence from ``correct`` bool [n, shares + 1], for the inputs of ``estimates``."""
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
        bound = full - lost - LEVELS_APART * np.arange(levels)[::-1]
        bound[-1] = full
        return bound

    def bounds(self, confidence: float | None = None) -> np.ndarray:
        """Upper bound on each level's loss with ``confidence``: float64 [levels]; 0.003: 0.3 points, 1: no bound."""
        return _bounds(self.evidence, len(self.thresholds), self.stated if confidence is None else confidence)

    def bounds_by_point(self, confidence: float | None = None) -> np.ndarray:
        """Return the same for each fixed k and, last, the full network: float64 [shares + 1]."""
        return _bounds(self.evidence_by_point, len(self.by_point), self.stated if confidence is None else confidence)

    def expected(self, estimates: np.ndarray) -> np.ndarray:
        """Expected accuracy of ``estimates`` ĉ(k, x) [n, shares]: float64 [n, shares + 1], last the full network's."""
        level = np.searchsorted(self.thresholds, estimates, side="right") - 1
        full = np.full((len(estimates), 1), self.by_point[-1])
        return np.concatenate([self.accuracy[level], full], axis=1)

    def threshold(self, accuracy: float) -> float | None:
        """Return the least t with an estimated a_t of at least ``accuracy``; None beyond the full network's."""
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
        """Return the calibration in ``tensors`` of any version. Raises ``ValueError`` for impossible counts."""
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
        """Return the most bytes that a calibration takes: float64 numbers, and pairs of int32 counts."""
        return 8 * (3 * (levels + 2) + 2 * (shares + 1) + 2)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def _bounds(evidence: DiscordantPairs | None, ways: int, confidence: float) -> np.ndarray:
    if evidence is None:
        return np.append(np.ones(ways - 1), 0.0)
    return evidence.bounds(confidence)


def min_share(estimates: np.ndarray, threshold: float) -> np.ndarray:
    """Return the index of the least share with ĉ ≥ ``threshold``, or the number of shares (full network): int64 [n]."""
    enough = estimates >= threshold
    return np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1])


def mean_share(shares: Sequence[float], chosen: np.ndarray) -> float:
    """Return the mean k of the points ``chosen`` int [n]; the full network counts as 1."""
    return float(np.append(shares, 1.0)[chosen].mean())
