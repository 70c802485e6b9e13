"""``slotool evaluate-drift``: whether guarantees still hold, from labelled feedback in the order of arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotool.cli.evaluate_rules import Rules
from slotool.cli.options import Json


def register(app: typer.Typer) -> None:
    app.command("evaluate-drift")(evaluate_drift)


def evaluate_drift(
    rules: Rules,
    feedback: Annotated[Path, typer.Argument(help="Outcome table of labelled requests, in the order of arrival.")],
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability of no alarm while all guarantees hold.")
    ] = 0.99,
    json: Json = False,
) -> None:
    """Watch every tier by a sequential test of labelled feedback.

    Exit 1 when the guarantee of one no longer holds.

    Example: slotool evaluate-drift rules.json feedback.parquet
    """
    from slotool.cli.output import Output, table
    from slotool.rules import RuleSet, from_point
    from slotool.rules.drift import watch
    from slotool.tables import OutcomeTable

    if not 0 < confidence < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--confidence")
    output = Output(as_json=json)
    labelled = OutcomeTable.load(feedback)
    watched = watch(RuleSet.load(rules), labelled, confidence)
    alarms = [w for w in watched if w.alarm_at is not None]
    wanted = len(watched) / (1.0 - confidence)
    cells = [
        [
            f"{w.tolerance * 100:g}",
            from_point(w.point).words,
            f"{w.mean_excess * 100:+.3g}",
            f"{w.evidence:.3g}",
            "–" if w.alarm_at is None else f"{w.alarm_at:,}",
        ]
        for w in watched
    ]
    title = f"{len(labelled.examples):,} labelled requests; an alarm needs evidence of {wanted:.4g}"
    columns = ["tolerance, %", "ensemble", "mean excess, points", "evidence", "alarm at request"]
    document = {
        "requests": len(labelled.examples),
        "confidence": confidence,
        "evidence_wanted": wanted,
        "alarms": len(alarms),
        "ensembles": [
            {
                "point": w.point.key,
                "tolerance": w.tolerance,
                "mean_excess": w.mean_excess,
                "evidence": w.evidence,
                "alarm_at": w.alarm_at,
            }
            for w in watched
        ],
    }
    if alarms:
        said = f"{len(alarms)} of {len(watched)} guarantees are violated: make new rules from fresh outcomes"
    else:
        said = "no guarantee is violated" if watched else "the best version serves every tier: nothing to watch"
    output.result("evaluate-drift", document, *([table(title, columns, cells)] if watched else []), said)
    if alarms:
        raise typer.Exit(1)
