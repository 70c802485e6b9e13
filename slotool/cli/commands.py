"""Common parts of every command: layout of its help, options for the terminal, and options read from a file."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from slotool import factories
from slotool.cli import terminal
from slotool.cli.help import first_sentence, option_line, parted, plugins_of, write_paragraphs
from slotool.cli.options_file import CONFIG_PATH, read_config, stated_options
from slotool.errors import ArgumentError, InputError

HELP_COLUMNS = 100
EVERYWHERE = "--config FILE.toml, --quiet, --verbose, --no-progress, --color WHEN, --allow-code."
# Options that most commands have and that say the same in each: what the last lines of the help call them. Whoever
# reads those has found --help.
_USUAL = {"force": "--force (replace output)", "json": "--json"}
_OTHERS = "Options"
# A longer name pushes only its own sentence to the right, so that those of other commands stay whole at 80 columns.
_NAME_COLUMNS = 20
_OF_THE_TERMINAL = ("quiet", "verbose", "no_progress", "color", "install_completion", "show_completion")
STATED = ("COMMANDLINE", "DEFAULT_MAP")

_running: list[typer.Context] = []


class Command(TyperCommand):
    """A command whose help begins with an example and shows its options by theme."""

    def __init__(self, name: str | None, **settings: Any):
        super().__init__(name, **settings)
        self.params += common_options()

    def parse_args(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]  # typer's own name
        if ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        every = {name: param for param in self.params for name in (*param.opts, *param.secondary_opts)}
        for option, value in pairwise(args):
            # The parser would take the next option for the value.
            if value[:1] == option[:1] == "-" and value in every and not getattr(every.get(option), "is_flag", True):
                raise typer.BadParameter(f"it needs a value, and {value} is an option", ctx=ctx, param_hint=option)
        _, _, parsed = self.make_parser(ctx).parse_args([*args])
        for param, times in Counter(parsed).items():
            if times > 1 and not (getattr(param, "multiple", False) or getattr(param, "is_flag", False)):
                # The parser would take the last one only.
                raise typer.BadParameter("it takes one value, and is given twice", ctx=ctx, param_hint=param.opts[-1])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own name for it
        _running.append(ctx)
        try:
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
        write_paragraphs(formatter, examples[:1] + text + examples[1:])

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
                    formatter.write_dl([(name, text + plugins_of(ctx, param.name)) for param, (name, text) in lines])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        usual = [text for name, text in _USUAL.items() if any(param.name == name for param in self.get_params(ctx))]
        write_paragraphs(formatter, [f"Defaults are in [brackets]. Also: {', '.join([*usual, EVERYWHERE])}"])


class Group(TyperGroup):
    """Commands by theme, each with its first sentence; ``--version`` at the end, where it takes no lines of its own."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, examples = parted(self.help or "")
        for command in self.commands.values():
            examples += parted(command.help or "")[1]
        write_paragraphs(formatter, examples[:1] + text)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = [param for param in self.get_params(ctx) if param.name not in (*_OF_THE_TERMINAL, "help", "version")]
        if records := [record for param in params if (record := param.get_help_record(ctx))]:
            with formatter.section(_OTHERS):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        version_option = ["--version"] if any(param.name == "version" for param in self.params) else []
        write_paragraphs(formatter, [f"Also: {', '.join([*version_option, EVERYWHERE])}", *filter(None, [self.epilog])])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                text, _ = parted(command.help or "")
                theme = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(theme, []).append((name, first_sentence(text)))
        names = [name for rows in panels.values() for name, _ in rows if len(name) <= _NAME_COLUMNS]
        widest = max(map(len, names), default=0)
        for title, rows in panels.items():
            with formatter.section(title):
                for name, sentence in rows:
                    lines = textwrap.wrap(sentence, formatter.width - widest - 4) or [""]
                    formatter.write(f"  {name:<{widest}}  " + ("\n" + " " * (widest + 4)).join(lines) + "\n")


def refuse_without_effect(options: Sequence[str], why: str) -> None:
    """Raise a usage error if one of these options of the running command was given: ``--thresholds has no effect …``.

    No command runs in calls from Python, so that nothing was given.
    """
    if not _running:
        return
    ctx = _running[-1]
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in options and source is not None and source.name in STATED:
            raise typer.BadParameter(f"it has no effect {why}; leave it out", param_hint=param.opts[-1])


def _option_of(command: Any, error: ArgumentError) -> str:
    """Return the option, or the argument, for an argument of the command's function: ``--slo`` for ``slo_s``."""
    name = error.argument
    param = next((param for param in command.params if param.name == name), None)
    if param is None:
        return name
    return next((str(opt) for opt in param.opts if opt.startswith("--")), param.metavar or name.upper())


def _naming_file(error: typer.BadParameter, ctx: typer.Context) -> typer.BadParameter:
    """Return ``error``, with file and key if its option was stated in the file of options."""
    option = next((param for param in ctx.command.params if error.param_hint in param.opts), None)
    source = None if option is None else ctx.get_parameter_source(option.name or "")
    if source is None or source.name != "DEFAULT_MAP":
        return error
    key = str(error.param_hint).lstrip("-")
    return typer.BadParameter(f"{ctx.meta[CONFIG_PATH]}: {key}: {error.message}", ctx=ctx, param_hint="--config")


def config_file() -> Path | None:
    """Return the file that options of the running command were read from."""
    stated = _running[-1].meta.get(CONFIG_PATH) if _running else None
    return None if stated is None else Path(stated)


def require_valid_file() -> None:
    """Read the running command's file of options again. Raises ``InputError`` if a start would reject one."""
    try:
        stated_options(_running[-1], str(config_file()))
    except typer.BadParameter as error:
        raise InputError(error.message) from None


def stated_in(option: str) -> str:
    """Return the source of the running command's option: ``COMMANDLINE``, ``DEFAULT_MAP`` (its file), or another."""
    source = _running[-1].get_parameter_source(option) if _running else None
    return "" if source is None else str(source.name)


def beside_config(path: Path | None, option: str) -> Path | None:
    """Return a path in a service's file as relative to that file. A file to read must exist."""
    file = config_file()
    if path is None or file is None or stated_in(option) != "DEFAULT_MAP":
        return path
    beside = file.parent / path
    if option not in ("log", "access_log") and not beside.is_file():
        key = option.replace("_", "-")
        raise typer.BadParameter(f"{file}: {key}: there is no file {beside}", param_hint="--config")
    return beside


@lru_cache(maxsize=1)
def common_options() -> list[Any]:
    """Return the options that each command takes and its help names in one line."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_common)
    params = typer.main.get_command(carrier).params
    for param in params:
        param.expose_value = False
    return list(params)


def _set(param: typer.CallbackParam, value: Any) -> None:
    # While a command runs, its file is read again only to be checked.
    if value and not _running:
        terminal.change(**{str(param.name): value})


def _allow_code(value: bool) -> None:
    if value and not _running:
        factories.allow_code()


def _common(
    config: Annotated[str | None, typer.Option(callback=read_config, is_eager=True, hidden=True)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", callback=_set, hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", callback=_set, hidden=True)] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", callback=_set, hidden=True)] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", callback=_allow_code, hidden=True)] = False,
    color: Annotated[str | None, typer.Option("--color", callback=_set, hidden=True)] = None,
) -> None:
    """Never called: it carries the options that ``common_options`` gives to every command."""
