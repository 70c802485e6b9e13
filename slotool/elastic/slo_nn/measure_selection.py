"""Selection of the measure of confidence that needs the fewest nodes at the allowed loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.confidence import (
    FOLDS,
    MEASURES,
    CalibrationExamples,
    ConfidenceTables,
    GridResults,
    ThresholdCalibration,
    mean_share,
    min_share,
)


@dataclass(frozen=True)
class Expectation:
    """Two isotonic regressions from the full network's softmax of a label to the probability that it is right:
    ``first`` for the full network's best labels, ``others`` for labels that a smaller k gives in their place."""

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
        """float64 [n, shares + 1]: probability that each label is right. Over the inputs of ``learn`` its mean for the
        full network is the observed accuracy."""
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
        # Every measure is selected on the same parts.
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
    """Mean k chosen per input at which the allowed loss is promised, and at which it is estimated."""
    promised = calibration.thresholds[int((calibration.bounds() <= allowed_loss).argmax())]
    estimated = calibration.threshold(float(calibration.by_point[-1]) - allowed_loss)
    assert estimated is not None  # the full network reaches it
    mean_ks = [mean_share(shares, min_share(estimates, t)) for t in (promised, estimated)]
    return mean_ks[0], mean_ks[1]
