"""Scores by which a cascade decides to consult the next version, each fitted to examples that choose nothing.

They are computed from the versions consulted so far: the last one's confidence; the probability that it is right, given
its label; and a logistic regression on all confidences, agreements and columns of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit

from slotool.rules.generate.candidates import ten_digits
from slotool.rules.generate.search import Signal
from slotool.rules.policies.cascades import TableAnswers, Worth
from slotool.rules.policies.conditions import Condition, Score, Sure, SureByLabel, Term
from slotool.tables import OutcomeTable

WORTH_KNOTS = 16
# Labels with fewer calibrating examples share a threshold.
MIN_PER_LABEL, MAX_LABELS = 40, 12
ALWAYS = -1e300
MAX_NEWTON_STEPS = 100


def calibrated(confidence: np.ndarray, right: np.ndarray) -> Worth:
    """Fit the probability of right answers (float64 [examples]), rising with confidence; NaN is left out."""
    from scipy.optimize import isotonic_regression

    has_value = ~np.isnan(confidence)
    if not has_value.any():
        return Worth((0.0,), (0.0,))
    levels, of, counts = np.unique(confidence[has_value], return_inverse=True, return_counts=True)
    rising = isotonic_regression(np.bincount(of, right[has_value]) / counts, weights=counts).x
    at = np.unique(np.quantile(confidence[has_value], np.linspace(0, 1, WORTH_KNOTS)))
    return Worth(tuple(map(float, at)), tuple(round(float(value), 6) for value in np.interp(at, levels, rising)))


def logistic_weights(columns: np.ndarray, target: np.ndarray, sure: np.ndarray) -> np.ndarray:
    """Return the weights of a logistic regression with an intercept, float64 [columns].

    Newton's method; half the squared weights are added to the loss. ``columns``: float64 [examples, columns],
    ``target``: bool [examples], ``sure``: the weight of each example.
    """
    design = np.column_stack([columns, np.ones(len(columns))])
    penalty = np.append(np.ones(columns.shape[1]), 0.0)
    weights = np.zeros(len(penalty))

    def loss(candidate: np.ndarray) -> float:
        score = design @ candidate
        return float(sure @ (np.logaddexp(0.0, score) - target * score) + 0.5 * penalty @ candidate**2)

    least = loss(weights)
    for _ in range(MAX_NEWTON_STEPS):
        likely = expit(design @ weights)
        gradient = design.T @ (sure * (likely - target)) + penalty * weights
        curvature = (design.T * (sure * likely * (1.0 - likely))) @ design + np.diag(penalty + 1e-12)
        step, size = np.linalg.solve(curvature, gradient), 1.0
        while (new := loss(weights - size * step)) > least and size > 1e-6:
            size /= 2.0
        if new >= least - 1e-10 * least:
            break
        weights, least = weights - size * step, new
    return weights[:-1]


class Signals:
    """Signals after some versions of ``outcomes`` were asked.

    ``right``: float64 [examples, versions], 1 minus the error scaled to [0, 1]. ``fit``: the examples that calibrate;
    ``rows``: those that signals have values for.
    """

    def __init__(self, outcomes: OutcomeTable, right: np.ndarray, fit: np.ndarray, rows: np.ndarray):
        self._outcomes, self._right, self._fit, self._rows = outcomes, right, fit, rows
        self._answers = TableAnswers(outcomes)
        # By the asked versions that a kind depends on.
        self._signals: dict[tuple[Any, ...], Signal] = {}

    def after(self, versions: tuple[int, ...], kinds: int) -> list[Signal]:
        """Return one signal of each of the first ``kinds`` kinds after these versions were asked in turn."""
        makers: list[tuple[Callable[..., Signal], Any]] = [(self._by_confidence, versions[-1]), (self._line, versions)]
        if self._outcomes.knows_answers:
            makers.append((self._by_label, versions[-1]))
        return [self._once(make, of) for make, of in makers[:kinds]]

    def _once(self, make: Callable[..., Signal], of: Any) -> Signal:
        if (make.__name__, of) not in self._signals:
            self._signals[make.__name__, of] = make(of)
        return self._signals[make.__name__, of]

    def _by_confidence(self, at: int) -> Signal:
        version = self._outcomes.versions[at]
        return Signal(self._answers.confidence(version)[self._rows], partial(Sure, version))

    def _by_label(self, at: int) -> Signal:
        version = self._outcomes.versions[at]
        sure, labels = self._answers.confidence(version), self._answers.label(version)
        everyone = calibrated(sure[self._fit], self._right[self._fit, at])
        names, counts = np.unique(labels[self._fit].astype(str), return_counts=True)
        frequent = names[np.argsort(-counts, kind="stable")][: min(MAX_LABELS, int((counts >= MIN_PER_LABEL).sum()))]
        worths = {}
        values = everyone.of(sure[self._rows])
        for label in frequent:
            of_label = self._fit[labels[self._fit] == label]
            worths[str(label)] = calibrated(sure[of_label], self._right[of_label, at])
            mask = labels[self._rows] == label
            values[mask] = worths[str(label)].of(sure[self._rows][mask])

        def condition(likely: float) -> Condition:
            thresholds = tuple((label, _confidence_for(worth, likely)) for label, worth in worths.items())
            return SureByLabel(version, thresholds, _confidence_for(everyone, likely))

        return Signal(values, condition)

    def _line(self, versions: tuple[int, ...]) -> Signal:
        names = [self._outcomes.versions[at] for at in versions]
        terms = [Term("confidence", name, 1.0) for name in names]
        terms += [Term("feature", name, 1.0) for name in self._outcomes.features]
        if self._outcomes.knows_answers:
            terms += [Term("agreement", names[-1], 1.0, other) for other in names[:-1]]
        columns = np.stack([term.values(self._answers) for term in terms], axis=1)
        right = self._right[self._fit, versions[-1]]
        usable = np.isfinite(columns[self._fit]).all(axis=1)
        sample, target = columns[self._fit][usable], right[usable] > 0.5
        spread = sample.std(axis=0) if len(sample) else np.zeros(len(terms))
        varied = spread > 1e-12 * np.abs(sample).max(axis=0, initial=0.0)  # a constant has no weight
        if len(terms) == 1 or not varied.any() or not 0 < target.sum() < len(target):
            return self._by_confidence(versions[-1])
        scale, weights = spread[varied], np.zeros(len(terms))
        # Errors between 0 and 1 count less the further they are from both.
        sure = np.abs(2 * right[usable] - 1) + 1e-6
        weights[varied] = logistic_weights(sample[:, varied] / scale, target, sure) / scale
        weighted = tuple(
            Term(t.of, t.name, float(f"{weight:.6g}"), t.other) for t, weight in zip(terms, weights, strict=True)
        )
        return Signal(Score(weighted, 0.0).score(self._answers)[self._rows], partial(Score, weighted))


def _confidence_for(worth: Worth, likely: float) -> float:
    """Return the least confidence whose answers are right with probability ``likely``; infinite where none are."""
    right, confidence = worth.right, worth.confidence
    reaches = [at for at, probability in enumerate(right) if probability >= likely]
    if not reaches:
        return np.inf
    if reaches[0] == 0:
        return ALWAYS
    below, at = reaches[0] - 1, reaches[0]
    share = (likely - right[below]) / (right[at] - right[below])
    least = confidence[below] + share * (confidence[at] - confidence[below])
    return ten_digits(least - 1e-12 * abs(least))  # the example that set the threshold still reaches it
