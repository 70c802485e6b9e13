"""``slotool evaluate-rules``: routing rules evaluated on held-out outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json, drawable

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.verdict import TierVerdict

Rules = Annotated[Path, typer.Argument(help="Rules, as gen-rules wrote them.")]
Outcomes = Annotated[Path, typer.Argument(help="Outcome table (Parquet or CSV) that the rules were not made from.")]


def register(app: typer.Typer) -> None:
    app.command("evaluate-rules")(evaluate_rules)


def evaluate_rules(
    rules: Rules,
    outcomes: Outcomes,
    folds: Annotated[
        int | None,
        typer.Option("--folds", min=2, help="Cross-validate: make rules of the same settings from all folds but one."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", callback=drawable, help="Plot (PNG) of tolerance against observed degradation."),
    ] = None,
    significance: Annotated[
        float,
        typer.Option(
            help="Level at which a violation is significant, over all tiers and folds; then the exit code is 1."
        ),
    ] = 0.05,
    force: Force = False,
    json: Json = False,
) -> None:
    """Replay every tier on held-out outcomes.

    Prints degradation against tolerance, and time and cost saved. Exit 1 on a significant violation: a tier's mean may
    exceed its tolerance on a sample although the tolerance holds.

    Example: slotool evaluate-rules rules.json fresh-outcomes.parquet

    Example: slotool evaluate-rules rules.json outcomes.parquet --folds 10
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.rules import RuleSet
    from slotool.rules.verdict import cross_validate, verdicts
    from slotool.tables import OutcomeTable

    if not 0 < significance < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--significance")
    if plot is None:
        refuse_without_effect(("force",), "without --plot")
    else:
        refuse_existing(plot, force)
    output = Output(as_json=json)
    made, table = RuleSet.load(rules), OutcomeTable.load(outcomes)
    if folds is None:
        if table.sha256 == made.table_sha256:
            output.warn("the rules were made from this outcome table, so nothing here is held out")
        rounds = [verdicts(made, table)]
    else:
        with output.progress(f"{folds} folds of {len(table.examples):,} examples", total=folds) as progress:
            rounds = cross_validate(made, table, folds, progress.advance)
    if plot is not None:
        _draw(made, rounds, plot, str(outcomes))
    violations = _report(output, made, rounds, len(table.examples), significance, plot)
    if violations:
        raise typer.Exit(1)


def _draw(made: RuleSet, rounds: list[list[TierVerdict]], plot: Path, source: str) -> None:
    from slotool.reports.plots import save_png
    from slotool.reports.series.degradation import observed_against_tolerance

    save_png(observed_against_tolerance(made, rounds, source), plot)


def _report(
    output: Any,
    made: RuleSet,
    rounds: list[list[TierVerdict]],
    examples: int,
    significance: float,
    plot: Path | None,
) -> int:
    from slotool.cli.output import duration, table
    from slotool.rules.verdict import adjusted_p_values

    adjusted = adjusted_p_values(rounds)
    same_tiers = zip(*rounds, strict=True)
    tiers = [_tier(list(same), float(p), significance) for same, p in zip(same_tiers, adjusted, strict=True)]
    violations, above = (sum(tier[name] for tier in tiers) for name in ("violated", "above_tolerance"))
    cells = [
        [
            tier["id"],
            _percent(tier["degradation"]),
            _percent(tier["worst_degradation"]),
            tier["above_tolerance"],
            f"{tier['p_value']:.2g}",
            "violated" if tier["violated"] else "–",
            duration(tier["response_time_s"]),
            f"{tier['response_time_saved']:.0%}",
            f"{tier['cost_saved']:.0%}",
        ]
        for tier in tiers
    ]
    how = f"on {examples:,} examples" if len(rounds) == 1 else f"over {len(rounds)} folds of {examples:,} examples"
    title = f"Tiers of {made.method} rules {how}: % {made.tolerance_kind} degradation from {made.best_version}"
    columns = ["tier", "mean", "worst", "above", "p", "verdict", "response time", "saved", "cost saved"]
    document = {
        "method": made.method,
        "tolerance_kind": made.tolerance_kind,
        "confidence": made.confidence,
        "examples": examples,
        "folds": len(rounds) if len(rounds) > 1 else None,
        "significance": significance,
        "above_tolerance": above,
        "violations": violations,
        "tiers": tiers,
    }
    said = (
        f"{violations} of {len(tiers)} tiers violated at significance {significance:g}; "
        f"the observed degradation is above the tolerance in {above} of {len(tiers) * len(rounds)} checks"
    )
    drawn = [] if plot is None else [f"wrote {plot}"]
    output.result("evaluate-rules", document, table(title, columns, cells), said, *drawn)
    return int(violations)


def _tier(same: list[TierVerdict], p_value: float, significance: float) -> dict[str, Any]:
    """One tier over the folds: means, but the worst degradation; ``p_value`` is adjusted for folds and tiers."""
    first = same[0].rule
    means = {
        name: sum(getattr(v, name) for v in same) / len(same)
        for name in ("degradation", "response_time_s", "cost", "response_time_saved", "cost_saved")
    }
    return {
        "id": first.id,
        "objective": first.objective,
        "tolerance": first.tolerance,
        "worst_degradation": max(v.degradation for v in same),
        "above_tolerance": sum(v.above_tolerance for v in same),
        "p_value": p_value,
        "violated": p_value <= significance,
        **means,
    }


def _percent(share: float) -> str:
    return f"{share * 100:.3g}"
