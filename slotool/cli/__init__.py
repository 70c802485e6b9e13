"""The command line: one file per subcommand; the only room that knows typer."""

from slotool.cli.app import main

__all__ = ["main"]
