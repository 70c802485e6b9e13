"""Confidences that mean how likely an answer is right, learnt on examples that measure nothing else.

A temperature divides the logits of a classifier (Guo et al., On Calibration of Modern Neural Networks, ICML 2017); an
isotonic calibration maps any score to the share of right answers, growing with it (Zadrozny and Elkan, KDD 2002).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.models.tasks import Classification, Regression, Task

# Fewer examples than this say too little of how often a confident answer is right.
MIN_EXAMPLES = {"temperature": 30, "isotonic": 100}
NONE = "none"
METHODS = (NONE, *MIN_EXAMPLES)
BINS = 15
# Parts of the learning examples, each held back once to see whether a calibration helps.
FOLDS = 5
_TEMPERATURES = (0.02, 50.0)


class Calibration(ABC):
    """Calibration of a version's confidence."""

    name: str

    @abstractmethod
    def confidences(self, task: Task, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the confidence in each answer, from 0 to 1: float64 [n]."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return JSON for ``calibration_of_document``."""


class Temperature(Calibration):
    """``temperature``: divides the logits; above 1 it makes answers less confident. Answers stay as they are.

    Raises ``InputError`` for one that is not a positive number.
    """

    name = "temperature"

    def __init__(self, temperature: float):
        if not 0 < temperature < np.inf:
            raise InputError(f"a temperature of {temperature:g}; a positive number is expected")
        self.temperature = float(temperature)

    def confidences(self, task: Task, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        from scipy.special import log_softmax

        assert isinstance(task, Classification)
        best: np.ndarray = np.exp(log_softmax(task.logits(outputs) / self.temperature, axis=1)).max(axis=1)
        return best

    def document(self) -> dict[str, Any]:
        return {"calibration": self.name, "temperature": self.temperature}

    @classmethod
    def learn(cls, task: Task, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> Temperature:
        """Return the temperature with the greatest likelihood of the classes ``truth``, int [n].

        Raises ``InputError`` for a task without class scores.
        """
        from scipy.optimize import minimize_scalar
        from scipy.special import log_softmax

        if not isinstance(task, Classification) or task.scores == "labels" or task.confidence_output is not None:
            raise InputError("a temperature is learnt from the scores of classes; use --calibration isotonic")
        logits, rows = task.logits(outputs), np.arange(len(truth))

        def loss(log_temperature: float) -> float:
            return -float(log_softmax(logits / np.exp(log_temperature), axis=1)[rows, truth].mean())

        optimum = minimize_scalar(loss, bounds=tuple(np.log(_TEMPERATURES)), method="bounded")
        return cls(float(np.exp(optimum.x)))


class Isotonic(Calibration):
    """``scores``, ``shares``: the share of right answers at these scores, ascending; between them it is a line.

    Raises ``InputError`` when they are no such pairs.
    """

    name = "isotonic"

    def __init__(self, scores: Sequence[float], shares: Sequence[float]):
        self.scores, self.shares = (np.array(values, dtype=np.float64) for values in (scores, shares))
        whole = self.scores.ndim == 1 and 0 < len(self.scores) == len(self.shares)
        if not whole or not np.isfinite(self.scores).all() or (np.diff(self.scores) < 0).any():
            raise InputError("an isotonic calibration needs ascending scores, and a share for each")
        if (np.diff(self.shares) < 0).any() or self.shares[0] < 0 or self.shares[-1] > 1:
            raise InputError("the shares of an isotonic calibration ascend from 0 to 1")

    def confidences(self, task: Task, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        raw = task.confidences(outputs)
        assert raw is not None
        return self.apply(raw)

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Return the share of right answers at these scores: float64 [n]."""
        shares: np.ndarray = np.interp(scores, self.scores, self.shares)
        return shares

    def document(self) -> dict[str, Any]:
        return {"calibration": self.name, "scores": self.scores.tolist(), "shares": self.shares.tolist()}

    @classmethod
    def learn(cls, task: Task, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> Isotonic:
        """Return the increasing curve nearest to the rightness of answers (``Task.errors``).

        Raises ``InputError`` for a task without confidences, or whose errors are no shares.
        """
        from sklearn.isotonic import IsotonicRegression

        scores = task.confidences(outputs)
        if scores is None:
            raise InputError(f"{task.name} without a confidence has nothing to calibrate; name one with --confidence")
        if isinstance(task, Regression):
            raise InputError("an answer of a regression is not right or wrong, so its confidence is not calibrated")
        fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
            scores, rightness(task.errors(outputs, truth))
        )
        return cls(fitted.X_thresholds_, fitted.y_thresholds_)


def rightness(errors: np.ndarray) -> np.ndarray:
    """Return 1 minus the errors, limited to 0 to 1: float64 [n]."""
    right: np.ndarray = 1.0 - np.clip(errors, 0.0, 1.0)
    return right


def learn(method: str, task: Task, outputs: Mapping[str, np.ndarray], truth: np.ndarray) -> Calibration:
    """Return a calibration by ``method``. Raises ``InputError`` for too few examples or a task without one."""
    least = MIN_EXAMPLES[method]
    if len(truth) < least:
        raise InputError(f"{len(truth)} examples are too few to learn a calibration; {method} needs {least}")
    kind = Temperature if method == "temperature" else Isotonic
    return kind.learn(task, outputs, truth)


def held_back_errors(
    method: str, task: Task, outputs: Mapping[str, np.ndarray], truth: np.ndarray
) -> tuple[float | None, float | None]:
    """Return the expected calibration error without and with ``method``, cross-validated in ``FOLDS`` parts.

    Raises ``InputError`` as ``learn``.
    """
    kind = Temperature if method == "temperature" else Isotonic
    fold = np.arange(len(truth)) % FOLDS
    calibrated = np.empty(len(truth))
    for held_back in range(FOLDS):
        inside = fold == held_back
        optimum = kind.learn(task, _rows(outputs, ~inside), truth[~inside])
        calibrated[inside] = optimum.confidences(task, _rows(outputs, inside))
    confidences = task.confidences(outputs)
    assert confidences is not None  # or nothing could be learnt
    right = rightness(task.errors(outputs, truth))
    return expected_calibration_error(confidences, right), expected_calibration_error(calibrated, right)


def _rows(outputs: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: array[chosen] for name, array in outputs.items()}


def calibration_of_document(document: Mapping[str, Any]) -> Calibration:
    """Return the calibration that ``document()`` described. Raises ``InputError`` for anything else."""
    options = dict(document)
    kinds: dict[str, type[Temperature | Isotonic]] = {"temperature": Temperature, "isotonic": Isotonic}
    name = options.pop("calibration", None)
    if name not in kinds:
        raise InputError(f"no calibration is called {name!r}; there are {', '.join(kinds)}")
    try:
        return kinds[name](**options)
    except (TypeError, ValueError):
        raise InputError(f"calibration {name}: unknown, missing or wrong option among {', '.join(options)}") from None


def expected_calibration_error(confidences: np.ndarray, right: np.ndarray) -> float | None:
    """Return the mean distance of confidence from the share of right answers, over ``BINS`` equal confidence ranges.

    ``right``: 1 for a right answer, or its rightness, float [n]. None for scores beyond 0 to 1.
    """
    if not len(confidences) or confidences.min() < 0 or confidences.max() > 1:
        return None
    at = np.minimum((confidences * BINS).astype(int), BINS - 1)
    apart = np.bincount(at, weights=confidences - right, minlength=BINS)
    return float(np.abs(apart).sum() / len(confidences))
