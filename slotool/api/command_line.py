"""Declaration of a function as a command, for what its signature and ``Args`` cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class CommandLine:
    """Differences between a function and its command.

    Args:
        path: Words of the command; empty: the name of the function.
        required: Parameters with a default in Python that the command needs.
        arguments: Positional parameters; None: those before ``*`` that have no default.
        names: Option by parameter, and a short form behind it: ``{"graphs": "--graphs -g"}``.
        values: By parameter, a function that reads its text, in place of the one for its type.
        repeatable: Parameters among ``values`` that take several texts, whose function gets the list.
        metavars: Placeholder of the value, by parameter.
        panels: Parameters by title of their panel in the help.
        hidden: Parameters that the help leaves out.
        python_only: Parameters that the command does not have.
        fixed: Values of parameters that the command does not have.
        needs: By parameter, another one without which it has no effect.
        resumes: True if an interrupted run prints how to go on.
    """

    path: str = ""
    required: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    repeatable: tuple[str, ...] = ()
    metavars: Mapping[str, str] = field(default_factory=dict)
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    python_only: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    resumes: bool = False


def command_line(**differences: Any) -> Callable[[Function], Function]:
    """Declare how the command of a function differs from it; see ``CommandLine``."""

    def declaring(function: Function) -> Function:
        function.command_line = CommandLine(**differences)  # type: ignore[attr-defined]  # read by the command line
        return function

    return declaring
