"""Confidence tables (slo-aware-neural-networks, §3.2): how close to the full answer k % will come on this input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.elastic.activators.importance import sum_by_key

# Cross-entropy needs a probability even for a class that was dropped or has vanished.
LEAST_PROBABILITY = 1e-6
# So many average examples count in every bucket of a confidence table.
PRIOR_EXAMPLES = 5.0
# A confidence above every other.
CERTAIN = np.float32(1e30)
MOST_THRESHOLDS, MANY_THRESHOLDS = 32, 256


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64 [n, classes]; a −inf logit has probability 0."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def closeness(full_logits: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """c(k, x) of Eq. 1 with cross-entropy as the distance: float64 [n], at most 0, from two [n, classes]."""
    probability = np.maximum(softmax(logits), LEAST_PROBABILITY)
    return (softmax(full_logits) * np.log(probability)).sum(axis=1)


@dataclass(frozen=True)
class Trials:
    """How each k of the grid answered n inputs, beside the full network.

    ``labels``: int32 [n, shares + 1], the label that scored highest, last the full network's; ``closeness``: float
    [n, shares], minus the cross-entropy to the full answer.
    """

    labels: np.ndarray
    closeness: np.ndarray


@dataclass(frozen=True)
class Measure:
    """One way to measure c(k, x) on training inputs. ``prior`` as in ``ConfidenceTables.learn``.

    ``capped``: the largest k of the grid counts as enough for any input, so that a bucket that looks doubtful at every
    k costs that much and not the full network, which is hundreds of times slower at a large output layer.
    """

    name: str
    of: Callable[[Trials], np.ndarray]
    prior: float
    capped: bool = False

    def learn(self, buckets: np.ndarray, rows: int, trials: Trials) -> ConfidenceTables:
        tables = ConfidenceTables.learn(buckets, rows, self.of(trials), self.prior)
        if self.capped:
            tables.means[:, -1] = CERTAIN
        return tables


def _same_first(trials: Trials) -> np.ndarray:
    return (trials.labels[:, :-1] == trials.labels[:, -1:]).astype(np.float32)


# Of these, build keeps the one that spares most on validation data; the last cannot tell inputs apart, so what is
# chosen per input never does worse there than a k fixed beforehand.
MEASURES = (
    Measure("cross-entropy", lambda trials: trials.closeness, PRIOR_EXAMPLES),
    Measure("zero-one", _same_first, PRIOR_EXAMPLES),
    Measure("zero-one, capped", _same_first, PRIOR_EXAMPLES, capped=True),
    Measure("none", _same_first, np.inf),
)


@dataclass(frozen=True)
class ConfidenceTables:
    """Mean confidence per bucket of the first activated layer's hash (Eq. 4, arithmetic mean).

    ``means``: float32 [rows, shares], rows as in that layer's ``NodeLists`` (row 0: all inputs).
    """

    means: np.ndarray

    @classmethod
    def learn(
        cls, buckets: np.ndarray, rows: int, confidences: np.ndarray, prior: float = PRIOR_EXAMPLES
    ) -> ConfidenceTables:
        """From rows int [n, tables] and c(k, x) float [n, shares] of training inputs.

        Every bucket counts ``prior`` average examples besides its own: a thin one must not promise the extreme.
        An infinite ``prior`` gives all buckets the mean over all inputs.
        """
        mean = confidences.mean(axis=0, dtype=np.float64)
        if np.isinf(prior):
            return cls(np.tile(mean, (rows, 1)).astype(np.float32))
        tables = buckets.shape[1]
        sums = sum_by_key(buckets.ravel(), np.repeat(confidences, tables, axis=0), rows)
        counts = np.bincount(buckets.ravel(), minlength=rows)[:, None]
        means = np.divide(sums + prior * mean, counts + prior, out=np.tile(mean, (rows, 1)), where=counts + prior > 0)
        means[0] = mean
        return cls(means.astype(np.float32))

    def estimate(self, buckets: np.ndarray) -> np.ndarray:
        """ĉ(k, x), float64 [n, shares]: mean over the tables, for rows int [n, tables]."""
        return self.means[buckets].mean(axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Calibration:
    """Threshold t ↔ accuracy a_t, measured on held-out data.

    ``thresholds``: float64 [levels], ascending, the first −inf; ``accuracy``: float64 [levels], a_t when every input
    is answered at its least k with ĉ(k, x) ≥ t (in full when there is none), never falling with t; the last level
    answers every input in full.
    ``by_point``: float64 [shares + 1], plain accuracy of each k, the last that of the full network.
    """

    thresholds: np.ndarray
    accuracy: np.ndarray
    by_point: np.ndarray

    @classmethod
    def measure(cls, estimates: np.ndarray, correct: np.ndarray, levels: int = MOST_THRESHOLDS) -> Calibration:
        """From ĉ(k, x) float [n, shares] and correct answers bool [n, shares + 1], the last those of the full network.

        Where a_t falls again for a higher t, the lower value counts for both: an estimate must not promise more than
        a stricter one keeps.
        """
        found = np.unique(np.quantile(estimates, np.linspace(0, 1, levels), method="nearest"))
        thresholds = np.concatenate([[-np.inf], found, [np.nextafter(found[-1], np.inf)]])
        every = np.arange(len(correct))
        reached = np.array([correct[every, least_share(estimates, t)].mean() for t in thresholds])
        return cls(thresholds, np.minimum.accumulate(reached[::-1])[::-1], correct.mean(axis=0))

    def expected(self, estimates: np.ndarray) -> np.ndarray:
        """a of ĉ(k, x), float64 [n, shares + 1]; the full network expects its held-out accuracy."""
        level = np.searchsorted(self.thresholds, estimates, side="right") - 1
        full = np.full((len(estimates), 1), self.by_point[-1])
        return np.concatenate([self.accuracy[level], full], axis=1)

    def threshold(self, accuracy: float) -> float | None:
        """The least t with a_t ≥ ``accuracy``; None when not even the full network reaches it."""
        level = int(np.searchsorted(self.accuracy, accuracy))
        return float(self.thresholds[level]) if level < len(self.accuracy) else None

    def tensors(self) -> dict[str, np.ndarray]:
        return {"thresholds": self.thresholds, "accuracy": self.accuracy, "by_point": self.by_point}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Calibration:
        return cls(tensors["thresholds"], tensors["accuracy"], tensors["by_point"])

    @staticmethod
    def largest_nbytes(shares: int, levels: int = MOST_THRESHOLDS) -> int:
        """What the calibration of that many shares takes at most."""
        return np.dtype(np.float64).itemsize * (2 * (levels + 2) + shares + 1)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def least_share(estimates: np.ndarray, threshold: float) -> np.ndarray:
    """int64 [n]: index of the least share with ĉ ≥ threshold, or the number of shares (full) when there is none."""
    enough = estimates >= threshold
    return np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1])


def mean_share(shares: Sequence[float], chosen: np.ndarray) -> float:
    """Mean k of chosen points, counting the full one as 1."""
    return float(np.append(shares, 1.0)[chosen].mean())
