"""Results of functions: fields and properties of every class that a function of ``slotool`` returns."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import slotool
from slotool.commands.result import Result
from slotool.planning.server_process import RunningServer

_INTRODUCTION = """# Result objects

A function of `slotool` returns one of these. Printing it shows the tables of the command; a notebook shows them as
HTML. Every result except `RunningServer` also has:

| | |
|---|---|
| `frame()` | rows as a pandas frame |
| `document` | the document of `--json`: [keys](json.md) |
| `warnings`, `notes` | sentences that the command prints around its tables |
| `exit_code` | exit code of the command; 1 for a negative verdict |
| `judge()` | raises an error for a negative verdict |

Times are in seconds and end in `_s`. Arrays are NumPy arrays.
"""
# Of every result, or only for its own text.
_COMMON = {"columns", "document", "exit_code", "notes", "parts", "rows_key", "schema", "title", "warnings"}


def page() -> str:
    """Return the page: a section per function with the classes that it returns."""
    return "\n".join([_INTRODUCTION, *(_section(name, kinds) for name, kinds in _returned())])


def _returned() -> Iterator[tuple[str, list[type]]]:
    """Yield the functions that return results, with their classes."""
    functions = [(name, getattr(slotool, name)) for name in slotool.__all__ if name.islower()]
    functions = [(name, function) for name, function in functions if inspect.isfunction(function)]
    classes = {kind.__name__: kind for kind in (*_subclasses(Result), RunningServer)}
    for name, function in functions:
        returned = ast.walk(ast.parse(str(inspect.signature(function).return_annotation)))
        kinds = [classes[node.id] for node in returned if isinstance(node, ast.Name) and node.id in classes]
        if kinds:
            yield name, kinds


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _section(name: str, kinds: list[type]) -> str:
    return "\n".join([f"## slotool.{name}", "", *(_described(kind) for kind in kinds)])


def _described(kind: type) -> str:
    text = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
    own = [name for name in _names(kind) if not name.startswith("_") and name not in _COMMON]
    rows = [f"| `{name}` | {_meaning(kind, name)} |" for name in own]
    return "\n".join([f"**`{kind.__name__}`**: {text}", "", "| attribute | |", "|---|---|", *rows, ""])


def _names(kind: type) -> dict[str, None]:
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else []
    properties = [
        name
        for parent in reversed(kind.__mro__)
        for name, value in vars(parent).items()
        if isinstance(value, property | cached_property)
    ]
    return dict.fromkeys([*names, *properties])


def _meaning(kind: type, name: str) -> str:
    """Return the docstring of a property, or the type of a field."""
    value = inspect.getattr_static(kind, name, None)
    if isinstance(value, property | cached_property):
        return " ".join((inspect.getdoc(value) or "").replace("``", "`").split()).replace("|", r"\|")
    annotations = {
        key: text for parent in reversed(kind.__mro__) for key, text in vars(parent).get("__annotations__", {}).items()
    }
    return f"`{annotations[name]}`".replace("|", r"\|")
