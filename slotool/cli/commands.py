"""What every command has: how its help reads, options for the terminal, and options read from a file."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from slotool import factories
from slotool.cli import terminal
from slotool.cli.docstrings import EXAMPLE
from slotool.cli.option_lines import option_line
from slotool.cli.plugin_names import plugins_of
from slotool.cli.wrong_values import plain
from slotool.commands.arguments import naming_options
from slotool.errors import ArgumentError
from slotool.regular_files import read_text
from slotool.suggestions import did_you_mean

HELP_COLUMNS = 100
EVERYWHERE = "--config FILE.toml, --quiet, --verbose, --no-progress, --color WHEN, --allow-code."
# Options that most commands have and that say the same in each: what the last lines of the help call them. Whoever
# reads those has found --help.
_USUAL = {"force": "--force (replace output)", "json": "--json"}
_OTHERS = "Options"
# A longer name pushes only its own sentence to the right, so that those of other commands stay whole at 80 columns.
_NAME_COLUMNS = 20
# Between the lines of a command that goes on.
_CONTINUED = " \\\n"
_OF_THE_TERMINAL = ("quiet", "verbose", "no_progress", "color", "install_completion", "show_completion")
STATED = ("COMMANDLINE", "DEFAULT_MAP")
_CONFIG_PATH = "slotool.config"
# Keys of a file that list tables.
LISTS_OF_TABLES = ("models", "clients")
# Functions take seconds; options take them with a unit.
_UNIT = re.compile(r"_(s|ms|gb)$")

# What TOML calls a value, by what an option makes of it; bool before int, which it is too.
_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    list: "a list",
    dict: "a table",
}

_running: list[typer.Context] = []


class Command(TyperCommand):
    """A command whose help begins with an example and shows its options by theme."""

    def __init__(self, name: str | None, **settings: Any):
        super().__init__(name, **settings)
        self.params += _common_options()

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # as below
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = plain(error.message)
            raise

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own name for it
        _running.append(ctx)
        try:
            with naming_options():
                return super().invoke(ctx)
        except ArgumentError as error:
            option = _option_of(ctx.command, error)
            raise _naming_file(typer.BadParameter(error.problem, ctx=ctx, param_hint=option), ctx) from error
        except typer.BadParameter as error:
            raise _naming_file(error, ctx) from error
        finally:
            _running.pop()

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, examples = parted(self.help or "")
        _write(formatter, examples[:1] + text + examples[1:])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        panels: dict[str, list[Any]] = {"Arguments": arguments, _OTHERS: []}
        for param in self.get_params(ctx):
            if param.param_type_name == "option" and param.name not in (*_USUAL, "help"):
                panels.setdefault(getattr(param, "rich_help_panel", None) or _OTHERS, []).append(param)
        panels[_OTHERS] = panels.pop(_OTHERS)
        for title, params in panels.items():
            lines = [(param, line) for param in params if (line := option_line(param, ctx))]
            if lines:
                with formatter.section(title):
                    formatter.write_dl([(name, said + plugins_of(ctx, param.name)) for param, (name, said) in lines])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        usual = [said for name, said in _USUAL.items() if any(param.name == name for param in self.get_params(ctx))]
        _write(formatter, [f"Defaults are in [brackets]. Also: {', '.join([*usual, EVERYWHERE])}"])


class Group(TyperGroup):
    """Commands by theme, each with its first sentence; ``--version`` at the end, where it takes no lines of its own."""

    successors: Mapping[str, str] = {}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.successors:
            raise typer.BadParameter(f"slotool {cmd_name} is now slotool {self.successors[cmd_name]}", ctx=ctx)
        return super().get_command(ctx, cmd_name)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, examples = parted(self.help or "")
        for command in self.commands.values():
            examples += parted(command.help or "")[1]
        _write(formatter, examples[:1] + text)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = [param for param in self.get_params(ctx) if param.name not in (*_OF_THE_TERMINAL, "help", "version")]
        if records := [record for param in params if (record := param.get_help_record(ctx))]:
            with formatter.section(_OTHERS):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        own = ["--version"] if any(param.name == "version" for param in self.params) else []
        _write(formatter, [f"Also: {', '.join([*own, EVERYWHERE])}"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                text, _ = parted(command.help or "")
                theme = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(theme, []).append((name, _first_sentence(text)))
        names = [name for rows in panels.values() for name, _ in rows if len(name) <= _NAME_COLUMNS]
        widest = max(map(len, names), default=0)
        for title, rows in panels.items():
            with formatter.section(title):
                for name, said in rows:
                    lines = textwrap.wrap(said, formatter.width - widest - 4) or [""]
                    formatter.write(f"  {name:<{widest}}  " + ("\n" + " " * (widest + 4)).join(lines) + "\n")


def parted(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs of a command's help, and its examples."""
    paragraphs = [" ".join(part.split()) for part in textwrap.dedent(text).split("\n\n") if part.strip()]
    examples = [part for part in paragraphs if part.startswith(EXAMPLE)]
    return [part for part in paragraphs if part not in examples], examples


def refuse_without_effect(options: Sequence[str], why: str) -> None:
    """A usage error when one of these options of the running command was given: ``--thresholds has no effect …``.

    Called from Python, where no command runs, nothing was given.
    """
    if not _running:
        return
    ctx = _running[-1]
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in options and source is not None and source.name in STATED:
            raise typer.BadParameter(f"it has no effect {why}; leave it out", param_hint=param.opts[-1])


def _option_of(command: Any, error: ArgumentError) -> str:
    """The option, or the argument, for an argument of the function that the command calls: ``--slo`` for ``slo_s``."""
    name = error.argument
    for param in command.params:
        if param.name in (name, _UNIT.sub("", name), name.removesuffix("s")):  # several prices are a --price each
            return next((str(opt) for opt in param.opts if opt.startswith("--")), name.upper())
    return name


def _naming_file(error: typer.BadParameter, ctx: typer.Context) -> typer.BadParameter:
    """``error``, with file and key where the option that it names was stated in the file of options."""
    option = next((param for param in ctx.command.params if error.param_hint in param.opts), None)
    source = None if option is None else ctx.get_parameter_source(option.name or "")
    if source is None or source.name != "DEFAULT_MAP":
        return error
    key = str(error.param_hint).lstrip("-")
    return typer.BadParameter(f"{ctx.meta[_CONFIG_PATH]}: {key}: {error.message}", ctx=ctx, param_hint="--config")


def config_file() -> Path | None:
    """The file that options of the running command were read from."""
    given = _running[-1].meta.get(_CONFIG_PATH) if _running else None
    return None if given is None else Path(given)


def stated_in(option: str) -> str:
    """Where the running command's option was stated: ``COMMANDLINE``, ``DEFAULT_MAP`` (its file), or elsewhere."""
    source = _running[-1].get_parameter_source(option) if _running else None
    return "" if source is None else str(source.name)


def beside_config(path: Path | None, option: str) -> Path | None:
    """A path that the file of a service states is relative to that file. What is read must exist."""
    file = config_file()
    if path is None or file is None or stated_in(option) != "DEFAULT_MAP":
        return path
    found = file.parent / path
    if option not in ("log", "access_log") and not found.is_file():
        key = option.replace("_", "-")
        raise typer.BadParameter(f"{file}: {key}: there is no file {found}", param_hint="--config")
    return found


def _first_sentence(paragraphs: Sequence[str]) -> str:
    said = paragraphs[0] if paragraphs else ""
    return said.partition(". ")[0].rstrip(".")


def _write(formatter: Any, paragraphs: Sequence[str]) -> None:
    """Paragraphs broken at spaces only; an example is one command that can be copied whole."""
    margin = " " * 2
    for paragraph in paragraphs:
        is_example = paragraph.startswith(EXAMPLE)
        wrapped = textwrap.wrap(
            paragraph,
            formatter.width - (len(_CONTINUED) if is_example else 0),
            initial_indent=margin,
            subsequent_indent=margin * 3 if is_example else margin,
            break_on_hyphens=False,
            break_long_words=False,
        )
        formatter.write_paragraph()
        formatter.write((_CONTINUED if is_example else "\n").join(wrapped) + "\n")


@lru_cache(maxsize=1)
def _common_options() -> list[Any]:
    """The options that each command takes and its help names in one line."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_common)
    params = typer.main.get_command(carrier).params
    for param in params:
        param.expose_value = False
    return list(params)


def _set(param: typer.CallbackParam, value: Any) -> None:
    if value:
        terminal.change(**{str(param.name): value})


def _allow_code(value: bool) -> None:
    if value:
        factories.allow_code()


def _read_config(ctx: typer.Context, value: str | None) -> None:
    """Take what the file says for this command's options; the command line goes before it."""
    if value is None:
        return
    try:
        read = tomllib.loads(read_text(value))
    except FileNotFoundError:
        raise typer.BadParameter(f"{value}: no such file", param_hint="--config") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{value}: cannot be read as TOML ({reason})", param_hint="--config") from None
    ctx.meta[_CONFIG_PATH] = value
    ctx.default_map = {**(ctx.default_map or {}), **_options_in(ctx, read, value)}


def _options_in(ctx: typer.Context, read: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``max-error = 0.5`` by parameter name. Raises for a key that is none of the command's options, and for a value of
    another kind than the option takes."""
    command = ctx.command
    known: dict[str, Any] = {
        opt.lstrip("-"): param for param in command.params if param.name != "config" for opt in param.opts
    }
    found = {}
    for key, value in read.items():
        param = known.get(key.replace("_", "-")) or known.get(key)
        if param is None or isinstance(value, dict):
            problem = f"is no option of {command.name}{did_you_mean(key, known)}"
            if isinstance(value, dict):
                problem = "is a table; write options at the top, without a [table]"
                if key in LISTS_OF_TABLES:
                    problem = f"is one table; list them, each as [[{key}]]"
            raise typer.BadParameter(f"{where}: {key!r} {problem}", param_hint="--config")
        several = param.nargs != 1 or getattr(param, "multiple", False)
        found[param.name] = [value] if several and not isinstance(value, list) else value
        try:
            problem = _other_type(found[param.name], param.process_value(ctx, found[param.name]))
        except typer.BadParameter as error:
            problem = plain(error.message.partition(" for <class")[0])
        if problem:
            raise typer.BadParameter(f"{where}: {key}: {problem}", param_hint="--config") from None
    return found


def _other_type(given: Any, taken: Any) -> str:
    """What is wrong with the type of a value whose option made ``taken`` of it; empty where nothing is.

    Options read text, so that they make a number of the text ``"1"`` and even of ``true``.
    """
    if isinstance(given, list) and isinstance(taken, list | tuple):
        return next(filter(None, map(_other_type, given, taken)), "")
    if taken is None or type(given) is type(taken) or (type(given), type(taken)) == (int, float):
        return ""
    if isinstance(taken, Path) and isinstance(given, str):
        return ""
    return f"{_type_name(taken)} is expected, this is {_type_name(given)}"


def _type_name(value: Any) -> str:
    return next((name for kind, name in _TYPES.items() if isinstance(value, kind)), type(value).__name__)


def _common(
    config: Annotated[str | None, typer.Option(callback=_read_config, is_eager=True, hidden=True)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", callback=_set, hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", callback=_set, hidden=True)] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", callback=_set, hidden=True)] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", callback=_allow_code, hidden=True)] = False,
    color: Annotated[str | None, typer.Option("--color", callback=_set, hidden=True)] = None,
) -> None:
    """Never called: it carries the options that ``_common_options`` gives to every command."""
