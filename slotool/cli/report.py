"""``slotool report``: one self-contained page, and the same plots as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotool.cli.options import Force, Json, Out

# Files that are named as not drawn; the others are counted.
MAX_NOT_DRAWN = 5


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
    from slotool.cli.output import Output, table
    from slotool.extras import require
    from slotool.reports import collect, write_report
    from slotool.reports.report import plots_folder, refuse_report

    output = Output(as_json=json)
    require("matplotlib", "plotly", needed_by="a report")
    refuse_report(out, force)
    found = collect(paths)
    with output.progress("drawing") as progress:
        figures = write_report(found, out, title=title, force=force, progress=progress.advance)
    folder = plots_folder(out)
    document = {
        "report": str(out),
        "bytes": out.stat().st_size,
        "plots": [
            {"id": f.id, "title": f.title, "png": str(folder / f"{f.id}.png"), "source": f.source, "caption": f.caption}
            for f in figures
        ],
        "figures": {what: value for figure in figures for what, value in figure.headlines},
        "not_drawn": {str(path): what for path, what in found.unused},
    }
    rows = [[figure.title, figure.source] for figure in figures]
    closing = f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB, works offline) and {len(figures)} PNG in {folder}"
    output.result("report", document, table("Drawn", ["plot", "from"], rows), closing)
    if found.unused:
        named = [f"{path} ({what})" for path, what in found.unused[:MAX_NOT_DRAWN]]
        more = len(found.unused) - len(named)
        output.note("not drawn: " + ", ".join(named) + (f", and {more} more (--json names all)" if more else ""))
