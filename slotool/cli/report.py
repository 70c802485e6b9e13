"""``slotool report``: one self-contained page, and the same plots as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Out


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Tables, rules, plans, artifacts, and folders of them.")
    ],
    out: Out = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="The page's heading.")] = "slotool report",
    force: Force = False,
    json: Json = False,
) -> None:
    """Plot everything found as one page.

    That is measured and predicted latency, studies of predictors, accuracy against k and latency, tolerance tiers,
    switching plans, served latency, slow-down and deadlines kept under co-location. The page is one self-contained file
    that works offline; the same plots lie as PNG in a folder next to it.

    Example: slotool report . -o report.html

    Example: slotool report requests.parquet outcomes.parquet -o load.html --title "Load test"
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    output.show(slotool.report(paths, out, title=title, force=force, progress=output))
