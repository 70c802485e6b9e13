"""``slotool gen-rules``: tolerance tiers from an outcome table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed, drawable

if TYPE_CHECKING:
    from slotool.cli.gen_rules_switching import SwitchingRequest
    from slotool.cli.output import Output
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable


def register(app: typer.Typer) -> None:
    app.command("gen-rules")(gen_rules)


def gen_rules(
    outcomes: Annotated[
        Path, typer.Argument(help="Outcome table: Parquet, or CSV example,version,error,confidence,latency_s[,cost].")
    ],
    out: Out,
    tolerances: Annotated[
        str, typer.Option("--tolerances", help="Tiers to offer: start:stop:step or a list.")
    ] = "0:0.1:0.01",
    objective: Annotated[str, typer.Option("--objective", help="response-time, cost or both.")] = "both",
    confidence: Annotated[float, typer.Option("--confidence", help="That no tier exceeds its tolerance.")] = 0.999,
    method: Annotated[
        str,
        typer.Option(
            "--method", help="certified (proven), bootstrap (the paper's) or naive (best single version); or switching."
        ),
    ] = "certified",
    tolerance_kind: Annotated[
        str,
        typer.Option(
            "--tolerance-kind",
            help="relative: share of the best version's error; absolute: points of error (0.01 = 1 %).",
        ),
    ] = "relative",
    policies: Annotated[str, typer.Option("--policies", help="Some of osfa,seq,conc.")] = "osfa,seq,conc",
    thresholds: Annotated[int, typer.Option("--thresholds", min=1, help="Thresholds to try per pair.")] = 50,
    max_error: Annotated[float, typer.Option("--max-error", help="What no error can exceed.")] = 1.0,
    price: Annotated[
        str, typer.Option("--price", help="Price per second: a number, or VERSION=PRICE,…", show_default="machine time")
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each tier why this ensemble and not the next cheaper one.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--plots", callback=drawable, help="Folder for plots (PNG) of versions and tiers, or of latency by load."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")] = False,
    model: Annotated[Path | None, typer.Option("--model", help="Artifact that --method switching serves.")] = None,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Its latency table, over batch sizes where it may batch.")
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option("--deadline-ms", min=0.1, help="Deadline that a switching plan keeps at P99.")
    ] = None,
    load_seconds: Annotated[
        float, typer.Option("--load-seconds", min=0.5, help="How long each load test of a switching plan lasts.")
    ] = 4.0,
    configurations: Annotated[
        str | None,
        typer.Option(
            "--configurations",
            help="Replicas x threads that a switching plan may have: 1x1,2x1.",
            show_default="what the cores allow",
        ),
    ] = None,
    data: Annotated[str, typer.Option("--data", help="Data set whose test examples a switching plan sends.")] = "auto",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find, per tolerance and objective, the cheapest ensemble of versions that keeps the promise.

    With --method switching: up to which arrival rate each point keeps a deadline, by load tests of real servers with
    several ⟨replicas, threads⟩; slotool serve --policy switching --plan switches by it.

    Example: slotool gen-rules family-outcomes.parquet -o rules.json --tolerance-kind absolute --explain

    Example: slotool gen-rules family-outcomes.parquet -o plan.json --method switching --model family --latency
    family-latency.parquet --deadline-ms 20
    """
    from functools import partial

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.gen_rules_plan import dry_run_plan, price_of
    from slotool.cli.gen_rules_plots import draw_rules
    from slotool.cli.gen_rules_switching import gen_switching_plan
    from slotool.cli.options import parse_numbers
    from slotool.cli.output import Output
    from slotool.rules import OBJECTIVES, generate_rules
    from slotool.rules.generator import constant_versions
    from slotool.tables import OutcomeTable

    tiers = parse_numbers(tolerances, "--tolerances")
    refuse_existing(out, force)
    output = Output(as_json=json)
    if method == "switching":
        asked = _switching(model, outcomes, latency, deadline_ms, load_seconds, configurations, data, seed)
        gen_switching_plan(output, asked, out, dry_run=dry_run, plots=plots)
        return
    table = price_of(OutcomeTable.load(outcomes), price)
    chosen = [name.strip() for name in policies.split(",")]
    if dry_run:
        dry_run_plan(output, table, tiers, method, chosen, thresholds, max_error)
        return
    make = partial(
        generate_rules,
        table,
        tiers,
        OBJECTIVES if objective == "both" else (objective,),
        confidence,
        method,
        tolerance_kind,  # type: ignore[arg-type]  # checked there
        thresholds=thresholds,
        max_error=max_error,
        seed=seed,
    )
    rules = make(policies=chosen)
    rules.save(out)
    for version in constant_versions(table):
        output.warn(f"{version} has one constant confidence, so it never answers first")
    drawn = [] if plots is None else draw_rules(table, rules, make(policies=["osfa"]), plots, out.stem)
    _report(output, table, rules, out, explain, drawn)


def _switching(
    model: Path | None,
    outcomes: Path,
    latency: Path | None,
    deadline_ms: float | None,
    load_seconds: float,
    configurations: str | None,
    data: str,
    seed: int,
) -> SwitchingRequest:
    from slotool.cli.gen_rules_switching import SwitchingRequest, shapes_of

    if model is None or latency is None or deadline_ms is None:
        raise typer.BadParameter("switching needs --model, --latency and --deadline-ms", param_hint="--method")
    return SwitchingRequest(
        model, outcomes, latency, deadline_ms / 1e3, load_seconds, shapes_of(configurations), data, seed
    )


def _report(output: Output, table: OutcomeTable, rules: RuleSet, out: Path, explain: bool, drawn: list[Path]) -> None:
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
    columns = ["tier", "ensemble", "bound", "seen", "time", "saved", "cost saved"]
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
        return [f"where {best} serves alone, no cheaper ensemble was shown to keep the tolerance"] if alone else []
    needed = rules.config["examples_for_first_saving"]
    if needed is None:
        return [
            f"nothing saved: no cheaper ensemble keeps the widest tolerance even as observed, so {best} serves alone"
        ]
    more = needed - rules.sample_size
    if more <= 0:
        return [f"nothing certified, so {best} serves alone: more examples or a wider tolerance are needed"]
    how = f"about {float(f'{more:.2g}'):,.0f} more examples"
    return [f"nothing certified, so {best} serves alone: {how} would be needed for the widest tolerance"]
