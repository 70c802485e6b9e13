"""``slotool reproduce``: tables and figures of the five papers, made here beside what the papers say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.interrupts import explaining
from slotool.cli.options import Force, Json, Out, Seed


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAPER:FIGURE",
            help="Figures, papers, or all; none lists them.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="small takes minutes a paper; paper its own sizes.")] = "small",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder of the papers' sets by name (fashion-mnist, fma, wiki10, amazoncat-13k, delicious-200k), "
            "traces, and outcome tables.",
            show_default="shipped ones",
        ),
    ] = None,
    out: Out = Path("reproduction"),
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make figures of the five papers, beside the papers' own.

    Each figure is made by real commands, which its paper's page lists, with what the paper found, what was found here,
    and why they differ. Interrupted, the same command goes on where it was.

    Example: slotool reproduce superserve:11c

    Example: slotool reproduce tolerance-tiers model-switching --data sets -o pages
    """
    from slotool.cli.output import Output

    if scale not in ("small", "paper"):
        raise typer.BadParameter(f"{scale!r} is neither small nor paper", param_hint="--scale")
    output = Output(as_json=json)
    with explaining(output.note):
        found = slotool.reproduce(
            figures or (),
            out,
            scale="paper" if scale == "paper" else "small",
            data=data,
            seed=seed,
            force=force,
            progress=output,
        )
    output.show(found)
