"""The entry point: wires the subcommands, and is the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import slotool
from slotool import __version__
from slotool.cli import interrupts, terminal
from slotool.cli.commands import HELP_COLUMNS, Command, Group, common_options
from slotool.cli.failures import INTERRUPTED, report_failure
from slotool.cli.from_signature import command_of, commands_of, words_of
from slotool.cli.help import EXAMPLE
from slotool.process import end_without_collecting

SUMMARY = "Measure and predict latency of networks; serve them within deadlines and error tolerances."

# Commands by theme, in the order of use. A command is made of the function of its name when it is used, so that no
# other's module is imported.
THEMES: Mapping[str, tuple[str, ...]] = {
    "Start": ("demo", "doctor"),
    "Measure and predict": (
        *("generate mlp", "generate cnn", "generate architectures", "generate arrivals"),
        "capture",
        *("profile solo", "profile colocated", "profile points"),
        *("train-predictor", "adapt-predictor", "evaluate-predictor"),
        "calibrate",
        "predict",
    ),
    "SLO-NN and supernets": (
        *("train mlp", "train cnn", "train family", "train supernet", "train xmc"),
        *("build-tables", "choose-points"),
        "evaluate",
    ),
    "Rules, plans and serving": (
        *("family", "import-outcomes", "gen-rules", "gen-switching-plan"),
        *("evaluate-rules", "evaluate-drift", "export-rules"),
        "plan",
        "simulate",
        *("serve", "loadtest", "report"),
    ),
}
# Functions with another name than their command.
FUNCTIONS = dict.fromkeys(("generate mlp", "generate cnn", "generate architectures"), "generate_networks")
FUNCTIONS |= {"profile solo": "profile"}
# Functions of commands that Python callers do not have, as module:function.
OF_COMMANDS = {"demo": "slotool.demo:demo"}
# Conversion of a command's options before its function takes them, as module:function.
PREPARED = {"plan": "slotool.cli.plan_models:prepare"}
# Replacement of a command's function, as module:function.
RUN = {"serve": "slotool.cli.serve:run"}
# Words before the name of a command, and their help.
GROUPS = {
    "generate": "Draw random operator graphs, or arrivals of requests.",
    "profile": "Measure latency on this machine.",
    "train": "Train a small network, or a family, on a data set.",
}


class _Commands(UserDict[str, Any]):
    """Commands by name, each made when it is first used."""

    def __getitem__(self, name: str) -> Any:
        if callable(value := self.data[name]) and not isinstance(value, TyperCommand | TyperGroup):
            self.data[name] = value()
        return self.data[name]


def _by_theme() -> _Commands:
    """Return the commands in the order of ``THEMES``."""
    commands = _Commands()
    for theme, members in THEMES.items():
        for member in members:
            *above, name = member.split()
            make = partial(_command, member, None if above else theme)
            if not above:
                commands[name] = make
                continue
            group = commands.setdefault(above[0], _group(above[0], theme))
            group.commands[name] = make
    return commands


def _group(name: str, theme: str) -> Any:
    group = Group(name=name, help=GROUPS[name], no_args_is_help=True, rich_markup_mode=None, rich_help_panel=theme)
    group.commands = _Commands()
    return group


def _command(words: str, theme: str | None) -> Any:
    """Make a command of its function."""
    public = FUNCTIONS.get(words, words.replace(" ", "_").replace("-", "_"))
    function = _resolved(OF_COMMANDS.get(words)) or getattr(slotool, public)
    declared = next(one for one in commands_of(function) if " ".join(words_of(function, one)) == words)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    prepare, run = _resolved(PREPARED.get(words)), _resolved(RUN.get(words))
    callback = command_of(function, declared, prepare, run)
    alone.command(words.rpartition(" ")[2], cls=Command, rich_help_panel=theme)(callback)
    return typer.main.get_command(alone)


def _resolved(path: str | None) -> Any:
    """Return the function of ``module:function``; None of None."""
    if path is None:
        return None
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


app = typer.Typer(
    name="slotool",
    cls=Group,
    help=f"{SUMMARY}\n\n{EXAMPLE}slotool predict --networks resnet50 --threads 1",
    epilog="Next: slotool doctor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
)


@cache
def command() -> Any:
    """Return the parser of the command line, made once for all calls of a process."""
    root: Any = typer.main.get_command(app)
    root.commands = _by_theme()
    root.params += [option for option in common_options() if option.name != "config"]
    return root


def _show_version(value: bool) -> None:
    if value:
        print(f"slotool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options before a command; those of the terminal are the ones that every command has."""


def main() -> None:
    """Run the command line; every way out has a documented exit code and no traceback."""
    interrupts.install()
    end_without_collecting()
    try:
        command()(prog_name="slotool")
    except SystemExit as ending:
        # typer makes one of a KeyboardInterrupt; a command that answers a signal itself ends otherwise.
        if ending.code == INTERRUPTED and interrupts.received():
            sys.exit(interrupts.exit_code())
        raise
    except KeyboardInterrupt as error:
        sys.exit(interrupts.exit_code() if interrupts.received() else report_failure(error))
    except BrokenPipeError as error:
        # The reader of our output is gone (``slotool … | head``): nothing is left to say, and nobody to say it to. An
        # error that it was to read remains one.
        sys.stderr.close()
        sys.exit(getattr(error.__context__, "exit_code", 0))
    except BaseException as error:
        sys.exit(interrupts.exit_code() if interrupts.caused(error) else report_failure(error))
    finally:
        interrupts.forget()
        terminal.reset()
