"""Losses that tolerances limit: the mean error, or the share of much worse answers; and their unit.

A tolerance of kind ``quantile`` is a share of requests. At most this share may get an answer whose error exceeds the
best version's by more than a limit; the quantile 1 − tolerance of e − b, over requests, is then at most this limit. So
a rare bad answer counts, and many good ones do not make up for it. Let the loss of an answer be 1 where e − b is above
the limit, else 0: the best version's is 0 everywhere, and the kind is an absolute tolerance of the mean loss. All
results on those apply, and for losses of 0 and 1 their exact binomial test. Bounds on quantiles of a loss by counting
those beyond: Snell et al., Quantile Risk Control, arXiv 2212.13629.

Errors of at most 1 are shown as shares: a difference of 0.01 is one point. Larger ones, such as wrong words or
milliseconds, are shown in the table's unit. Relative tolerances and shares of requests are in percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from slotool.tables import OutcomeTable

Comparison = Literal["relative", "absolute"]
ToleranceKind = Literal["relative", "absolute", "quantile"]
TOLERANCE_KINDS: tuple[ToleranceKind, ...] = ("relative", "absolute", "quantile")
# Differences of decimal errors may miss the limit by their last digit.
ROUNDING = 1e-9


def comparison_of(kind: str) -> Comparison:
    """Return the comparison of mean losses with the best version's."""
    return "relative" if kind == "relative" else "absolute"


def losses(outcomes: OutcomeTable, kind: str, limit: float, best: str) -> OutcomeTable:
    """Return ``outcomes`` with the losses that tolerances of this kind limit in place of errors.

    ``best``: the version to compare with; ``limit``: allowed excess of an answer's error over its error, for
    ``quantile``. Raises ``InputError`` when the table lacks that version.
    """
    if kind != "quantile":
        return outcomes
    errors = outcomes.matrix("error")
    beyond = errors - errors[:, [outcomes.index(best)]] > limit + ROUNDING
    return outcomes.with_errors(beyond.astype(np.float64))


def zero_or_largest(loss: np.ndarray, largest: float) -> bool:
    """True if every loss is 0 or the largest: scaled losses are then tested by counting."""
    return bool(((loss == 0.0) | (loss == largest)).all())


def degradation(loss: np.ndarray, best_loss: float, comparison: Comparison) -> np.ndarray:
    """Return by how much mean losses exceed the best version's; infinite where relative to none."""
    worse = loss - best_loss
    if comparison == "absolute":
        return worse
    return worse / best_loss if best_loss > 0 else np.where(worse > 0, np.inf, 0.0)


def excess_of(error: np.ndarray, best_error: np.ndarray, tolerance: float, kind: Comparison) -> np.ndarray:
    """Return each answer's excess over the tolerance: float64 like ``error``. Errors in [0, 1]."""
    return error - best_error * (1.0 + tolerance) if kind == "relative" else error - best_error - tolerance


@dataclass(frozen=True)
class LossUnit:
    """Unit of losses; ``per_one``: units in a loss of 1; ``name``: "%", "points", or empty for the table's."""

    per_one: float
    name: str

    def number(self, loss: float) -> str:
        """Format ``loss`` in this unit, to three digits."""
        return f"{loss * self.per_one:.3g}"

    def amount(self, loss: float) -> str:
        """Format ``loss`` with its unit: "2 %", "0.3 points", "1.2"."""
        return self.named(self.number(loss))

    def named(self, number: str) -> str:
        """Add the unit to a number or range: "1 point", "0–2 points"."""
        name = self.name.removesuffix("s") if number == "1" else self.name
        return f"{number} {name}".rstrip()

    def heading(self, what: str) -> str:
        """Return the heading of a column of numbers: "tolerance, %"."""
        return f"{what}, {self.name}" if self.name else what


PERCENT, POINTS, UNITLESS = LossUnit(100.0, "%"), LossUnit(100.0, "points"), LossUnit(1.0, "")


def error_unit(max_error: float) -> LossUnit:
    """Return the unit of differences of errors up to ``max_error``."""
    return POINTS if max_error <= 1.0 else UNITLESS


def tolerance_unit(kind: str, max_error: float) -> LossUnit:
    """Return the unit of tolerances of this kind, and of the losses that they limit."""
    return error_unit(max_error) if kind == "absolute" else PERCENT
