"""``slotool gen-rules``: tolerance tiers from an outcome table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json, Out, Seed, panel, parse_numbers, plots_folder

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
            help="relative: share of the best version's error; absolute: points of error (0.01 = 1 point); "
            "quantile: share of requests worse by more than --loss-limit.",
        ),
    ] = "relative",
    loss_limit: Annotated[
        float, _method("--loss-limit", help="Of quantile: how far above the best version's an error may lie.")
    ] = 0.0,
    method: Annotated[
        str, _method("--method", help="certified (proven), bootstrap (the paper's) or naive (best single version).")
    ] = "certified",
    confidence: Annotated[
        float, _method("--confidence", help="Probability that no tier exceeds its tolerance.")
    ] = 0.999,
    best: Annotated[
        str | None,
        _method(
            "--best",
            help="Version to compare with.",
            show_default="the truly best one",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        _method("--max-error", help="Upper limit of an error.", show_default="1, or the largest"),
    ] = None,
    group: Annotated[str | None, _method("--group", help="Column: tolerances hold for each value.")] = None,
    objective: Annotated[str, _ensembles("--objective", help="response-time, cost or both.")] = "both",
    policies: Annotated[str, _ensembles("--policies", help="Some of osfa,seq,conc,cascade.")] = "osfa,seq,conc,cascade",
    thresholds: Annotated[int, _ensembles("--thresholds", min=1, help="Thresholds to try per pair.")] = 50,
    price: Annotated[
        list[str] | None,
        _ensembles("--price", help="Price per second: a number, or VERSION=PRICE,…", show_default="machine time"),
    ] = None,
    prices: Annotated[
        Path | None, _ensembles("--prices", help="Price of a call: a list as of import-outcomes; in place of --price.")
    ] = None,
    budgets: Annotated[
        str, _ensembles("--budgets", help="Costs of a request: name the strictest tier within each.")
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
    """Find the cheapest ensemble that keeps each tolerance.

    Example: slotool gen-rules family-outcomes.parquet -o rules.json --tolerance-kind absolute --explain
    """
    from slotool.api.gen_rules import estimate_rules
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output

    refuse_existing(out, force)
    if method == "naive":
        refuse_without_effect(("confidence", "policies", "thresholds", "seed"), "with --method naive")
    if dry_run:
        refuse_without_effect(("explain", "plots", "price", "prices", "budgets"), "with --dry-run")
    if tolerance_kind != "quantile":
        refuse_without_effect(("loss_limit",), f"with --tolerance-kind {tolerance_kind}")
    common: dict[str, Any] = {
        "tolerances": parse_numbers(tolerances, "--tolerances"),
        "method": method,
        "policies": policies,
        "thresholds": thresholds,
        "max_error": max_error,
    }
    output = Output(as_json=json)
    if dry_run:
        output.show(estimate_rules(outcomes, **common))
        return
    found = slotool.gen_rules(
        outcomes,
        out,
        **common,
        tolerance_kind=tolerance_kind,  # type: ignore[arg-type]  # checked there
        loss_limit=loss_limit,
        confidence=confidence,
        best=best,
        objective=objective,
        group=group,
        price=_price(price or []),
        prices=prices,
        budgets=parse_numbers(budgets, "--budgets") if budgets else (),
        explain=explain,
        plots=plots,
        seed=seed,
        force=force,
        progress=output,
    )
    output.show(found)


def _price(given: list[str]) -> float | dict[str, float] | None:
    """``0.02`` for every version or ``small=0.01,large=0.04``; None where none is given."""
    if not given:
        return None
    if len(given) > 1 and (alike := [own for own in given if "=" not in own]):
        raise typer.BadParameter(
            f"{alike[0]} is a price of every version, and another one is given; give one number, or VERSION=PRICE for "
            "each version",
            param_hint="--price",
        )
    text = ",".join(given)
    try:
        if "=" not in text:
            return float(text)
        # Names of versions may hold "=" and "," themselves (k=0.5), so the price is what follows the last "=".
        pairs = [
            (version.strip(), float(price)) for version, _, price in (part.rpartition("=") for part in text.split(","))
        ]
        prices = dict(pairs)
        if "" in prices:
            raise ValueError
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor VERSION=PRICE,…", param_hint="--price") from None
    if len(prices) < len(pairs):
        twice = next(version for version, _ in pairs if [name for name, _ in pairs].count(version) > 1)
        raise typer.BadParameter(f"{twice} has two prices; give one", param_hint="--price")
    return prices
