"""The entry point: wires the subcommands, and is the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Annotated, Any

import typer

import slotool
from slotool import __version__, factories
from slotool.cli import (
    adapt_predictor,
    build_tables,
    calibrate,
    capture,
    choose_points,
    compare_predictors,
    demo,
    evaluate,
    evaluate_colocated,
    family,
    gen_rules,
    gen_switching_plan,
    generate,
    import_outcomes,
    interrupts,
    loadtest,
    plan,
    predict,
    predict_points,
    profile,
    serve,
    simulate,
    terminal,
    train,
    train_colocation_predictor,
    train_predictor,
    update_tables,
)
from slotool.cli.commands import EXAMPLE, HELP_COLUMNS, Command, Group, keeping_inputs
from slotool.cli.failures import INTERRUPTED, report_failure
from slotool.cli.from_signature import add_command
from slotool.process import end_without_collecting

SUMMARY = "Measure and predict latency of networks; serve them within deadlines and error tolerances."

FIRST_STEP = "slotool predict --keras ResNet50 --co-runners VGG16 --slo 100ms"

# Functions that are commands, and files that register commands of their own, by theme, in the order of use.
THEMES: Mapping[str, tuple[ModuleType | str, ...]] = {
    "Start": (demo, "doctor"),
    "Measure and predict": (
        generate,
        capture,
        profile,
        train_predictor,
        train_colocation_predictor,
        adapt_predictor,
        "evaluate_predictor",
        compare_predictors,
        calibrate,
        predict,
    ),
    "SLO-NN and supernets": (
        train,
        build_tables,
        update_tables,
        choose_points,
        evaluate,
        evaluate_colocated,
        predict_points,
    ),
    "Rules, plans and serving": (
        family,
        import_outcomes,
        gen_rules,
        gen_switching_plan,
        "evaluate_rules",
        "evaluate_drift",
        "export_rules",
        plan,
        simulate,
        serve,
        loadtest,
        "report",
    ),
}


def _application() -> typer.Typer:
    app = typer.Typer(
        name="slotool",
        cls=Group,
        help=f"{SUMMARY}\n\n{EXAMPLE}{FIRST_STEP}",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    )
    for theme, files in THEMES.items():
        for file in files:
            own = typer.Typer()
            if isinstance(file, str):
                add_command(own, getattr(slotool, file))
            else:
                file.register(own)
            _dress(own, theme)
            app.registered_commands += own.registered_commands
            app.registered_groups += own.registered_groups
    return app


def _dress(group: typer.Typer, theme: str | None = None) -> None:
    """Give every command of ``group`` the help, the options and the check of outputs that all commands share."""
    for command in group.registered_commands:
        command.cls, command.rich_help_panel = Command, theme
        if command.callback is not None:
            command.callback = keeping_inputs(command.callback)
    for info in group.registered_groups:
        info.cls, info.rich_help_panel = Group, theme
        if info.typer_instance is not None:
            _dress(info.typer_instance)


app = _application()


@cache
def _command() -> Any:
    """The parser of ``app``, made once for all calls of a process: it takes 50 ms."""
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"slotool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results, warnings and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the stack trace of an error.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print no moving progress bar.")] = False,
    color: Annotated[str, typer.Option("--color", help="When to print colours: auto, always or never.")] = "auto",
    allow_code: Annotated[bool, typer.Option("--allow-code", hidden=True)] = False,
) -> None:
    if allow_code:
        factories.allow_code()
    terminal.change(quiet=quiet, verbose=verbose, no_progress=no_progress, color=color)


def main() -> None:
    """Run the command line; every way out has a documented exit code and no traceback."""
    interrupts.install()
    end_without_collecting()
    try:
        _command()(prog_name="slotool")
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
