"""What ``gen-rules`` prints and draws: versions, tiers, and why no cheaper ensemble serves a tier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable


def report_rules(
    output: Output, table: OutcomeTable, rules: RuleSet, out: Path, explain: bool, drawn: list[Path]
) -> None:
    from dataclasses import asdict

    from slotool.rules.analysis import category_shares, version_facts

    facts, shares = version_facts(table), category_shares(table)
    document: dict[str, Any] = {
        "out": str(out),
        "rules": rules.document(),
        "versions": [asdict(fact) for fact in facts],
        "categories": shares,
        "plots": [str(path) for path in drawn],
    }
    objectives = dict.fromkeys(rule.objective for rule in rules.rules)
    tiers = [_tier_table(rules, objective) for objective in objectives]
    split = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
    output.result(
        "gen-rules",
        document,
        _version_table(facts, rules),
        f"requests, from the fastest version to the slowest: {split}",
        *tiers,
        *([_explanations(rules)] if explain else []),
        *_remarks(rules),
        *(f"wrote {path}" for path in (out, *drawn)),
    )


def _version_table(facts: list[Any], rules: RuleSet) -> Any:
    from slotool.cli.output import duration, number, table

    cells = [
        [
            f.version + (" (best)" if f.version == rules.best_version else ""),
            f"{f.error:.4f}",
            duration(f.response_time_s),
            number(f.cost),
            f"{f.confidence:.3f}",
            "yes" if f.pareto else "no",
        ]
        for f in facts
    ]
    title = f"Versions on {rules.sample_size:,} examples"
    return table(title, ["version", "error", "response time", "cost", "confidence", "Pareto"], cells)


def _tier_table(rules: RuleSet, objective: str) -> Any:
    from itertools import groupby

    from slotool.cli.output import duration, table
    from slotool.rules import from_point

    base_s, base_cost = rules.config["best_response_time_s"], rules.config["best_cost"]
    tiers = [rule for rule in rules.rules if rule.objective == objective]
    cells = []
    for point, group in groupby(tiers, key=lambda rule: rule.point):
        same = list(group)
        rule, span = same[0], dict.fromkeys((_share(same[0].tolerance), _share(same[-1].tolerance)))
        cells.append(
            [
                "–".join(span),
                from_point(point).words,
                _share(rule.bound),
                _share(rule.degradation),
                duration(rule.response_time_s),
                _saving(rule.response_time_s, base_s),
                _saving(rule.cost, base_cost),
            ]
        )
    title = f"Tiers for the least {objective.replace('-', ' ')}: {rules.method}, {_promise(rules)}"
    columns = ["tier", "ensemble", "bound", "observed", "time", "saved", "cost saved"]
    return table(title, columns, cells)


def _explanations(rules: RuleSet) -> Any:
    from itertools import groupby

    from slotool.cli.output import table

    cells = []
    for (objective, _, why), group in groupby(rules.rules, key=lambda rule: (rule.objective, rule.point, rule.why)):
        same = list(group)
        span = "–".join(dict.fromkeys((_share(same[0].tolerance), _share(same[-1].tolerance))))
        cells.append([f"{objective} {span}", why])
    return table("Why not cheaper", ["tier", "why"], cells)


def _promise(rules: RuleSet) -> str:
    relative = rules.tolerance_kind == "relative"
    kind = f"error in % relative to {rules.best_version}" if relative else f"points of error above {rules.best_version}"
    return f"{kind}, confidence {rules.confidence:g}"


def _share(value: float) -> str:
    return f"{value * 100:.3g}"


def _saving(value: float, base: float) -> str:
    return f"{1.0 - value / base + 0.0:.0%}" if base > 0 else "–"


def _remarks(rules: RuleSet) -> list[str]:
    best = rules.best_version
    if rules.method != "certified":
        return [f"{rules.method} proves nothing: its bounds are there for comparison with --method certified"]
    alone = [rule for rule in rules.rules if not rule.certified]
    if len(alone) < len(rules.rules):
        return [f"where {best} serves alone, no cheaper ensemble was proven to keep the tolerance"] if alone else []
    needed = rules.config["examples_for_first_saving"]
    if needed is None:
        return [
            f"nothing saved: no cheaper ensemble keeps the widest tolerance even as observed, so {best} serves alone"
        ]
    more = needed - rules.sample_size
    alone_for_now = f"nothing certified, so {best} serves alone"
    if more <= 0:
        return [f"{alone_for_now}: more examples, a wider tolerance or a lower --confidence are needed"]
    how = f"about {float(f'{more:.2g}'):,.0f} more examples"
    return [
        f"{alone_for_now}: {how} would be needed for the widest tolerance, or fewer at a lower --confidence than "
        f"{rules.confidence:g}"
    ]


def draw_rules(table: OutcomeTable, rules: RuleSet, alone: RuleSet, folder: Path, name: str) -> list[Path]:
    """Write the plots into ``folder`` and return their paths; ``alone``: the rules of single versions only."""
    from slotool.reports.plots import save_plots
    from slotool.reports.series.savings import savings_against_tolerance
    from slotool.reports.series.versions import version_figures

    return save_plots([*version_figures(name, table), *savings_against_tolerance(name, rules, alone)], folder)
