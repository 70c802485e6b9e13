"""Arguments and errors of every function: sentences name arguments in Python, and options on the command line."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from slotool.errors import ArgumentError, SlotoolError
from slotool.suggestions import did_you_mean

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_names_options: ContextVar[bool] = ContextVar("names_options", default=False)
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
# Functions take seconds; options take them with a unit.
_UNIT = re.compile(r"_(s|ms|gb)$")
# A whole command to type, whose options are its own.
_COMMAND = re.compile(r"\bslotool [a-z]")


def typed(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Make errors of ``function`` name its arguments, and a misspelt argument the one that may have been meant."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        with naming_arguments(signature):
            by_name(function, signature, args, kwargs)
            return function(*args, **kwargs)

    return checked


def by_name(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments of a call of ``function``, defaults included.

    Raises ``TypeError``, as Python does, for a call that does not fit; a misspelt name with the one that may be meant.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        meant = did_you_mean(unknown[0], signature.parameters) if unknown and repr(unknown[0]) in str(error) else ""
        raise TypeError(f"{function.__name__}() {error}{meant}") from None
    bound.apply_defaults()
    return bound.arguments


@contextmanager
def naming_options() -> Iterator[None]:
    """Errors name options meanwhile, as the command line's users know them: ``--min-accuracy``."""
    before = _names_options.set(True)
    try:
        yield
    finally:
        _names_options.reset(before)


@contextmanager
def naming_arguments(signature: inspect.Signature) -> Iterator[None]:
    """Errors name arguments of the function instead of options, except under ``naming_options``."""
    try:
        yield
    except SlotoolError as error:
        if not _names_options.get():
            error.args = tuple(_by_argument(each, signature) for each in error.args)
            if isinstance(error, ArgumentError):
                error.problem = _by_argument(error.problem, signature)
        raise


def _by_argument(text: Any, signature: inspect.Signature) -> Any:
    """``text`` with the names of arguments for those of options: ``force=True`` for ``--force``."""
    if not isinstance(text, str) or _COMMAND.search(text):
        return text
    arguments = {_UNIT.sub("", name): name for name in signature.parameters}

    def argument(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        name = arguments.get(_UNIT.sub("", name), name)
        known = signature.parameters.get(name)
        return f"{name}=True" if known is not None and str(known.annotation) == "bool" else name

    return _OPTION.sub(argument, text)


def require_at_least(low: float, **arguments: float | None) -> None:
    """Raise ``ArgumentError`` for the first of these arguments that is below ``low``; None is any value."""
    for name, value in arguments.items():
        if value is not None and not value >= low:
            raise ArgumentError(name, f"{value:g} is too few, at least {low:g}")


def tolerance_shares(tolerance: float | Mapping[float, float] | None) -> dict[float, float]:
    """Shares of the requests by tolerance, empty for none. Raises ``ArgumentError``."""
    if tolerance is None:
        return {}
    shares = dict(tolerance) if isinstance(tolerance, Mapping) else {tolerance: 1.0}
    meant = all(0 <= each < math.inf and share > 0 for each, share in shares.items())
    if not (meant and abs(sum(shares.values()) - 1) <= 1e-6):  # nothing of this holds for NaN
        stated = ",".join(f"{each:g}={share:g}" for each, share in shares.items())
        problem = "is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1"
        raise ArgumentError("tolerance", f"{stated!r} {problem}")
    return {float(each): float(share) for each, share in shares.items()}
