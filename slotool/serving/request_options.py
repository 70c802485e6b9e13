"""Options of a request, from Open Inference Protocol parameters and from headers: one table for all protocols."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from slotool.errors import InputError
from slotool.printable import nearest
from slotool.rules.ruleset.rules import OBJECTIVES, RuleSet
from slotool.scheduling.edf import RESPONSE_TIME
from slotool.serving.rejections import bad_request, shown

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
# Browsers and proxies state the urgency of a response in a header called Priority (RFC 9218).
_URGENCY = re.compile(r"\s*(u\s*=|i\b)", re.ASCII)
MAX_TIMEOUT_US = 1e12
MAX_PRIORITY = 2**32 - 1
MAX_GROUP_CHARACTERS = 100
# Triton's parameters for models with state.
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
# From this similarity on a name counts as misspelt: other names are valid, and ignored. No option has a longer name.
MISSPELT = 0.8
MAX_MISSPELT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a request; those not listed are as in ``Query``.

    Attributes:
        timeout_us: µs from arrival to deadline, ``inf`` without one.
        objective: empty where it is not stated.
        group: group whose guarantee the request's label counts for; empty where it is not stated.
        client: name of the client; empty where no token is needed.
        id: the client's id of the request; empty without one.
    """

    timeout_us: float = math.inf
    tolerance: float | None = None
    objective: str = ""
    min_accuracy: float | None = None
    priority: int = 0
    group: str = ""
    client: str = ""
    id: str = ""


def _number(value: Any, where: str, most: float = math.inf) -> float:
    """Return a finite number from 0 to ``most``, given as a number or as text."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain and not (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        raise bad_request(f"{where}: {shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and 0.0 <= number <= most):
        expected = f"between 0 and {most:g}" if math.isfinite(most) else "a finite number from 0"
        raise bad_request(f"{where}: {shown(value)} is not {expected}")
    return number


def _timeout_us(unit_us: float) -> Callable[[Any, str], float]:
    """Return a reader of timeouts in units of ``unit_us``; 0 means none."""

    def read(value: Any, where: str) -> float:
        return unit_us * _number(value, where, MAX_TIMEOUT_US / unit_us) or math.inf

    return read


def _priority(value: Any, where: str) -> int:
    if isinstance(value, str) and _URGENCY.match(value):
        return 0
    number = _number(value, where, MAX_PRIORITY)
    if number != int(number):
        raise bad_request(f"{where}: {shown(value)} is not a whole number")
    return int(number)


def _objective(value: Any, where: str) -> str:
    if value not in OBJECTIVES:
        raise bad_request(f"{where}: {shown(value)} is none of {', '.join(OBJECTIVES)}")
    return str(value)


def group_of(value: Any, where: str) -> str:
    """Return a group's name: text or a whole number. Raises ``Rejection`` (400) for other values in ``where``."""
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(name, str) or len(name) > MAX_GROUP_CHARACTERS:
        raise bad_request(f"{where}: {shown(value)} is no text of at most {MAX_GROUP_CHARACTERS} characters")
    return name


class Option(NamedTuple):
    """Field of ``RequestOptions``, its reader, and the names by which requests state it.

    ``parameter``: in ``parameters`` of the Open Inference Protocol, over HTTP and gRPC; ``header``: on every path of
    HTTP (tolerance-tiers, IV-A), and in the metadata of gRPC. Empty for none.
    """

    field: str
    read: Callable[[Any, str], Any]
    parameter: str = ""
    header: str = ""


# Several rows may state one field: the nearest deadline counts, or the first of other fields.
OPTIONS = (
    Option("timeout_us", _timeout_us(1.0), parameter="timeout"),
    Option("timeout_us", _timeout_us(1e3), header="deadline-ms"),
    Option("tolerance", _number, parameter="tolerance", header="tolerance"),
    Option("objective", _objective, parameter="objective", header="objective"),
    Option("min_accuracy", partial(_number, most=1.0), parameter="min_accuracy", header="min-accuracy"),
    Option("priority", _priority, parameter="priority", header="priority"),
    Option("group", group_of, parameter="group", header="group"),
)
# Header that names the model on /compute.
MODEL = "model"
_PARAMETERS = {option.parameter: option for option in OPTIONS if option.parameter}
_HEADERS = {option.header: option for option in OPTIONS if option.header}
DEFAULT_OPTIONS = RequestOptions()
_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


def set_deadline_headers(stated: Sequence[str]) -> None:
    """Read deadlines from these headers too, for every request of this process.

    Args:
        stated: Header and unit of each, ``x-envoy-expected-rq-timeout-ms=ms``; units are us, ms and s.

    Raises:
        InputError: A text has another form, or names a header that is read already.
    """
    headers = {option.header: option for option in OPTIONS if option.header}
    for text in stated:
        name, _, unit = text.strip().lower().partition("=")
        if not _HEADER_NAME.fullmatch(name) or unit not in _UNITS_US:
            raise InputError(f"{text[:80]!r} is not HEADER=UNIT, such as x-request-timeout=s; units are us, ms and s")
        if name in headers or name in (MODEL, "authorization", "host") or name.startswith("content-"):
            raise InputError(f"{name}: this header is read already, and not as a deadline")
        headers[name] = Option("timeout_us", _timeout_us(_UNITS_US[unit]), header=name)
    _HEADERS.clear()
    _HEADERS.update(headers)


def from_parameters(parameters: Mapping[str, Any]) -> RequestOptions:
    """Return the options in a V2 request's ``parameters``; other names are ignored, as in the protocol.

    Raises ``Rejection`` (400) for an invalid value, for a name that resembles an option's, and for a request that is
    part of a sequence.
    """
    if not parameters:
        return DEFAULT_OPTIONS
    for name in SEQUENCE:
        if parameters.get(name):
            raise bad_request(f"parameter {name}: sequences are not served, as no state is kept between requests")
    return _options("parameter", parameters, _PARAMETERS)


def from_headers(headers: Mapping[str, str]) -> RequestOptions:
    """Return the options in HTTP headers or gRPC metadata, names in lower case.

    Other names that begin with ``x-`` belong to gateways. Raises ``Rejection`` (400) for an invalid value, and for a
    name that resembles an option's.
    """
    return _options("header", headers, _HEADERS)


def merged(in_parameters: RequestOptions, in_headers: RequestOptions) -> RequestOptions:
    """Return the options of a request that may state them twice: the nearer deadline, else the parameter.

    Raises ``Rejection`` (400) for options that contradict each other.
    """
    if in_headers is DEFAULT_OPTIONS:
        options = in_parameters
    elif in_parameters is DEFAULT_OPTIONS:
        options = in_headers
    else:
        stated = {
            option.field: getattr(in_parameters, option.field)
            for option in OPTIONS
            if getattr(in_parameters, option.field) != getattr(DEFAULT_OPTIONS, option.field)
        }
        nearer_us = min(in_parameters.timeout_us, in_headers.timeout_us)
        options = replace(in_headers, **{**stated, "timeout_us": nearer_us})
    if options.tolerance is None:
        if options.objective:
            raise bad_request("objective: it says what a tolerance saves: give tolerance too")
    elif options.min_accuracy is not None:
        raise bad_request("tolerance and min_accuracy contradict each other: ask for one of them")
    return options


def require_single(headers: Sequence[tuple[bytes, bytes]], more: Sequence[str] = ()) -> None:
    """Raise ``Rejection`` (400) where a request states an option's header twice.

    ``headers``: as sent, names in lower case; ``more``: names of other headers that may occur once.
    """
    names = [name.decode("latin-1") for name, _ in headers]
    for name in (*_HEADERS, MODEL, *more):
        if names.count(name) > 1:
            raise bad_request(f"header {name}: it is given {names.count(name)} times, expected once")


def _options(kind: str, values: Mapping[str, Any], table: Mapping[str, Option]) -> RequestOptions:
    for name in values:
        if name not in table and (meant := misspelt(name, tuple(table)) or _parameter_of(name, table)):
            raise bad_request(f"{kind} {shown(name)} is no option: did you mean {meant}?")
    fields: dict[str, Any] = {}
    for name, option in table.items():
        if values.get(name) is not None:
            value = option.read(values[name], f"{kind} {name}")
            stated = fields.setdefault(option.field, value)
            if option.field == "timeout_us":
                fields["timeout_us"] = min(value, stated)
    return RequestOptions(**fields) if fields else DEFAULT_OPTIONS


def _parameter_of(name: str, table: Mapping[str, Option]) -> str | None:
    """Return the parameter of the option whose header ``name`` resembles; None for most names."""
    if table is not _PARAMETERS or (header := misspelt(name.replace("_", "-"), tuple(_HEADERS))) is None:
        return None
    return next(option.parameter for option in OPTIONS if option.field == _HEADERS[header].field and option.parameter)


def misspelt(name: str, names: tuple[str, ...]) -> str | None:
    """Return the one of ``names`` that resembles ``name``; None for most names."""
    return None if len(name) > MAX_MISSPELT_LENGTH else _misspelt(name, names)


@lru_cache(maxsize=1024)
def _misspelt(name: str, names: tuple[str, ...]) -> str | None:
    return None if name.lower().startswith("x-") else nearest(name, names, MISSPELT)


def require_meant(rules: RuleSet, tolerance: float) -> None:
    """Raise ``Rejection`` (400) for a tolerance that is a percentage where a share is expected."""
    try:
        rules.require_meant(tolerance)
    except InputError as error:
        raise bad_request(str(error)) from None


def with_objective(options: RequestOptions, offered: Collection[str]) -> RequestOptions:
    """Return the options with an objective of the rules, by default response time or their only one.

    ``offered``: objectives of the rules. Raises ``Rejection`` (400) for a stated objective that they lack.
    """
    if options.objective in offered or not offered:
        return options
    if options.objective:
        raise bad_request(f"objective {options.objective}: the tolerance tiers are for {' and '.join(sorted(offered))}")
    return replace(options, objective=RESPONSE_TIME if RESPONSE_TIME in offered else min(offered))
