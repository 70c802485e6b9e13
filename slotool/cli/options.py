"""Options of commands that are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="File or folder to write.")]
