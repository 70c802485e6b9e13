"""``slotool.evaluate_rules``: routing rules evaluated on held-out outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, result, unlisted
from slotool.commands.rules.gen_rules import priced, weakest_group
from slotool.commands.values import at_least, inside
from slotool.errors import ArgumentError
from slotool.printable import duration
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, loaded

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.monitor.verdict import TierVerdict
    from slotool.tables import OutcomeTable


# Violation that should be found, as a share of the largest error.
SMALL_EXCESS = 0.05
# Ratios of measured to stated cost of two tiers that differ by more show other prices.
MAX_COST_SPREAD = 2.0


@writes()
def evaluate_rules(
    rules: FilePath | RuleSet,
    outcomes: FilePath | OutcomeTable,
    *,
    current: FilePath | RuleSet | None = None,
    folds: Annotated[int, at_least(2)] | None = None,
    prices: FilePath | Mapping[str, float] | None = None,
    significance: Annotated[float, inside(0, 1)] = 0.05,
    progress: Reporting = "auto",
) -> RulesVerdict:
    """Replay every tier on held-out outcomes.

    It prints degradation beside tolerance, and time and cost saved. On a sample, a tier's mean may exceed a tolerance
    that holds: only a significant excess is a violation. The command exits with 1 on a violation, or if the outcomes
    are of other models.

    Example: slotool evaluate-rules rules.json fresh-outcomes.parquet

    Example: slotool evaluate-rules new-rules.json today.parquet --current rules.json --json

    Example: slotool evaluate-rules rules.json outcomes.parquet --folds 10

    Args:
        rules: Rules, as ``gen_rules`` writes them.
        outcomes: Outcome table (Parquet or CSV) that the rules were not made from.
        current: Rules that serve today; the verdict is to keep them, or to promote ``rules`` in their place.
        folds: Number of folds to cross-validate with: rules of the same settings are made from all folds but one.
        prices: Prices of a call: a list as for ``import_outcomes``, or by version. They replace the table's costs;
            with ``folds`` the rules are made at these prices too.
        significance: Significance level of a violation, over all tiers and folds.

    Returns:
        ``verdict`` (``"promote"``, ``"keep"`` or ``"certify again"``) and ``violations``; ``frame()`` has a row per
        tier.

    Raises:
        ArgumentError: ``significance`` lies outside 0 to 1, or ``current`` is given with ``folds``.
        InputError: The outcomes lack a version that the rules consult, or hold an error beyond theirs.
        TableError: The outcome table cannot be used, or a version has no price.
    """
    from slotool.rules import RuleSet
    from slotool.rules.monitor.verdict import cross_validate, verdicts
    from slotool.tables import OutcomeTable

    if current is not None and folds is not None:
        raise ArgumentError("current", "is replayed as it is and folds make new rules; give one of the two")
    rule_set, table, reporter = loaded(RuleSet, rules), loaded(OutcomeTable, outcomes), reporter_of(progress)
    held_out, changed = priced(table, None, prices), ""
    if folds is None:
        if changed := rule_set.changed_words(table.models):
            reporter.warn(f"the rules were {changed}")
        if rule_set.table_sha256 in (table.sha256, held_out.sha256):
            reporter.warn("the rules were made from this outcome table, so nothing here is held out")
        rounds = [verdicts(rule_set, held_out)]
    else:
        with reporter.progress(f"{folds} folds of {len(held_out.examples):,} examples", total=folds) as steps:
            rounds = cross_validate(rule_set, held_out, folds, steps.advance)
    serving = None
    if current is not None:
        deployed = loaded(RuleSet, current)
        outdated = bool(deployed.changed(table.models))
        serving = RulesVerdict(deployed, [verdicts(deployed, held_out)], len(held_out.examples), significance, outdated)
    return RulesVerdict(rule_set, rounds, len(held_out.examples), significance, bool(changed), serving)


@result
class RulesVerdict(Result):
    """Verdicts on every tier, per fold (``rounds``), from ``examples`` of the outcome table (a number).

    ``outdated``: True if the outcomes are of other models. ``current``: verdict on the rules that serve today.
    """

    rules: RuleSet = unlisted()
    rounds: list[list[TierVerdict]] = unlisted()
    examples: int
    significance: float
    outdated: bool = unlisted(default=False)
    current: RulesVerdict | None = unlisted(default=None)

    schema = "evaluate-rules"
    rows_key = "tiers"

    @property
    def exit_code(self) -> int:
        """1 on a significant violation, or if the outcomes are of other models."""
        return int(not self.holds)

    @property
    def holds(self) -> bool:
        """True if no tier is violated significantly and the models are those of the rules."""
        return not self.violations and not self.outdated

    @property
    def verdict(self) -> str:
        """Verdict: ``"keep"`` the current rules, ``"promote"`` the evaluated ones, or ``"certify again"``.

        Evaluated rules are promoted if they hold, and save more or the current ones do not hold.
        """
        if self.current is None:
            return "keep" if self.holds else "certify again"
        if not self.holds:
            return "keep" if self.current.holds else "certify again"
        return "promote" if not self.current.holds or self._saves_more(self.current) else "keep"

    def _saves_more(self, current: RulesVerdict) -> bool:
        """True if tiers save more of their objective than the current ones of the same tolerances."""
        gained = 0.0
        for tier in self._tiers:
            saved = f"{tier['objective'].replace('-', '_')}_saved"
            today = [rule for rule in current._tiers
                     if rule["objective"] == tier["objective"] and rule["tolerance"] <= tier["tolerance"]]  # fmt: skip
            gained += tier[saved] - max((rule[saved] for rule in today), default=0.0)
        return gained > 0

    @property
    def violations(self) -> int:
        """Number of significantly violated tiers."""
        return sum(tier["violated"] for tier in self._tiers)

    @property
    def above_tolerance(self) -> int:
        """Number of checks, one per tier and fold, in which the observed degradation exceeds the tolerance."""
        return sum(tier["above_tolerance"] for tier in self._tiers)

    @cached_property
    def detectable_excess(self) -> float:
        """Smallest significant excess over a tolerance, in points of error, roughly."""
        from slotool.rules.monitor.verdict import detectable_excess

        return detectable_excess(self.rules, self.rounds, self.examples // len(self.rounds), self.significance)

    @cached_property
    def _tiers(self) -> list[dict[str, Any]]:
        from slotool.rules.monitor.verdict import adjusted_p_values

        adjusted = adjusted_p_values(self.rounds)
        same_tiers = zip(*self.rounds, strict=True)
        return [_tier(list(same), float(p), self.significance) for same, p in zip(same_tiers, adjusted, strict=True)]

    @property
    def warnings(self) -> list[str]:
        """Warning of prices that differ from those of the rules."""
        pairs = [(tier["cost"], rule.cost) for tier, rule in zip(self._tiers, self.rules.rules, strict=True)]
        ratios = [measured / stated for measured, stated in pairs if measured > 0 and stated > 0]
        if not ratios or max(ratios) <= MAX_COST_SPREAD * min(ratios):
            return []
        return [
            f"tiers cost {min(ratios):.3g} to {max(ratios):.3g} times what the rules state: if these were made at "
            "other prices, give --prices; cost saved is of the costs here"
        ]

    def findings(self) -> dict[str, Any]:
        return {
            "method": self.rules.method,
            "tolerance_kind": self.rules.tolerance_kind,
            "confidence": self.rules.confidence,
            "folds": len(self.rounds) if len(self.rounds) > 1 else None,
            "above_tolerance": self.above_tolerance,
            "violations": self.violations,
            "verdict": self.verdict,
            "detectable_excess": self.detectable_excess,
            **super().findings(),
        }

    def records(self) -> list[dict[str, Any]]:
        return self._tiers

    def shown(self) -> list[Part]:
        tiers, folds, unit = self._tiers, len(self.rounds), self.rules.unit
        columns = [
            Column("id", "tier"),
            Column("tolerance", form=unit.number),
            Column("degradation", "observed", unit.number),
            *([Column("worst_degradation", "worst fold", unit.number)] if folds > 1 else []),
            *(
                [Column("groups", "most by group", partial(weakest_group, unit=unit))]
                if any(tier["groups"] for tier in tiers)
                else []
            ),
            Column("above_tolerance", "above"),
            Column("p_value", "p", ".2g"),
            Column("violated", "verdict", lambda violated: "violated" if violated else "holds"),
            Column("response_time_s", "time", duration),
            Column("response_time_saved", "time saved", ".0%"),
            Column("cost_saved", form=".0%"),
        ]
        how = f"on {self.examples:,} examples" if folds == 1 else f"over {folds} folds of {self.examples:,} examples"
        title = f"Tiers of {self.rules.method} rules {how}: {self.rules.loss_words}"
        sentence = (
            f"{self.violations} of {len(tiers)} tiers violated at significance {self.significance:g}; the observed "
            f"degradation is above the tolerance in {self.above_tolerance} of {len(tiers) * folds} checks"
        )
        sentence += f"; verdict: {self.verdict}"
        return [records_table(title, tiers, columns), *self._too_few(), sentence]

    def _too_few(self) -> list[str]:
        """Return a remark if an excess as large as the widest tolerance would not be significant."""
        widest = max(rule.tolerance for rule in self.rules.rules)
        points = widest * (self.rules.best_error if self.rules.tolerance_kind == "relative" else 1.0)
        if self.detectable_excess <= max(points, SMALL_EXCESS * self.rules.largest_loss):
            return []
        count = f"{self.examples // len(self.rounds):,}" + ("" if len(self.rounds) == 1 else " in a fold")
        what = "of the requests" if self.rules.tolerance_kind == "quantile" else "of error"
        return [
            f"few examples: {count} show a violation only where a tier lies about "
            f"{self.rules.loss_unit.amount(self.detectable_excess)} {what} or more above its tolerance"
        ]


def _tier(same: list[TierVerdict], p_value: float, significance: float) -> dict[str, Any]:
    """Return means of one tier over the folds, and its worst degradation; ``p_value``: adjusted for folds and tiers."""
    first = same[0].rule
    means = {
        name: fmean(getattr(v, name) for v in same)
        for name in ("degradation", "response_time_s", "cost", "response_time_saved", "cost_saved")
    }
    groups = dict.fromkeys(name for v in same for name in v.groups)
    return {
        "id": first.id,
        "objective": first.objective,
        "tolerance": first.tolerance,
        "worst_degradation": max(v.degradation for v in same),
        "above_tolerance": sum(v.above_tolerance for v in same),
        "p_value": p_value,
        "violated": p_value <= significance,
        "groups": {name: fmean(v.groups[name] for v in same if name in v.groups) for name in groups},
        **means,
    }
