"""Declaration of a function as a command, beyond its signature and ``Args``, and shared parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Ineffective:
    """Parameters without effect if ``other`` is ``when``, or is not ``unless``; by default, if it is not given."""

    parameters: tuple[str, ...]
    other: str
    when: Any = None
    unless: Any = None

    def applies(self, value: Any) -> bool:
        if self.unless is not None:
            return bool(value != self.unless)
        return not value if self.when is None else bool(value == self.when)


@dataclass(frozen=True)
class CommandLine:
    """Differences between a function and its command.

    Args:
        path: Words of the command; empty: the name of the function.
        summary: First sentence of the help; empty: that of the function.
        required: Parameters with a default in Python that the command needs.
        arguments: Positional parameters; None: those before ``*`` that have no default.
        names: Option by parameter, and a short form behind it: ``{"graphs": "--graphs -g"}``.
        values: By parameter, a function that reads its text, in place of the one for its type.
        repeatable: Parameters among ``values`` that take several texts, whose function gets the list.
        made_by: By parameter, a function that makes its value, whose parameters are options, and those that are none.
        modes: By option, a function to call instead if that option is given. Its parameters are options too; those of
            the same name are shared.
        metavars: Placeholder of the value, by parameter.
        panels: Parameters by title of their panel in the help.
        hidden: Parameters that the help leaves out.
        python_only: Parameters that the command does not have.
        tables: Keys of the file of options that list tables, which no parameter states.
        fixed: Values of parameters that the command does not have.
        ineffective: Options that are rejected because another option leaves them without effect.
    """

    path: str = ""
    summary: str = ""
    required: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    repeatable: tuple[str, ...] = ()
    made_by: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = field(default_factory=dict)
    modes: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    metavars: Mapping[str, str] = field(default_factory=dict)
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    python_only: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ineffective: tuple[Ineffective, ...] = ()

    def option(self, parameter: str) -> str:
        """Return the option of a parameter: ``--slo`` for ``slo_s``."""
        stated = self.names.get(parameter)
        return stated.split()[0] if stated else f"--{parameter.removesuffix('_s').replace('_', '-')}"


def command_line(**differences: Any) -> Callable[[Function], Function]:
    """Declare differences between a function and its command (``CommandLine``); several declare several commands."""

    def declaring(function: Function) -> Function:
        others = getattr(function, "command_lines", ())
        function.command_lines = (CommandLine(**differences), *others)  # type: ignore[attr-defined]  # read by the edge
        return function

    return declaring


def takes(group: type, **defaults: Any) -> Callable[[Function], Function]:
    """Give a function the parameters of ``group`` in place of its ``**parameters: Unpack[group]``.

    Args:
        group: A ``TypedDict``, whose ``Args`` are those of its keys, and whose ``Returns`` and ``Raises`` those of the
            function, which ends with its own ``Args``.
        defaults: Default of each key. The function finds a value for every key.
    """

    def taking(function: Function) -> Function:
        signature = inspect.signature(function)
        stated = [part for part in signature.parameters.values() if part.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation.__forward_arg__
            )
            for name, annotation in group.__annotations__.items()
        ]

        @wraps(function)
        def with_group(*args: Any, **parameters: Any) -> Any:
            return function(*args, **{**defaults, **parameters})

        with_group.__signature__ = signature.replace(parameters=[*stated, *shared])  # type: ignore[attr-defined]
        sections = (inspect.getdoc(group) or "").partition("Args:\n")[2]
        with_group.__doc__ = f"{inspect.getdoc(function)}\n{sections}"
        return with_group  # type: ignore[return-value]  # of the same type: it takes and returns the same

    return taking
