"""Help of commands: text and entries of docstrings, options as lines, and paragraphs broken at spaces."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Beginning of a paragraph that is a command to copy.
EXAMPLE = "Example: "
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ", re.MULTILINE)
_CODE = re.compile(r'``"?(.*?)"?``', re.DOTALL)
# Paragraphs that name papers are for readers of the code.
_SOURCES = ("Source: ", "Sources: ")

# First sentence of an entry, and what the function does without the parameter.
_DEFAULT = re.compile(r"^(.*?);? None: (.*?)\.?$")
# Our names by typer's names of kinds of values, in its versions; other names in the help stay.
_VALUES = {"path": "PATH", "file": "PATH", "str": "TEXT", "text": "TEXT"}
_VALUES |= {"int": "N", "integer": "N", "float": "X", "any": "X"}
# Between the lines of a command that goes on.
_CONTINUED = " \\\n"
# Parameters, as COMMAND.PARAMETER, whose values are plugins, by group of plugins.
PARAMETERS = {
    "models": ["family.versions"],
    "datasets": [
        *("train mlp.data", "train family.data", "train xmc.data", "train supernet.data", "family.data"),
        *("build-tables.data", "choose-points.data", "evaluate.data"),
        *("profile points.data", "loadtest.data", "gen-switching-plan.data", "plan.data"),
    ],
    "predictors": ["train-predictor.model"],
    "policies": ["simulate.policies", "serve.policy"],
    "rankers": ["build-tables.ranker"],
    "rule_generators": ["gen-rules.method"],
    "backends": ["profile solo.backend", "profile colocated.backend"],
    "engines": ["serve.engine"],
}


@dataclass(frozen=True)
class Entry:
    """Parameter in ``Args``: its first sentence, and what None means where that is stated."""

    help: str
    none: str = ""


@dataclass(frozen=True)
class Docstring:
    """Text above the sections, and the entries of ``Args`` by parameter."""

    text: str
    entries: dict[str, Entry]


def read_docstring(function: Callable[..., Any], rename: Callable[[str], str]) -> Docstring:
    """Return the docstring of ``function``, with ``rename`` applied to text between double backticks."""
    parts = _SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    def shown(text: str) -> str:
        return _CODE.sub(lambda match: rename(" ".join(match[1].split())), text)

    names_and_texts = _ENTRY.split(sections.get("Args", ""))[1:]
    entries = {
        name: _entry(shown(" ".join(text.split())))
        for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
    }
    paragraphs = [part for part in parts[0].strip().split("\n\n") if not part.startswith(_SOURCES)]
    return Docstring(shown("\n\n".join(paragraphs)), entries)


def _entry(text: str) -> Entry:
    sentence = text.partition(". ")[0].rstrip(".")
    if match := _DEFAULT.match(sentence):
        return Entry(f"{match[1]}.", match[2])
    return Entry(f"{sentence}.")


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


def plugins_of(ctx: Any, parameter: str | None) -> str:
    """Return a sentence with plugins' names for a parameter of the command; empty without any."""
    from slotool.errors import PluginError
    from slotool.plugins import installed

    path = f"{' '.join(_names(ctx))}.{parameter}"
    groups = [group for group, parameters in PARAMETERS.items() if path in parameters]
    try:
        names = sorted({plugin.name for group in groups for plugin in installed(group)})
    except PluginError:  # help is read most where something is broken
        return ""
    return f" Of plugins: {', '.join(names)}." if names else ""


def _names(ctx: Any) -> list[str]:
    """Return the names of a subcommand and of the groups around it, without the program."""
    return [] if ctx.parent is None else [*_names(ctx.parent), ctx.info_name]


def parted(text: str) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a command's help, and its examples."""
    paragraphs = [" ".join(part.split()) for part in textwrap.dedent(text).split("\n\n") if part.strip()]
    examples = [part for part in paragraphs if part.startswith(EXAMPLE)]
    return [part for part in paragraphs if part not in examples], examples


def first_sentence(paragraphs: Sequence[str]) -> str:
    first = paragraphs[0] if paragraphs else ""
    return first.partition(". ")[0].rstrip(".")


def write_paragraphs(formatter: Any, paragraphs: Sequence[str]) -> None:
    """Write paragraphs broken at spaces only; an example is one command that can be copied whole."""
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
