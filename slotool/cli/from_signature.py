"""Commands made of typed functions: signature and Google-style ``Args`` are the only declaration of a parameter.

A parameter without default before ``*`` is a positional argument, every other one an option of the same name; the
first sentence of its entry in ``Args`` is its help, and ``None: …`` at the end of that its default. Types decide how
texts are read: a path, a flag, choices, ``0:0.1:0.01`` for several numbers, a comma list, repeatable NAME=VALUE, a
duration for seconds. ``slotool.commands.command_line`` declares what differs from that.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

import slotool
from slotool.cli.help import EXAMPLE, Docstring, read_docstring
from slotool.commands import values
from slotool.commands.command_line import CommandLine
from slotool.commands.inputs import source_in
from slotool.commands.signatures import alternatives, annotations_of, bounds_of

if TYPE_CHECKING:
    from slotool.cli.output import Output

# Columns that hold whole numbers, and what the help calls those whose name is no noun for one value.
_WHOLE = ("threads", "batch_size")
_CALLED = {"threads": "number of threads", "machine": "machine id", "batch_size": "batch size"}
ROWS = "Rows of the latency table"
# Characters up to which choices stand in the place of a value; beyond that, the sentence names them.
_WIDEST_CHOICES = 20
# Numbers in equal steps are shortened to start:stop:step from so many on.
_FEWEST_STEPS = 4


@dataclass(frozen=True)
class Reading:
    """Reading of a parameter by the command line: type and limits for typer, and conversion to the function's value."""

    kind: Any
    convert: Callable[[Any], Any] | None = None
    metavar: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


def commands_of(function: Callable[..., Any]) -> tuple[CommandLine, ...]:
    """Return how the commands of ``function`` differ from it: one, which differs in nothing, unless it declares so."""
    return getattr(function, "command_lines", (CommandLine(),))


def words_of(function: Callable[..., Any], declared: CommandLine) -> list[str]:
    """Return the words of a command, without the program."""
    return declared.path.split() or [inspect.unwrap(function).__name__.replace("_", "-")]


def command_of(
    function: Callable[..., Any],
    declared: CommandLine | None = None,
    prepare: Callable[[dict[str, Any]], None] | None = None,
    run: Callable[[SimpleNamespace, Output], None] | None = None,
) -> Callable[..., None]:
    """Return the function that typer makes a command of: it has an option for each parameter of ``function``.

    ``prepare`` checks and changes what was given before it is read as arguments. ``run`` takes the arguments in place
    of ``function`` and prints the result itself.
    """
    return _Builder(function, declared or commands_of(function)[0], prepare, run).callback()


class _Builder:
    def __init__(
        self,
        function: Callable[..., Any],
        declared: CommandLine,
        prepare: Callable[[dict[str, Any]], None] | None = None,
        run: Callable[[SimpleNamespace, Output], None] | None = None,
    ):
        self._function, self._declared, self._prepare, self._runner = function, declared, prepare, run
        left_out = {*declared.python_only, *declared.fixed}
        self._parameters = {
            name: parameter
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in left_out
        }
        self._annotations = annotations_of(function)
        self._makers = {
            name: _Builder(maker, replace(commands_of(maker)[0], python_only=left_out))
            for name, (maker, left_out) in declared.made_by.items()
        }
        self._modes = {option: _Builder(mode, commands_of(mode)[0]) for option, mode in declared.modes.items()}
        readings = {name: self._reading(name) for name in self._parameters if name not in self._makers}
        self._readings = {name: reading for name, reading in readings.items() if reading is not None}
        self._text: Docstring = read_docstring(function, self._shown)
        self._titles = {name: title for title, names in declared.panels.items() for name in names}

    def callback(self) -> Callable[..., None]:
        """Return the function that typer calls, with a parameter for each option."""
        parameters = list(self._options())
        parameters += [
            _option(name, list[Any], None, f"--{name}", hidden=True, parser=_as_it_is) for name in self._declared.tables
        ]
        parameters.append(_option("json", bool, False, "--json", help="Print one JSON document instead of tables."))

        def run(**options: Any) -> None:
            self._run(options)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__doc__ = self._help()
        return run

    def _options(self) -> Iterator[inspect.Parameter]:
        options = list(self._own_options())
        yield from options
        names = {one.name for one in options}
        for trigger, mode in self._modes.items():
            for one in mode._own_options():
                if one.name not in names:
                    names.add(one.name)
                    needed = one.name == trigger or one.default is inspect.Parameter.empty
                    yield _left_out(one) if needed else one

    def _own_options(self) -> Iterator[inspect.Parameter]:
        for name in self._parameters:
            if name in self._makers:
                yield from self._makers[name]._options()
            elif name in self._readings:
                yield from self._options_of(name, self._readings[name])

    def _option_names(self) -> set[str]:
        return {one.name for one in self._own_options()}

    def _help(self) -> str:
        """Return the text of the docstring, with only this command's examples."""
        prefix = f"{EXAMPLE}slotool {' '.join(words_of(self._function, self._declared))} "
        summary, *paragraphs = self._text.text.split("\n\n")
        shown = [part for part in paragraphs if not part.startswith(EXAMPLE) or f"{part} ".startswith(prefix)]
        return "\n\n".join([self._declared.summary or summary, *shown])

    def _run(self, options: dict[str, Any]) -> None:
        from slotool.cli import interrupts
        from slotool.cli.commands import config_file, refuse_without_effect
        from slotool.cli.output import Output

        output = Output(as_json=options.pop("json"))
        for rule in self._declared.ineffective:
            if rule.applies(value := options.get(rule.other)):
                refuse_without_effect(rule.parameters, _stated_with(self._option(rule.other), value))
        if self._prepare is not None:
            self._prepare(options)
        builder = self
        for trigger, mode in self._modes.items():
            if options[trigger]:
                without = self._option_names() - mode._option_names()
                builder = mode
                mode._require(options, f"with {mode._option(trigger)}")
            else:
                without = mode._option_names() - self._option_names()
            refuse_without_effect([*without], f"{'with' if options[trigger] else 'without'} {mode._option(trigger)}")
        call = {**builder._declared.fixed, **builder._converted(options)}
        file = config_file()
        if hasattr(builder._function, "refuse") and (file is not None or self._runner is not None):
            builder._function.refuse(call, *([] if file is None else [file]))
        if self._runner is not None:
            self._runner(SimpleNamespace(**call, **{name: options[name] for name in self._declared.tables}), output)
            return
        if "progress" in builder._parameters:
            call["progress"] = output
        with interrupts.explaining(output.note):
            result = builder._function(**call)
        output.show(result)
        result.judge()
        if result.exit_code:
            raise typer.Exit(result.exit_code)

    def _require(self, options: Mapping[str, Any], why: str) -> None:
        """Raise a usage error for a parameter without default that is not given."""
        for name in self._readings:
            if self._is_required(name) and options[name] is None:
                raise typer.BadParameter(f"it is needed {why}", param_hint=self._option(name))

    def _is_required(self, name: str) -> bool:
        return self._parameters[name].default is inspect.Parameter.empty or name in self._declared.required

    def _converted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of the function, by parameter."""
        call: dict[str, Any] = {}
        for name, reading in self._readings.items():
            value = options.get(name)
            if reading.kind == "data":
                source = source_in(value, **_DESCRIBED_DATA._converted(options))
                call[name] = self._default(name) if source is None else source
            elif isinstance(reading.kind, values.RowColumns):
                call[name] = {column: options[column] for column in reading.kind.columns}
            elif value is None or (value == [] and reading.kind != list[Any]):
                call[name] = self._default(name)
            elif reading.convert is None:
                call[name] = value
            else:
                try:
                    call[name] = reading.convert(value)
                except ValueError as error:
                    raise typer.BadParameter(str(error), param_hint=self._option(name)) from error
        for name, maker in self._makers.items():
            call[name] = maker._function(**maker._converted(options))
        return call

    def _default(self, name: str) -> Any:
        default = self._parameters[name].default
        return None if default is inspect.Parameter.empty else default

    def _option(self, name: str) -> str:
        """Return the name of a parameter on the command line."""
        for other in (*self._makers.values(), *self._modes.values()):
            if name in other._parameters and name not in self._parameters:
                return other._option(name)
        if name in self._arguments():
            return self._declared.metavars.get(name, name.upper())
        return self._declared.option(name)

    def _arguments(self) -> Sequence[str]:
        if self._declared.arguments is not None:
            return self._declared.arguments
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [
            name
            for name, one in self._parameters.items()
            if one.kind is positional and one.default is inspect.Parameter.empty and self._is_read(name)
        ]

    def _is_read(self, name: str) -> bool:
        """True if the parameter is one text of the command line, and no group of options."""
        return name in self._readings and self._readings[name].kind != "data"

    def _shown(self, code: str) -> str:
        """Return the help's word for text in backticks: an option for a parameter, a command for a function."""
        name, equals, value = code.partition("=")
        others = (*self._makers.values(), *self._modes.values())
        if any(name in one._parameters for one in (self, *others)):
            option = self._option(name)
            if value == "False":
                return f"--no-{option.removeprefix('--')}"
            return option if not equals or value == "True" else f"{option} {value}"
        if code in slotool.__all__ and callable(function := getattr(slotool, code)):
            return " ".join(words_of(function, commands_of(function)[0]))
        return code

    def _options_of(self, name: str, reading: Reading) -> Iterator[inspect.Parameter]:
        """Yield parameters for typer: one, but four for a data set, and one per column by which rows are picked."""
        if isinstance(reading.kind, values.RowColumns):
            yield from map(_row_filter, reading.kind.columns)
            return
        entry = self._text.entries[name]
        default = self._parameters[name].default
        required = self._is_required(name)
        settings: dict[str, Any] = {
            "help": entry.help,
            "metavar": self._declared.metavars.get(name, None if name in self._arguments() else reading.metavar),
            "show_default": entry.none or _stated(default, reading) or False,
        }
        if reading.kind is bool:
            settings["metavar"] = None
        settings |= reading.limits
        kind: Any = str if reading.kind == "data" else reading.kind
        if kind in (Any, list[Any]):
            settings["parser"] = _as_it_is
        if name in self._arguments():
            yield _parameter(name, kind, required, None, typer.Argument(**settings))
            return
        settings |= {"rich_help_panel": self._titles.get(name), "hidden": name in self._declared.hidden}
        plain_default = (
            default
            if isinstance(default, bool | int | float | str) and kind in (bool, int, float, str) and not required
            else None
        )
        yield _parameter(name, kind, required, plain_default, typer.Option(*self._spellings(name, default), **settings))
        if reading.kind == "data":
            yield from _DESCRIBED_DATA._options()

    def _spellings(self, name: str, default: Any) -> list[str]:
        if stated := self._declared.names.get(name):
            return stated.split()
        if default is True:
            bare = name.replace("_", "-")
            return [f"--{bare}/--no-{bare}"]
        return [self._option(name), *(["-o"] if name == "out" else [])]

    def _reading(self, name: str) -> Reading | None:
        """Return the reading of a parameter; None for ``progress``, which no option sets."""
        annotation = self._annotations[name]
        kinds = list(alternatives(annotation))
        names = [getattr(kind, "__name__", "") for kind in kinds]
        if "Reporter" in names:
            return None
        if (reader := self._declared.values.get(name)) is not None:
            return Reading(list[str] if name in self._declared.repeatable else Any, reader, "TEXT")
        if "DataSource" in names:
            return Reading("data", metavar="TEXT")
        reading = _rows(kinds) or _path(kinds) or _number(name, annotation, kinds) or _text(kinds) or _container(kinds)
        if reading is None:
            raise TypeError(f"{self._function.__name__}: {name}: {annotation} is no option; declare how it is read")
        return reading


def _rows(kinds: Sequence[Any]) -> Reading | None:
    marks = [mark for kind in kinds for mark in getattr(kind, "__metadata__", ())]
    return next((Reading(mark) for mark in marks if isinstance(mark, values.RowColumns)), None)


def _path(kinds: Sequence[Any]) -> Reading | None:
    if any(_is_sequence(kind) and Path in alternatives(get_args(kind)[0]) for kind in kinds):
        return Reading(list[Path])
    return Reading(Path) if Path in kinds else None


def _number(name: str, annotation: Any, kinds: Sequence[Any]) -> Reading | None:
    if any(_is_sequence(kind) for kind in kinds):
        return None
    for kind in kinds:
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if plain is float and name.endswith("_s"):
            return Reading(Any, values.duration, "TIME")
        if plain in (bool, int, float):
            bounds = bounds_of(annotation)
            # Typer has no excluded ends: the function rejects them.
            stated = bounds if bounds and not bounds.excluded else values.Bounds()
            limits = {"min": stated.low, "max": stated.high}
            return Reading(plain, limits={name: limit for name, limit in limits.items() if math.isfinite(limit)})
    return None


def _text(kinds: Sequence[Any]) -> Reading | None:
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if not choices and str not in kinds:
        return None
    stated = "|".join(choices)
    return Reading(str, metavar=stated if 0 < len(stated) <= _WIDEST_CHOICES else None)


def _container(kinds: Sequence[Any]) -> Reading | None:
    for kind in kinds:
        inner = get_args(kind)
        if get_origin(kind) is tuple and inner == (int, int):
            return Reading(Any, values.number_range, "MIN:MAX")
        if _is_sequence(kind) and inner[0] in (int, float):
            return Reading(Any, values.whole_numbers if inner[0] is int else values.numbers, "N,…")
        if _is_sequence(kind):
            return Reading(list[str] if inner[0] is str else list[Any])
        if get_origin(kind) is Mapping:
            return Reading(list[str], values.named_numbers if inner[1] is float else values.named_texts, "NAME=VALUE")
    return None


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


def _left_out(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return ``parameter`` with a default of None."""
    kind, info = get_args(parameter.annotation)
    info.show_default = False
    return parameter.replace(annotation=Annotated[kind, info], default=None)


def _option(name: str, kind: Any, default: Any, *spellings: str, **settings: Any) -> inspect.Parameter:
    return _parameter(name, kind, False, default, typer.Option(*spellings, **settings))


def _row_filter(column: str) -> inspect.Parameter:
    """Option that picks rows by a column."""
    is_number = column in _WHOLE
    return _option(
        column, int if is_number else str, None, f"--{column.replace('_', '-')}", rich_help_panel=ROWS,
        help=f"Only rows of this {_CALLED.get(column, column)}.", **({"min": 1} if is_number else {}),
    )  # fmt: skip


def _stated_with(option: str, value: Any) -> str:
    """Return ``with --method naive``, ``with --dry-run`` or ``without --plot``."""
    if not value:
        return f"without {option}"
    return f"with {option} {value}" if isinstance(value, str) else f"with {option}"


def _stated(default: Any, reading: Reading) -> str:
    """Default of a parameter, as it would be typed."""
    if default is inspect.Parameter.empty or default is None or isinstance(default, bool) or default in ("", ()):
        return ""
    if isinstance(default, list | tuple):
        if (steps := _in_equal_steps(default)) is not None:
            return steps
        separator = ":" if reading.convert is values.number_range else ","
        return separator.join(_stated(one, reading) for one in default)
    if reading.convert is values.duration:
        return f"{default:g}s"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _in_equal_steps(default: Sequence[Any]) -> str | None:
    """Return ``0:0.1:0.01`` for several numbers that stand in equal steps."""
    if len(default) < _FEWEST_STEPS or not all(isinstance(one, int | float) for one in default):
        return None
    start, stop, step = default[0], default[-1], default[1] - default[0]
    text = f"{start:g}:{stop:g}:{step:g}"
    try:
        return text if values.numbers(text) == list(default) else None
    except ValueError:
        return None


_DESCRIBED_DATA = _Builder(source_in, commands_of(source_in)[0])


def _as_it_is(value: Any) -> Any:
    return value
