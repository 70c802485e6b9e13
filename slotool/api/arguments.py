"""What every function does with arguments and errors: another type than it takes ends in one sentence before anything
is done, and sentences name arguments where they are read in Python, options where the command line prints them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from slotool.errors import ArgumentError, SlotoolError
from slotool.printable import with_article
from slotool.suggestions import did_you_mean

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_BUILTINS: Mapping[str, Any] = {
    "Any": object,
    "None": type(None),
    "bool": bool,
    "float": Real,
    "int": Integral,
    "Literal": str,
    "str": str,
}
_names_options: ContextVar[bool] = ContextVar("names_options", default=False)
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
# Functions take seconds; options take them with a unit.
_UNIT = re.compile(r"_(s|ms|gb)$")
# A whole command to type, whose options are its own.
_COMMAND = re.compile(r"\bslotool [a-z]")
# Such a value is shown as it is, any other by its type.
_SHORT = 40


def typed(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """``function``, which raises ``ArgumentError`` for an argument of another type than its annotation says."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        with naming_arguments(signature):
            require_types(function, signature, by_name(function, signature, args, kwargs))
            return function(*args, **kwargs)

    return checked


def by_name(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What ``function`` is called with. Raises ``TypeError``, as Python does, for a call that does not fit; of a name
    that it does not know with the one that may have been meant."""
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        meant = did_you_mean(unknown[0], signature.parameters) if unknown and repr(unknown[0]) in str(error) else ""
        raise TypeError(f"{function.__name__}() {error}{meant}") from None


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


def require_types(function: Callable[..., Any], signature: inspect.Signature, given: Mapping[str, Any]) -> None:
    """Raises ``ArgumentError`` naming the first of the arguments ``given`` whose type is not that of its annotation."""
    scope = inspect.unwrap(function).__globals__
    for name, value in given.items():
        annotation = str(signature.parameters[name].annotation)
        if not _fits(annotation, value, scope):
            expected = annotation.replace("FilePath", "str | Path").replace(
                "Paths", "str | Path | Sequence[str | Path]"
            )
            raise ArgumentError(name, f"{_shown(value)} is given, {expected} is expected")


def _fits(annotation: str, value: Any, scope: Mapping[str, Any]) -> bool:
    """Whether ``value`` is of a type written as ``A | B[C]``; what cannot be told from the text alone is."""
    # What is read as a data set has sentences of its own.
    return "DataSource" in annotation or any(_is_one(part, value, scope) for part in _parts(annotation, "|"))


def _is_one(kind: str, value: Any, scope: Mapping[str, Any]) -> bool:
    name, bracket, inner = kind.partition("[")
    if bracket and name != "Literal":
        return _holds(name, _parts(inner.removesuffix("]"), ","), value, scope)
    known = _BUILTINS.get(name, scope.get(name))
    if known is None:
        # Of a class that only type checkers import: by its name.
        return name.rpartition(".")[2] in [each.__name__ for each in type(value).__mro__]
    try:
        return isinstance(value, known)
    except TypeError:
        return True


def _holds(name: str, inner: list[str], value: Any, scope: Mapping[str, Any]) -> bool:
    """Whether ``value`` is such a container, and what it holds of the types ``inner``."""
    if name == "Mapping":
        return isinstance(value, Mapping) and all(_fits(inner[-1], each, scope) for each in value.values())
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, list | tuple) or all(_fits(inner[0], each, scope) for each in value)


def _parts(text: str, separator: str) -> list[str]:
    """``text`` parted at separators outside brackets."""
    found, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == separator and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found]


def _shown(value: Any) -> str:
    text = repr(value)
    plain = isinstance(value, str | int | float | list | tuple | dict | None) and len(text) <= _SHORT
    return text if plain else with_article(type(value).__name__)


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
