"""The entry point: wires the subcommands, and is the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slotool import __version__
from slotool.cli import (
    build_tables,
    capture,
    choose_points,
    compare_predictors,
    demo,
    doctor,
    evaluate,
    evaluate_drift,
    evaluate_rules,
    gen_rules,
    generate,
    interrupts,
    loadtest,
    predict,
    predict_points,
    profile,
    report,
    serve,
    simulate,
    train,
    train_predictor,
    update_tables,
)
from slotool.cli.failures import INTERRUPTED, report_failure

app = typer.Typer(
    name="slotool",
    help="Know how fast a network runs, predict how fast one would run, and serve it so that its promises hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order one walks the road.
for command in (
    doctor,
    demo,
    train,
    generate,
    capture,
    profile,
    train_predictor,
    compare_predictors,
    predict,
    build_tables,
    update_tables,
    choose_points,
    evaluate,
    predict_points,
    gen_rules,
    evaluate_rules,
    evaluate_drift,
    simulate,
    serve,
    loadtest,
    report,
):
    command.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"slotool {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Know how fast a network runs, predict how fast one would run, and serve it so that its promises hold."""


def main() -> None:
    """Run the command line; every way out has a documented exit code and no traceback."""
    interrupts.install()
    try:
        app()
    except SystemExit as ending:
        # typer makes one of a KeyboardInterrupt; a command that answers a signal itself ends otherwise.
        if ending.code == INTERRUPTED and interrupts.received():
            sys.exit(interrupts.exit_code())
        raise
    except KeyboardInterrupt as error:
        sys.exit(interrupts.exit_code() if interrupts.received() else report_failure(error))
    except BrokenPipeError:
        # The reader of our stdout is gone (``slotool … | head``): nothing is left to say, and nobody to say it to.
        sys.stderr.close()
        sys.exit(0)
    except BaseException as error:
        sys.exit(report_failure(error))
    finally:
        interrupts.forget()
