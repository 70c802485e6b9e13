"""``python -m benchmarks.reproduction``: tables and figures of the five papers, made here beside the papers' own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.reproduction.reproduce import reproduce
from slotool.cli.failures import report_failure
from slotool.cli.output import Output
from slotool.errors import SlotoolError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    figures: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAPER:FIGURE", help="Figures, papers, or all; none lists them.", show_default=False),
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
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("reproduction"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Make figures of the five papers by commands of slotool, beside the papers' own.

    Each paper's page lists the commands, the paper's finding, the finding here, and why they differ. Interrupted, the
    same command goes on where it was.
    """
    if scale not in ("small", "paper"):
        raise typer.BadParameter(f"{scale!r} is neither small nor paper", param_hint="--scale")
    output = Output(as_json=json)
    output.show(
        reproduce(
            figures or (),
            out,
            scale="paper" if scale == "paper" else "small",
            data=data,
            seed=seed,
            force=force,
            progress=output,
        )
    )


if __name__ == "__main__":
    try:
        app()
    except SlotoolError as error:
        sys.exit(report_failure(error))
