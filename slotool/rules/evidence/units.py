"""The unit in which tolerances, and losses of accuracy, are shown to a person.

Errors of at most 1 are shares: a difference of 0.01 is one point. Larger ones, such as wrong words or milliseconds,
have a unit of their own, in which the table states them. Relative tolerances and shares of requests are in percent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LossUnit:
    """``per_one``: how many of it a loss of 1 is. ``name``: "%", "points", or empty, the table's own."""

    per_one: float
    name: str

    def number(self, loss: float) -> str:
        """``loss`` in this unit, to three digits."""
        return f"{loss * self.per_one:.3g}"

    def amount(self, loss: float) -> str:
        """The number with its unit: "2 %", "0.3 points", "1.2"."""
        return self.named(self.number(loss))

    def named(self, number: str) -> str:
        """A number, or a range of them, with the unit: "1 point", "0–2 points"."""
        name = self.name.removesuffix("s") if number == "1" else self.name
        return f"{number} {name}".rstrip()

    def heading(self, what: str) -> str:
        """The heading of a column of numbers: "tolerance, %"."""
        return f"{what}, {self.name}" if self.name else what


PERCENT, POINTS, OWN = LossUnit(100.0, "%"), LossUnit(100.0, "points"), LossUnit(1.0, "")


def error_unit(max_error: float) -> LossUnit:
    """Of differences of errors, none of which exceeds ``max_error``."""
    return POINTS if max_error <= 1.0 else OWN


def tolerance_unit(kind: str, max_error: float) -> LossUnit:
    """Of tolerances of this kind, and of the losses that they limit."""
    return error_unit(max_error) if kind == "absolute" else PERCENT
