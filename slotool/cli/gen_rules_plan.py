"""What ``gen-rules`` would do and for how long, and what a version's second costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.tables import OutcomeTable


def price_of(table: OutcomeTable, text: str) -> OutcomeTable:
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


def dry_run_plan(
    output: Output,
    outcomes: OutcomeTable,
    tiers: list[float],
    method: str,
    policies: list[str],
    thresholds: int,
    max_error: float,
) -> None:
    """Print the number of candidates and about how long the method takes, from one timed replay of the table."""
    import time

    from slotool.cli.output import duration
    from slotool.errors import InputError
    from slotool.rules import METHODS, Problem
    from slotool.rules.generator import check_table

    if method not in METHODS:
        raise InputError(f"no method {method!r}; there are {', '.join(METHODS)}")
    check_table(outcomes, policies, max_error)
    candidates = Problem(outcomes, tiers, policies=tuple(policies), thresholds=thresholds).candidates()
    candidates.means()  # compiles
    started = time.perf_counter()
    candidates.means()
    predicted_s = METHODS[method].passes * (time.perf_counter() - started)
    document = {
        "examples": len(outcomes.examples),
        "versions": outcomes.versions,
        "pairs": len(candidates.paths),
        "candidates": len(candidates),
        "tolerances": len(tiers),
        "method": method,
        "predicted_s": predicted_s,
    }
    output.result(
        "gen-rules-plan",
        document,
        f"{len(candidates):,} candidates ({len(candidates.alone)} versions, {len(candidates.paths)} ordered pairs) "
        f"on {len(outcomes.examples):,} examples for {len(tiers)} tolerances",
        f"{method} takes about {duration(predicted_s)}; nothing was written",
    )
