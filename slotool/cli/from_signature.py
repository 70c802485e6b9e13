"""Commands made of typed functions: signature and Google-style ``Args`` are the only declaration of a parameter.

A parameter without default before ``*`` is a positional argument, every other one an option of the same name; the
first sentence of its entry in ``Args`` is its help, and ``None: …`` at the end of that its default. Types decide how
texts are read: a path, a flag, choices, ``0:0.1:0.01`` for several numbers, a comma list, repeatable NAME=VALUE, a
duration for seconds. ``slotool.api.command_line`` declares what differs from that.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

import slotool
from slotool.api import values
from slotool.api.command_line import CommandLine
from slotool.cli.docstrings import Docstring, read_docstring

DATA_OPTIONS = ("label", "input", "images")


@dataclass(frozen=True)
class Reading:
    """How the command line reads a parameter: type for typer, and what makes the function's value of it."""

    kind: Any
    convert: Callable[[Any], Any] | None = None
    metavar: str | None = None
    low: float | None = None
    high: float | None = None


class _Named(type):
    """Class of classes that only type checkers import."""

    def __getattr__(cls, name: str) -> type:
        return _Named(name, (), {}) if not name.startswith("__") else type.__getattribute__(cls, name)


class _Scope(dict[str, Any]):
    """Names in the annotations of a function; what its module does not import at run time is a class of that name."""

    def __init__(self, module: Mapping[str, Any]):
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        if name in self._module:
            return self._module[name]
        return getattr(builtins, name, None) or _Named(name, (), {})


def add_command(app: typer.Typer, function: Callable[..., Any], declared: CommandLine | None = None) -> None:
    """Register ``function`` as a command of ``app``, under its own name unless it declares another one."""
    declared = declared or declared_of(function)
    name = (declared.path or inspect.unwrap(function).__name__.replace("_", "-")).rpartition(" ")[2]
    app.command(name)(_Builder(function, declared).callback())


def declared_of(function: Callable[..., Any]) -> CommandLine:
    """Return what ``function`` declares of its command."""
    return getattr(function, "command_line", CommandLine())


class _Builder:
    def __init__(self, function: Callable[..., Any], declared: CommandLine):
        self._function, self._declared = function, declared
        left_out = {*declared.python_only, *declared.fixed}
        self._parameters = {
            name: parameter
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in left_out
        }
        self._scope = _Scope(inspect.unwrap(function).__globals__)
        self._text: Docstring = read_docstring(function, self._shown)
        self._titles = {name: title for title, names in declared.panels.items() for name in names}
        self._readings: dict[str, Reading] = {}

    def callback(self) -> Callable[..., None]:
        """The function that typer calls, with a parameter for each option."""
        parameters = [one for name in self._parameters for one in self._options_of(name)]
        parameters.append(_option("json", bool, False, "--json", help="Print one JSON document instead of tables."))

        def run(**given: Any) -> None:
            self._run(given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__doc__, run.writes = self._text.text, getattr(self._function, "writes", ())  # type: ignore[attr-defined]
        return run

    def _run(self, given: dict[str, Any]) -> None:
        from slotool.cli import interrupts
        from slotool.cli.commands import refuse_without_effect
        from slotool.cli.output import Output

        output = Output(as_json=given.pop("json"))
        for name, other in self._declared.needs.items():
            if given.get(other) in (None, False, []):
                refuse_without_effect((name,), f"without {self._option(other)}")
        call = {**self._declared.fixed, **self._converted(given)}
        if "progress" in self._parameters:
            call["progress"] = output
        if self._declared.resumes:
            with interrupts.explaining(output.note):
                result = self._function(**call)
        else:
            result = self._function(**call)
        output.show(result)
        result.judge()
        if result.exit_code:
            raise typer.Exit(result.exit_code)

    def _converted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the function, by parameter."""
        call: dict[str, Any] = {}
        for name, reading in self._readings.items():
            value = given[name]
            if reading.kind == "data":
                call[name] = self._source(name, given)
            elif value is None or value == []:
                call[name] = self._default(name)
            elif reading.convert is None:
                call[name] = value
            else:
                try:
                    call[name] = reading.convert(value)
                except ValueError as error:
                    raise typer.BadParameter(str(error), param_hint=self._option(name)) from error
        return call

    def _source(self, name: str, given: Mapping[str, Any]) -> Any:
        from slotool.cli.options import data_source, optional_source

        described = given["label"], given["input"], given["images"]
        text = given[name]
        if text is None or text == "":
            source = optional_source(None, *described)
            return self._default(name) if source is None else source
        return data_source(text, *described)

    def _default(self, name: str) -> Any:
        default = self._parameters[name].default
        return None if default is inspect.Parameter.empty else default

    def _option(self, name: str) -> str:
        """How the command line calls a parameter."""
        if name in self._arguments():
            return name.upper()
        stated = self._declared.names.get(name)
        return stated.split()[0] if stated else f"--{name.removesuffix('_s').replace('_', '-')}"

    def _arguments(self) -> Sequence[str]:
        if self._declared.arguments is not None:
            return self._declared.arguments
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [
            name
            for name, one in self._parameters.items()
            if one.kind is positional and one.default is inspect.Parameter.empty
        ]

    def _shown(self, code: str) -> str:
        """What the help shows for text in double backticks: an option for a parameter, a command for a function."""
        name, equals, value = code.partition("=")
        if name in self._parameters:
            option = self._option(name)
            return option if not equals or value == "True" else f"{option} {value}"
        bare = code.removeprefix("slotool.").removesuffix("()")
        return bare.replace("_", "-") if bare in slotool.__all__ else code

    def _options_of(self, name: str) -> Iterator[inspect.Parameter]:
        """What typer is to know of a parameter of the function: nothing of ``progress``, four options of a data set."""
        reading = self._reading(name)
        if reading is None:
            return
        self._readings[name] = reading
        entry = self._text.entries[name]
        default = self._parameters[name].default
        required = default is inspect.Parameter.empty or name in self._declared.required
        settings: dict[str, Any] = {
            "help": entry.help,
            "metavar": self._declared.metavars.get(name, reading.metavar),
            "show_default": entry.none or _stated(default, reading) or False,
        }
        if reading.kind is bool:
            settings["metavar"] = None
        if reading.low is not None:
            settings["min"] = reading.low
        if reading.high is not None:
            settings["max"] = reading.high
        kind: Any = str if reading.kind == "data" else reading.kind
        if kind is Any:
            settings["parser"] = _as_it_is
        if name in self._arguments():
            yield _parameter(name, kind, required, None, typer.Argument(**settings))
            return
        settings |= {"rich_help_panel": self._titles.get(name), "hidden": name in self._declared.hidden}
        plain_default = default if kind in (bool, int, float, str) and not required else None
        yield _parameter(name, kind, required, plain_default, typer.Option(*self._spellings(name, default), **settings))
        if reading.kind == "data":
            yield from _described_data(self._titles.get(name))

    def _spellings(self, name: str, default: Any) -> list[str]:
        if stated := self._declared.names.get(name):
            return stated.split()
        if default is True:
            bare = name.replace("_", "-")
            return [f"--{bare}/--no-{bare}"]
        return [self._option(name), *(["-o"] if name == "out" else [])]

    def _reading(self, name: str) -> Reading | None:
        """How a parameter is read; None for ``progress``, which no option sets."""
        annotation = self._parameters[name].annotation
        if isinstance(annotation, str):
            annotation = eval(annotation, {}, self._scope)
        kinds = list(_alternatives(annotation))
        names = [getattr(kind, "__name__", "") for kind in kinds]
        if "Reporter" in names:
            return None
        if (reader := self._declared.values.get(name)) is not None:
            return Reading(list[str] if name in self._declared.repeatable else Any, reader, "TEXT")
        if "DataSource" in names:
            return Reading("data", metavar="TEXT")
        reading = _path(kinds) or _number(name, kinds) or _text(kinds) or _container(kinds)
        if reading is None:
            raise TypeError(f"{self._function.__name__}: {name}: {annotation} is no option; declare how it is read")
        return reading


def _path(kinds: Sequence[Any]) -> Reading | None:
    if Path not in kinds:
        return None
    several = any(_is_sequence(kind) and Path in _alternatives(get_args(kind)[0]) for kind in kinds)
    return Reading(list[Path] if several else Path)


def _number(name: str, kinds: Sequence[Any]) -> Reading | None:
    for kind in kinds:
        plain, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        if plain is float and name.endswith("_s"):
            return Reading(Any, values.duration, "TIME")
        if plain in (bool, int, float):
            bounds = next((mark for mark in marks if isinstance(mark, values.Bounds)), values.Bounds())
            return Reading(plain, low=bounds.low, high=bounds.high)
    return None


def _text(kinds: Sequence[Any]) -> Reading | None:
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices or str in kinds:
        return Reading(str, metavar="|".join(choices) or None)
    return None


def _container(kinds: Sequence[Any]) -> Reading | None:
    for kind in kinds:
        inner = get_args(kind)
        if get_origin(kind) is tuple and inner == (int, int):
            return Reading(Any, values.number_range, "MIN:MAX")
        if _is_sequence(kind) and inner[0] in (int, float):
            return Reading(Any, values.whole_numbers if inner[0] is int else values.numbers, "N,…")
        if _is_sequence(kind):
            return Reading(list[str])
        if get_origin(kind) is Mapping:
            return Reading(list[str], values.named_numbers if inner[1] is float else values.named_texts, "NAME=VALUE")
    return None


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Members of a union, None left out."""
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    elif annotation not in (None, type(None)):
        yield annotation


def _is_sequence(annotation: Any) -> bool:
    return get_origin(annotation) is Sequence


def _parameter(name: str, kind: Any, required: bool, default: Any, info: Any) -> inspect.Parameter:
    if not required and default is None and kind is not Any:
        kind = kind | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind, info],
    )


def _option(name: str, kind: Any, default: Any, *spellings: str, **settings: Any) -> inspect.Parameter:
    return _parameter(name, kind, False, default, typer.Option(*spellings, **settings))


def _described_data(panel: str | None) -> Iterator[inspect.Parameter]:
    """Options that describe how a data set is read."""
    yield _option(
        "label", str, None, "--label", metavar="COLUMN", help="Its labels.", show_default="by usual names",
        rich_help_panel=panel,
    )  # fmt: skip
    yield _option(
        "input", list[str], None, "--input", metavar="COLUMN=TENSOR", help="A column and the input it becomes; "
        "repeatable.", rich_help_panel=panel,
    )  # fmt: skip
    yield _option(
        "images", str, None, "--images", metavar="SIZE:SCALE", help="How images are read, such as 224:imagenet.",
        rich_help_panel=panel,
    )  # fmt: skip


def _stated(default: Any, reading: Reading) -> str:
    """Default of a parameter, as it would be typed."""
    if default is inspect.Parameter.empty or default is None or isinstance(default, bool) or default in ("", ()):
        return ""
    if isinstance(default, list | tuple):
        separator = ":" if reading.convert is values.number_range else ","
        return separator.join(_stated(one, reading) for one in default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _as_it_is(value: Any) -> Any:
    return value
