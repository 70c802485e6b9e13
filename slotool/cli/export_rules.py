"""``slotool export-rules``: routing rules for where slotool does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Out


def register(app: typer.Typer) -> None:
    app.command("export-rules")(export_rules)


def export_rules(
    rules: Annotated[Path, typer.Argument(help="Rules, as gen-rules wrote them.")],
    out: Out,
    to: Annotated[str, typer.Option("--to", help="python: a file without dependencies; or json.")] = "python",
    force: Force = False,
    json: Json = False,
) -> None:
    """Write rules as plain Python or JSON.

    Both make the decisions of the rules, where slotool does not run.

    Example: slotool export-rules rules.json --to python -o router.py
    """
    from slotool.cli.output import Output

    Output(as_json=json).show(slotool.export_rules(rules, out, to=to, force=force))  # type: ignore[arg-type]  # checked there
