"""``slotool gen-rules``: tolerance tiers from an outcome table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json, Out, Seed, panel, plots_folder

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.tables import OutcomeTable

_method, _ensembles, _output = map(panel, ("Guarantee", "Ensembles to choose from", "Output"))


def register(app: typer.Typer) -> None:
    app.command("gen-rules")(gen_rules)


def gen_rules(
    outcomes: Annotated[
        Path, typer.Argument(help="Outcome table: Parquet, or CSV example,version,error,confidence,latency_s[,cost].")
    ],
    out: Out,
    tolerances: Annotated[
        str, _method("--tolerances", help="Tiers to offer: start:stop:step or a list.")
    ] = "0:0.1:0.01",
    tolerance_kind: Annotated[
        str,
        _method(
            "--tolerance-kind",
            help="relative: share of the best version's error; absolute: points of error (0.01 = 1 %).",
        ),
    ] = "relative",
    method: Annotated[
        str, _method("--method", help="certified (proven), bootstrap (the paper's) or naive (best single version).")
    ] = "certified",
    confidence: Annotated[
        float, _method("--confidence", help="Probability that no tier exceeds its tolerance.")
    ] = 0.999,
    max_error: Annotated[float, _method("--max-error", help="Upper limit of an error in the table.")] = 1.0,
    objective: Annotated[str, _ensembles("--objective", help="response-time, cost or both.")] = "both",
    policies: Annotated[str, _ensembles("--policies", help="Some of osfa,seq,conc.")] = "osfa,seq,conc",
    thresholds: Annotated[int, _ensembles("--thresholds", min=1, help="Thresholds to try per pair.")] = 50,
    price: Annotated[
        str, _ensembles("--price", help="Price per second: a number, or VERSION=PRICE,…", show_default="machine time")
    ] = "",
    explain: Annotated[
        bool, _output("--explain", help="Print for each tier why no cheaper ensemble serves it.")
    ] = False,
    plots: Annotated[
        Path | None, _output("--plots", callback=plots_folder, help="Folder for plots (PNG) of versions and tiers.")
    ] = None,
    dry_run: Annotated[
        bool, _output("--dry-run", help="Print the number of ensembles and the expected time; write nothing.")
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find the cheapest ensemble of versions that keeps each tolerance.

    Example: slotool gen-rules family-outcomes.parquet -o rules.json --tolerance-kind absolute --explain
    """
    from functools import partial

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.gen_rules_report import draw_rules, report_rules
    from slotool.cli.options import parse_numbers
    from slotool.cli.output import Output
    from slotool.rules import OBJECTIVES, generate_rules
    from slotool.rules.generator import constant_versions
    from slotool.tables import OutcomeTable

    if method == "naive":
        refuse_without_effect(("confidence", "policies", "thresholds", "seed"), "with --method naive")
    if dry_run:
        refuse_without_effect(("explain", "plots"), "with --dry-run")
    tiers = parse_numbers(tolerances, "--tolerances")
    refuse_existing(out, force)
    output = Output(as_json=json)
    table = _priced(OutcomeTable.load(outcomes), price)
    chosen = [name.strip() for name in policies.split(",")]
    if dry_run:
        _estimate(output, table, tiers, method, chosen, thresholds, max_error)
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
    report_rules(output, table, rules, out, explain, drawn)


def _priced(table: OutcomeTable, text: str) -> OutcomeTable:
    """``table`` priced by ``0.02`` for every version or ``small=0.01,large=0.04``; as it is for an empty text."""
    if not text:
        return table
    try:
        if "=" not in text:
            return table.priced(dict.fromkeys(table.versions, float(text)))
        # Names of versions may hold "=" and "," themselves (k=0.5), so the price is what follows the last "=".
        pairs = [(version, float(price)) for version, _, price in (part.rpartition("=") for part in text.split(","))]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor VERSION=PRICE,…", param_hint="--price") from None
    return table.priced({version.strip(): price for version, price in pairs})


def _estimate(
    output: Output,
    outcomes: OutcomeTable,
    tiers: list[float],
    method: str,
    policies: list[str],
    thresholds: int,
    max_error: float,
) -> None:
    """Print the number of candidates and about how long the method takes."""
    from slotool.cli.output import duration
    from slotool.rules.generator import estimate

    candidates, expected_s = estimate(outcomes, tiers, method, policies, thresholds, max_error)
    document = {
        "examples": len(outcomes.examples),
        "versions": outcomes.versions,
        "pairs": len(candidates.paths),
        "candidates": len(candidates),
        "tolerances": len(tiers),
        "method": method,
        "predicted_s": expected_s,
    }
    output.result(
        "gen-rules-dry-run",
        document,
        f"{len(candidates):,} candidates ({len(candidates.alone)} versions, {len(candidates.paths)} ordered pairs) "
        f"on {len(outcomes.examples):,} examples for {len(tiers)} tolerances",
        f"{method} takes about {duration(expected_s)}; nothing was written",
    )
