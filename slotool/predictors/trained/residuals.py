"""Errors of a predictor on unseen labels, and intervals and probabilities from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError

# With fewer residuals the two tails are assumed to be equal.
MIN_FOR_TWO_TAILS = 100
# More are thinned to so many quantiles.
MAX_KEPT = 400
# Larger powers of e could overflow.
MAX_RESIDUAL = 50.0


@dataclass(frozen=True)
class Residuals:
    """Residuals, log(measured ÷ predicted) ÷ spread, of labels that a predictor was not fitted to.

    ``values``: float64 [m], sorted, a sample of the residuals or a grid of their quantiles at 1/(m + 1) … m/(m + 1).
    ``mirrored``: they are absolute values, and either sign is as likely. Intervals are split-conformal: valid for a new
    network exchangeable with those labels, whatever the distribution.
    """

    values: np.ndarray
    mirrored: bool

    @classmethod
    def of(cls, measured_s: np.ndarray, predicted_s: np.ndarray, spread: np.ndarray | float = 1.0) -> Self:
        """Return the residuals of labels, all arrays float64 [n]. Raises ``InputError`` if there are none."""
        if not len(measured_s):
            raise InputError("no label is left to tell from how wrong predictions are")
        residuals = np.log(measured_s / predicted_s) / spread
        mirrored = len(residuals) < MIN_FOR_TWO_TAILS
        values = np.sort(np.abs(residuals) if mirrored else residuals)
        if len(values) > MAX_KEPT:
            values = np.quantile(values, np.arange(1, MAX_KEPT + 1) / (MAX_KEPT + 1), method="weibull")
        return cls(values, mirrored)

    def interval(self, coverage: float) -> tuple[float, float]:
        """Return the interval of a new residual with probability ≥ ``coverage``, and equal tails.

        Raises ``InputError`` if there are too few labels.
        """
        m = len(self.values)
        tail = 1 - coverage if self.mirrored else (1 - coverage) / 2
        rank = int(np.ceil((m + 1) * (1 - tail) - 1e-9))
        if rank > m:
            raise InputError(f"{m} dev labels are too few for a {coverage:.0%} interval")
        high = float(self.values[rank - 1])
        return (-high if self.mirrored else float(self.values[m - rank])), high

    def probability_below(self, residual: np.ndarray) -> np.ndarray:
        """Return P(new residual ≤ this), float64 [n], at least 1/(m + 1) away from 0 and 1."""
        m = len(self.values)
        ranks = np.arange(1, m + 1) / (m + 1)
        if not self.mirrored:
            share: np.ndarray = np.interp(residual, self.values, ranks)
            return share
        within = np.interp(np.abs(residual), np.concatenate([[0.0], self.values]), np.concatenate([[0.0], ranks]))
        return np.asarray(0.5 + 0.5 * np.sign(residual) * within)

    def document(self) -> dict[str, Any]:
        return {"mirrored": self.mirrored, "values": self.values.tolist()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        values = np.array(strict_json.convert(document["values"], list[float]), dtype=np.float64)
        if not len(values) or (np.diff(values) < 0).any() or np.abs(values).max() > MAX_RESIDUAL:
            raise ValueError("residuals are ascending logarithms of measured over predicted")
        return cls(values, strict_json.convert(document["mirrored"], bool))
