"""The command line as one page, from what typer knows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from slotool.cli.app import command as command_line

_INTRODUCTION = r"""# Command line

Every command prints tables for people, or one JSON document with `--json`; progress and remarks go to stderr. Outputs
appear whole or not at all, and are replaced only with `--force`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the verdict is negative (a tier violated, a target missed, a strict campaign unstable), or some networks failed |
| 2 | the usage or an input is wrong; one sentence on stderr says what |
| 3 | the run failed |
| 4 | a verdict on measured times is open, mostly as other work disturbed the machine; outputs are written |
| 124 | a time limit passed |
| 130 | interrupted (Ctrl-C) |

| option of every command | meaning |
|---|---|
| `--config FILE.toml` | take options from a TOML file, `max-error = 0.5`; the command line goes before it |
| `--quiet` | print results, warnings and errors only |
| `--verbose` | print the stack trace of an error |
| `--no-progress` | print no moving progress bar |
| `--color auto\|always\|never` | when to print colours |
| `--allow-code` | run Python code that an artifact names, such as a version given as `module:factory` |

| environment variable | meaning |
|---|---|
| `SLOTOOL_DATA_DIR` | folder with data sets beyond the digits that come with scikit-learn |
| `SLOTOOL_CACHE_DIR` | folder of times of operators, in place of `slotool` in `$XDG_CACHE_HOME` or `~/.cache` |
| `SLOTOOL_TOKEN` | token that `serve` asks of clients, and that `loadtest` shows |
| `SLOTOOL_CLIENT_CERTIFICATE` | PEM file of the certificate and key that `loadtest` shows |
| `SLOTOOL_REMOTE_TOKENS` | variables with tokens of servers that are called: `host:8000=MY_TOKEN` |
| `SLOTOOL_EAGER` | set to 1, work on GPUs is launched kernel by kernel, not as CUDA graphs |
| `SLOTOOL_POWERCAP` | folder of energy counters, in place of `/sys/class/powercap` |
| `SLOTOOL_ALLOW_CODE` | set to 1, as `--allow-code` |
| `SLOTOOL_DEBUG` | set to 1, errors come with a traceback |
"""


def page() -> str:
    """Return the page: a section per command, with its help, usage and options."""
    root: Any = command_line()
    return "\n".join([_INTRODUCTION, *(_section(path, command) for path, command in _leaves("slotool", root))])


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield path, command
    for name, part in (below or {}).items():
        yield from _leaves(f"{path} {name}", part)


def _section(path: str, command: Any) -> str:
    words: list[str] = []
    examples: list[str] = []
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        joined = " ".join(paragraph.split())
        (examples if joined.startswith("Example:") else words).append(joined.removeprefix("Example: "))
    lines = [f"## {path}", "", *(part for word in words for part in (_escaped(word), ""))]
    if examples:
        lines += ["```bash", *examples, "```", ""]
    lines += ["| argument or option | value | default | meaning |", "|---|---|---|---|"]
    lines += [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    return "\n".join([*lines, ""])


def _row(parameter: Any) -> str:
    flag = bool(getattr(parameter, "is_flag", False))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = "required" if parameter.required else _default(parameter, flag)
    meaning = _escaped(getattr(parameter, "help", None) or "")
    return f"| {names} | {'' if flag else _value(parameter)} | {default} | {meaning} |"


def _value(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    (element,) = get_args(annotation) or (annotation,)
    word = {"str": "text", "int": "whole number", "float": "number"}.get(element.__name__, element.__name__.lower())
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    bounds = "" if low is None else f" ≥ {low:g}"
    bounds += "" if high is None else f" ≤ {high:g}"
    return str(word + bounds) + (", repeatable" if parameter.multiple or parameter.nargs == -1 else "")


def _default(parameter: Any, flag: bool) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return _escaped(shown)
    value = parameter.default
    return "" if flag or value is None or callable(value) or value in ([], ()) else f"`{value}`"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
