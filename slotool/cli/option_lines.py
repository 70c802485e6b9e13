"""A command's arguments and options as lines of its help: name and kind of value, meaning, default."""

from __future__ import annotations

from typing import Any

# By what typer calls a kind of value, in its versions; a name of its own in the help is kept.
_VALUES = {"path": "PATH", "file": "PATH", "str": "TEXT", "text": "TEXT"}
_VALUES |= {"int": "N", "integer": "N", "float": "X", "any": "X"}


def option_line(param: Any, ctx: Any) -> tuple[str, str] | None:
    """Left and right column of ``param``; None where it is hidden.

    typer's own would also state types and ranges, which the reference lists and a refused value is answered with: at
    80 columns they make two lines of each option.
    """
    record = param.get_help_record(ctx)
    if record is None:
        return None
    if param.param_type_name == "argument":
        name = record[0].partition(" <")[0]
    else:
        name = " / ".join(", ".join(sorted(opts, key=len)) for opts in (param.opts, param.secondary_opts) if opts)
        name += _value(param, record[0].rpartition("--")[2].partition(" ")[2])
    default = "required" if param.required and param.param_type_name == "option" else _default(param)
    return name, (param.help or "") + (f" [{default}]" if default else "")


def _value(param: Any, stated: str) -> str:
    if param.is_flag:
        return ""
    if param.metavar:
        return f" {param.metavar}"
    kind = stated.strip("<>[]").removesuffix("...").removeprefix("list[").lower().removesuffix(" range")
    return f" {_VALUES.get(kind, kind)}" + ("…" if param.multiple else "")


def _default(param: Any) -> str:
    shown, value = param.show_default, param.default
    if isinstance(shown, str):
        return shown
    if not shown or value is None or callable(value) or getattr(param, "is_flag", False) or value in ([], ()):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
