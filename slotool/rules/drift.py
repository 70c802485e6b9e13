"""Whether a guarantee still holds, from labelled feedback as it comes in: a sequential test by betting.

The guarantee of a tier is that its answers are on average no worse than tolerated: the excess
sᵢ = eᵢ − bᵢ − aᵢ has mean ≤ 0, while requests have the distribution of the outcome table. A bet against it
stakes a share λ of the wealth on each labelled request, ∏(1 + λ sᵢ). While the guarantee holds that is a
non-negative supermartingale: it ever exceeds 1/α with probability at most α, at any stopping time (Ville). The test
averages several such wealths, which is valid again: one for each of several stakes; and one that starts at every
request t with wealth 1/(t (t + 1)), in total 1, which has lost nothing before the drift began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slotool.rules.betting import Evidence, excess_of
from slotool.rules.points import from_point
from slotool.rules.policies import OSFA
from slotool.rules.ruleset import RuleSet
from slotool.tables import OperatingPoint, OutcomeTable


@dataclass(frozen=True)
class Watched:
    """One ensemble at its tightest tolerance: mean observed excess (points), greatest evidence, and the alarm.

    ``alarm_at``: number of labelled requests after which the guarantee was found violated, None when it never was.
    """

    point: OperatingPoint
    tolerance: float
    mean_excess: float
    evidence: float
    alarm_at: int | None


class _Standing:
    """What is known of one ensemble after the labels so far: sums and the wealth of the bets, of constant size."""

    def __init__(self, point: OperatingPoint, tolerance: float, largest: float):
        self.point, self.tolerance = point, tolerance
        self._evidence = Evidence(largest)
        self._excess_sum, self._greatest = 0.0, 0.0
        self.alarm_at: int | None = None

    def see(self, excess: np.ndarray, wanted: float) -> None:
        before, wealth = self._evidence.seen, self._evidence.after(excess)
        beyond = np.flatnonzero(wealth >= wanted)
        if self.alarm_at is None and len(beyond):
            self.alarm_at = before + int(beyond[0]) + 1
        self._greatest = max(self._greatest, float(wealth.max(initial=0.0)))
        self._excess_sum += float(excess.sum())

    def watched(self) -> Watched:
        mean = self._excess_sum / max(1, self._evidence.seen)
        return Watched(self.point, self.tolerance, mean, self._greatest, self.alarm_at)


class Watcher:
    """Watches every ensemble of ``rules``, label after label; it keeps no label.

    With probability ≥ ``confidence`` none of them raises an alarm while all guarantees hold.
    """

    def __init__(self, rules: RuleSet, confidence: float):
        self.rules = rules
        self._confidence = confidence
        self._standings: dict[OperatingPoint, _Standing] = {}

    def see(self, feedback: OutcomeTable) -> None:
        """Take in labelled requests in the order of arrival, after all earlier ones. Raises ``InputError`` when they
        lack a version that the rules consult."""
        found = list(_excesses(self.rules, feedback))
        wanted = len(found) / (1.0 - self._confidence)
        for point, tolerance, excess, largest in found:
            standing = self._standings.setdefault(point, _Standing(point, tolerance, largest))
            standing.see(excess, wanted)

    def watched(self) -> list[Watched]:
        """The state of each ensemble after the labels so far."""
        return [standing.watched() for standing in self._standings.values()]


def watch(rules: RuleSet, feedback: OutcomeTable, confidence: float) -> list[Watched]:
    """Every ensemble of ``rules`` watched over ``feedback``; see ``Watcher``."""
    watcher = Watcher(rules, confidence)
    watcher.see(feedback)
    return watcher.watched()


def _excesses(rules: RuleSet, feedback: OutcomeTable) -> Iterator[tuple[OperatingPoint, float, np.ndarray, float]]:
    """Per ensemble the tightest tolerance it serves, how much worse than that each answer was, and by how
    much one could be better.

    Excesses are float64 [examples], in the table's order, of errors scaled to [0, 1]; the best version is left out.
    """
    max_error = float(rules.config.get("max_error", 1.0))
    best = OSFA(rules.best_version)
    strictest: dict[OperatingPoint, float] = {}
    for rule in rules.rules:
        if rule.point != best.point:
            strictest[rule.point] = min(rule.tolerance, strictest.get(rule.point, np.inf))
    best_error = best.replay(feedback).error / max_error
    for point, tolerance in strictest.items():
        error = from_point(point).replay(feedback).error / max_error
        scaled = tolerance / max_error if rules.tolerance_kind == "absolute" else tolerance
        excess = excess_of(error, best_error, scaled, rules.tolerance_kind)  # type: ignore[arg-type]  # checked
        yield point, tolerance, excess, 1.0 + scaled
