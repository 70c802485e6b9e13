"""Options of a command that a TOML file states; the command line goes before it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from slotool.printable import did_you_mean
from slotool.regular_files import read_text

CONFIG_PATH = "slotool.config"
# Keys of a file that list tables.
LISTS_OF_TABLES = ("models", "clients")
# TOML's names of values by type of the option; bool before int, its base.
_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    list: "a list",
    dict: "a table",
}


def read_config(ctx: typer.Context, value: str | None) -> None:
    """Take options of this command from the file; options on the command line take precedence."""
    if value is not None:
        ctx.default_map = {**(ctx.default_map or {}), **stated_options(ctx, value)}
        ctx.meta[CONFIG_PATH] = value


def stated_options(ctx: typer.Context, value: str) -> dict[str, Any]:
    """Return the options that the file states, by parameter name. Raises ``typer.BadParameter`` for an invalid one."""
    try:
        read = tomllib.loads(read_text(value))
    except FileNotFoundError:
        raise typer.BadParameter(f"{value}: no such file", param_hint="--config") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{value}: cannot be read as TOML ({reason})", param_hint="--config") from None
    return _options_in(ctx, read, value)


def _options_in(ctx: typer.Context, read: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``max-error = 0.5`` by parameter name."""
    command = ctx.command
    params: dict[str, Any] = {
        opt.lstrip("-"): param for param in command.params if param.name != "config" for opt in param.opts
    }
    values = {}
    for key, value in read.items():
        param = params.get(key.replace("_", "-")) or params.get(key)
        if param is None or isinstance(value, dict):
            problem = f"is no option of {command.name}{did_you_mean(key, params)}"
            if isinstance(value, dict):
                problem = "is a table; write options at the top, without a [table]"
                if key in LISTS_OF_TABLES:
                    problem = f"is one table; list them, each as [[{key}]]"
            raise typer.BadParameter(f"{where}: {key!r} {problem}", param_hint="--config")
        several = param.nargs != 1 or getattr(param, "multiple", False)
        values[param.name] = [value] if several and not isinstance(value, list) else value
        try:
            problem = _other_type(values[param.name], param.process_value(ctx, values[param.name]))
        except typer.BadParameter as error:
            problem = error.message.partition(" for <class")[0]
        if problem:
            raise typer.BadParameter(f"{where}: {key}: {problem}", param_hint="--config") from None
    return values


def _other_type(value: Any, converted: Any) -> str:
    """Return the fault of a value's type, whose option made ``converted`` of it; empty where there is none.

    Options read text, so that they make a number of the text ``"1"`` and even of ``true``.
    """
    if isinstance(value, list) and isinstance(converted, list | tuple):
        return next(filter(None, map(_other_type, value, converted)), "")
    if converted is None or type(value) is type(converted) or (type(value), type(converted)) == (int, float):
        return ""
    if isinstance(converted, Path) and isinstance(value, str):
        return ""
    return f"{_type_name(converted)} is expected, this is {_type_name(value)}"


def _type_name(value: Any) -> str:
    return next((name for kind, name in _TYPES.items() if isinstance(value, kind)), type(value).__name__)
