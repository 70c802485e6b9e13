"""``slotool.evaluate_drift``: test of guarantees by labelled feedback in the order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, result, unlisted
from slotool.commands.values import inside
from slotool.sources import FilePath, loaded

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.monitor.drift import Watched
    from slotool.tables import OutcomeTable


@writes()
def evaluate_drift(
    rules: FilePath | RuleSet,
    feedback: FilePath | OutcomeTable | Sequence[FilePath],
    *,
    confidence: Annotated[float, inside(0, 1)] = 0.99,
    labelled: str | None = None,
) -> DriftVerdict:
    """Watch every tier by a sequential test of feedback.

    The test is valid after every request. Rules made per group are watched for each group. A guarantee is confirmed
    when the feedback alone shows that it holds. The command exits with 1 when a guarantee no longer holds.

    Labels of wrong answers must not come later than those of right ones. If they do, leave out requests whose labels
    may still come.

    Example: slotool evaluate-drift rules.json feedback.parquet

    Example: slotool evaluate-drift rules.json feedback.parquet --labelled chance

    Args:
        rules: Rules, as ``gen_rules`` writes them.
        feedback: Outcome table of labelled requests, in the order of arrival; one for each of several servers.
        confidence: Probability of no alarm while all guarantees hold, and of no confirmation of a guarantee that does
            not hold.
        labelled: Column with each request's probability of a label, if some are labelled more often.

    Returns:
        ``alarms``, the number of guarantees that no longer hold, and ``confirmed``; ``frame()`` has a row per watched
        ensemble and group.

    Raises:
        ArgumentError: ``confidence`` does not lie between 0 and 1.
        InputError: The feedback lacks a version that the rules consult, or holds an error beyond theirs.
        TableError: An outcome table cannot be used, lacks the column of the rules' groups or of ``labelled``, or two
            are of different models.
    """
    from slotool.rules import RuleSet
    from slotool.rules.monitor.drift import watch
    from slotool.tables import OutcomeTable

    rule_set = loaded(RuleSet, rules)
    several = feedback if isinstance(feedback, Sequence) and not isinstance(feedback, str) else [feedback]
    outcomes = OutcomeTable.joined([loaded(OutcomeTable, table) for table in several])
    changed = rule_set.changed_words(outcomes.models)
    ensembles = watch(rule_set, outcomes, confidence, labelled)
    return DriftVerdict(rule_set, ensembles, len(outcomes.examples), confidence, changed)


@result
class DriftVerdict(Result):
    """Verdict on the guarantees of ``rules``.

    ``watched``: every ensemble that gives a guarantee, at its tightest tolerance above the rules' best version, for all
    requests and for each group of the rules. ``requests``: number of requests that count. ``changed``: remark on models
    that differ from those of the rules.
    """

    rules: RuleSet = unlisted()
    watched: list[Watched] = unlisted()
    requests: int
    confidence: float
    changed: str = unlisted(default="")

    schema = "evaluate-drift"
    rows_key = "ensembles"

    @property
    def warnings(self) -> list[str]:
        """Remark on feedback of other models than the rules'."""
        return [f"the rules were {self.changed}"] if self.changed else []

    @property
    def exit_code(self) -> int:
        """1 if a guarantee no longer holds."""
        return int(self.alarms > 0)

    @property
    def alarms(self) -> int:
        """Number of guarantees that no longer hold."""
        return sum(w.alarm_at is not None for w in self.watched)

    @property
    def confirmed(self) -> int:
        """Number of guarantees that the feedback alone shows to hold."""
        return sum(w.confirmed_at is not None for w in self.watched)

    @property
    def evidence_wanted(self) -> float:
        """Evidence at which a guarantee counts as violated."""
        return len(self.watched) / (1.0 - self.confidence)

    def findings(self) -> dict[str, Any]:
        counts = {"evidence_wanted": self.evidence_wanted, "alarms": self.alarms, "confirmed": self.confirmed}
        return {**super().findings(), **counts}

    def records(self) -> list[dict[str, Any]]:
        names = ("tolerance", "mean_excess", "evidence", "alarm_at", "confirmed_at")
        return [
            {"tier": w.tier, "point": w.point.label}
            | {name: getattr(w, name) for name in names}
            | {"group": w.group or None}
            for w in self.watched
        ]

    def shown(self) -> list[Part]:
        from slotool.rules import from_point

        if not self.watched:
            return ["the best version serves every tier: nothing to watch"]
        count, unit, loss = len(self.watched), self.rules.unit, self.rules.loss_unit
        verdict = f"{self.alarms} of {count} guarantees are violated" if self.alarms else "no guarantee is violated"
        columns = [
            Column("tier"),
            Column("tolerance", unit.heading("tolerance"), unit.number),
            Column("ensemble"),
            *([Column("group", "requests of")] if any(w.group for w in self.watched) else []),
            Column("mean_excess", loss.heading("mean excess"), lambda excess: f"{excess * loss.per_one:+.3g}"),
            Column("evidence", "evidence against", ".3g"),
            Column("alarm_at", form=","),
            Column("confirmed_at", form=","),
        ]
        rows = [
            {**row, "ensemble": from_point(w.point).words, "group": w.group or "all"}
            for row, w in zip(self.records(), self.watched, strict=True)
        ]
        needed = f"an alarm needs evidence against a tier of {self.evidence_wanted:.4g}"
        title = f"{self.requests:,} labelled requests; tolerances: {self.rules.loss_words}; {needed}"
        return [
            records_table(title, rows, columns),
            f"{verdict}; these requests alone confirm {self.confirmed} of {count}",
            *(w.alarm(self.rules) for w in self.watched if w.alarm_at is not None),
            *([f"certify again with fresh outcomes: {self.rules.certify_again}"] if self.alarms else []),
        ]
