"""``slotool.evaluate_drift``: whether guarantees still hold, from labelled feedback in the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotool.api.arguments import typed
from slotool.api.display import Part, table
from slotool.api.inputs import FilePath, loaded
from slotool.api.result import Result
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.drift import Watched
    from slotool.tables import OutcomeTable


@typed
def evaluate_drift(
    rules: FilePath | RuleSet, feedback: FilePath | OutcomeTable, *, confidence: float = 0.99
) -> DriftVerdict:
    """Watch every tier by a sequential test of labelled feedback.

    Args:
        rules: Rules, or their file.
        feedback: Outcome table of labelled requests, or its file, in the order of arrival.
        confidence: Probability of no alarm while all guarantees hold.

    Returns:
        ``alarms``, how many guarantees no longer hold; ``frame()`` has a row per watched ensemble.

    Raises:
        ArgumentError: ``confidence`` does not lie between 0 and 1.
        InputError: The feedback lacks a version that the rules consult.
        TableError: The outcome table cannot be used.
    """
    from slotool.rules import RuleSet
    from slotool.rules.drift import watch
    from slotool.tables import OutcomeTable

    if not 0 < confidence < 1:
        raise ArgumentError("confidence", "must lie between 0 and 1, both excluded")
    labelled = loaded(OutcomeTable, feedback)
    return DriftVerdict(watch(loaded(RuleSet, rules), labelled, confidence), len(labelled.examples), confidence)


@dataclass(frozen=True, repr=False, eq=False)
class DriftVerdict(Result):
    """``watched``: every ensemble that gives a guarantee, at its tightest tolerance; ``requests``: labelled ones."""

    watched: list[Watched]
    requests: int
    confidence: float

    schema = "evaluate-drift"
    rows_key = "ensembles"

    @property
    def alarms(self) -> int:
        """How many guarantees no longer hold."""
        return sum(w.alarm_at is not None for w in self.watched)

    @property
    def evidence_wanted(self) -> float:
        """From this evidence on a guarantee counts as violated."""
        return len(self.watched) / (1.0 - self.confidence)

    def findings(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "confidence": self.confidence,
            "evidence_wanted": self.evidence_wanted,
            "alarms": self.alarms,
            "ensembles": [
                {
                    "point": w.point.label,
                    "tolerance": w.tolerance,
                    "mean_excess": w.mean_excess,
                    "evidence": w.evidence,
                    "alarm_at": w.alarm_at,
                }
                for w in self.watched
            ],
        }

    def shown(self) -> list[Part]:
        if not self.watched:
            return ["the best version serves every tier: nothing to watch"]
        if self.alarms:
            said = f"{self.alarms} of {len(self.watched)} guarantees are violated: make new rules from fresh outcomes"
        else:
            said = "no guarantee is violated"
        return [self._table(), said]

    def _table(self) -> Part:
        from slotool.rules import from_point

        cells = [
            [
                f"{w.tolerance * 100:g}",
                from_point(w.point).words,
                f"{w.mean_excess * 100:+.3g}",
                f"{w.evidence:.3g}",
                "–" if w.alarm_at is None else f"{w.alarm_at:,}",
            ]
            for w in self.watched
        ]
        title = f"{self.requests:,} labelled requests; an alarm needs evidence of {self.evidence_wanted:.4g}"
        columns = ["tolerance, %", "ensemble", "mean excess, points", "evidence", "alarm at request"]
        return table(title, columns, cells)
