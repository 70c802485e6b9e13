"""How wrong a predictor is on labels it never saw: from that, intervals and probabilities of new predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError

# With fewer residuals their two tails are taken as alike: five in a hundred of so few is no label at all.
MIN_FOR_TWO_TAILS = 100
# More are thinned to a grid of so many quantiles, which is finer than anyone asks.
MAX_KEPT = 400
# e to this power is still a number.
MAX_RESIDUAL = 50.0


@dataclass(frozen=True)
class Residuals:
    """log(measured ÷ predicted) ÷ spread of labels that a predictor was not fitted to.

    ``values``: float64 [m], sorted, a sample of the residuals or a grid of their quantiles at 1/(m + 1) … m/(m + 1).
    ``mirrored``: they are absolute values, and a residual is as often below zero as above. What follows for a new
    network is split-conformal: it holds for one exchangeable with those labels, whatever the distribution.
    """

    values: np.ndarray
    mirrored: bool

    @classmethod
    def of(cls, measured_s: np.ndarray, predicted_s: np.ndarray, spread: np.ndarray | float = 1.0) -> Self:
        """All arrays float64 [n]. Raises ``InputError`` when there is none."""
        if not len(measured_s):
            raise InputError("no label is left to tell from how wrong predictions are")
        residuals = np.log(measured_s / predicted_s) / spread
        mirrored = len(residuals) < MIN_FOR_TWO_TAILS
        values = np.sort(np.abs(residuals) if mirrored else residuals)
        if len(values) > MAX_KEPT:
            values = np.quantile(values, np.arange(1, MAX_KEPT + 1) / (MAX_KEPT + 1), method="weibull")
        return cls(values, mirrored)

    def interval(self, coverage: float) -> tuple[float, float]:
        """Between which residuals a new one lies with probability ≥ ``coverage``, as often below as above them.

        Raises ``InputError`` when there are too few labels for that.
        """
        m = len(self.values)
        tail = 1 - coverage if self.mirrored else (1 - coverage) / 2
        rank = int(np.ceil((m + 1) * (1 - tail) - 1e-9))
        if rank > m:
            raise InputError(f"{m} dev labels are too few for a {coverage:.0%} interval")
        high = float(self.values[rank - 1])
        return (-high if self.mirrored else float(self.values[m - rank])), high

    def factors(self, coverage: float) -> tuple[float, float]:
        """``interval`` as factors around a prediction of spread 1."""
        low, high = self.interval(coverage)
        return float(np.exp(low)), float(np.exp(high))

    def probability_below(self, residual: np.ndarray) -> np.ndarray:
        """How likely a new residual is at most this, float64 [n]; never nearer to 0 or 1 than the labels can tell."""
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
