"""What a request asks for beyond its tensors, from Open Inference Protocol parameters or from HTTP headers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from slotool.errors import InputError
from slotool.rules.ruleset import OBJECTIVES, RuleSet
from slotool.scheduling.query import RESPONSE_TIME
from slotool.serving.rejections import bad_request, shown
from slotool.suggestions import nearest

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
MAX_TIMEOUT_US = 1e12
MAX_PRIORITY = 2**32 - 1
MAX_GROUP_CHARACTERS = 100
# Triton's, of requests to models that keep state.
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
# A name is taken for a misspelt one from this similarity on: parameters of other names are valid, and ignored. A longer
# name is that of no option.
MISSPELT = 0.8
MAX_MISSPELT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """``timeout_us``: µs from arrival to deadline, ``inf`` without one; ``group``: whose guarantee of the rules this
    request's label will count for, empty where it is not known; ``client``: name of the client that asks, empty where
    no token is needed; ``id``: the client's own, empty without one; ``objective``: empty where it is not stated; the
    others as in ``Query``."""

    timeout_us: float = math.inf
    tolerance: float | None = None
    objective: str = ""
    min_accuracy: float | None = None
    priority: int = 0
    group: str = ""
    client: str = ""
    id: str = ""


GROUP, DEADLINE = "group", "deadline-ms"
DEFAULT_OPTIONS = RequestOptions()


def from_parameters(parameters: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> RequestOptions:
    """From a V2 request's ``parameters``: timeout (µs; 0 is none), priority, tolerance, objective, min_accuracy,
    group. ``headers``: HTTP headers or gRPC metadata, names in lower case, of which ``Deadline-Ms`` counts too; the
    nearer of two deadlines is the request's.

    Parameters of other names are ignored, as the protocol has it. Raises ``Rejection`` (400) for a value that cannot be
    meant, for a name that is nearly one of these, and for a request that is part of a sequence.
    """
    options = DEFAULT_OPTIONS
    for name in SEQUENCE if parameters else ():
        if parameters.get(name):
            raise bad_request(f"parameter {name}: sequences are not served, as no state is kept between requests")
    if parameters:
        names = "tolerance", "objective", "min_accuracy", "priority"
        options = _options("parameter ", parameters, "timeout", 1.0, *names)
    if not headers or DEADLINE not in headers:
        return options
    deadline_us = 1e3 * (_number("header ", headers, DEADLINE, MAX_TIMEOUT_US * 1e-3) or math.inf)
    return replace(options, timeout_us=min(options.timeout_us, deadline_us))


def from_headers(headers: Mapping[str, str]) -> RequestOptions:
    """From ``Tolerance``, ``Objective`` (tolerance-tiers, IV-A), ``Deadline-Ms``, ``Min-Accuracy``, ``Priority`` and
    ``Group``.

    ``headers``: names in lower case; those that begin with ``x-`` belong to gateways. Raises ``Rejection`` (400) for a
    value that cannot be meant, and for a name that is nearly one of these.
    """
    return _options("header ", headers, DEADLINE, 1e3, "tolerance", "objective", "min-accuracy", "priority")


# Those of ``from_headers``, and what names the model on ``/compute``.
_HEADERS = ("tolerance", "objective", DEADLINE, "min-accuracy", "priority", GROUP, "model")


def require_single(headers: Sequence[tuple[bytes, bytes]], more: Sequence[str] = ()) -> None:
    """Raises ``Rejection`` (400) where a request states an option's header twice: one of them is not what it means.

    ``headers``: as they were sent, names in lower case; ``more``: names of others that count once."""
    names = [name.decode("latin-1") for name, _ in headers]
    for name in (*_HEADERS, *more):
        if names.count(name) > 1:
            raise bad_request(f"header {name}: it is given {names.count(name)} times, expected once")


def _options(
    kind: str,
    given: Mapping[str, Any],
    timeout: str,
    timeout_unit_us: float,
    tolerance: str,
    objective: str,
    min_accuracy: str,
    priority: str,
) -> RequestOptions:
    names = (timeout, tolerance, objective, min_accuracy, priority, GROUP)
    for name in given:
        if name not in names and (meant := misspelt(name, names)):
            raise bad_request(f"{kind}{shown(name)} is no option: did you mean {meant}?")
    if not any(name in given for name in names):
        return DEFAULT_OPTIONS
    longest = MAX_TIMEOUT_US / timeout_unit_us
    asked = RequestOptions(
        timeout_us=(_number(kind, given, timeout, longest) or math.inf) * timeout_unit_us,
        tolerance=_number(kind, given, tolerance, math.inf),
        objective=_objective(kind, given, objective),
        min_accuracy=_number(kind, given, min_accuracy, 1.0),
        priority=_whole(kind, given, priority),
        group=group_of(given.get(GROUP, ""), f"{kind}{GROUP}"),
    )
    if asked.tolerance is not None and asked.min_accuracy is not None:
        raise bad_request(f"{tolerance} and {min_accuracy} contradict each other: ask for one of them")
    if asked.tolerance is None and objective in given:
        raise bad_request(f"{kind}{objective}: it says what a tolerance saves: give {tolerance} too")
    return asked


def misspelt(name: str, names: tuple[str, ...]) -> str | None:
    """The one of ``names`` that ``name`` is nearly; None for most names."""
    return None if len(name) > MAX_MISSPELT_LENGTH else _misspelt(name, names)


@lru_cache(maxsize=1024)
def _misspelt(name: str, names: tuple[str, ...]) -> str | None:
    return None if name.lower().startswith("x-") else nearest(name, names, MISSPELT)


def _number(kind: str, given: Mapping[str, Any], name: str, most: float) -> float | None:
    """A finite number from 0 to ``most``, given as such or as text; None when absent."""
    value = given.get(name)
    if value is None:
        return None
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain and not (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        raise bad_request(f"{kind}{name}: {shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and 0.0 <= number <= most):
        expected = f"between 0 and {most:g}" if math.isfinite(most) else "a finite number from 0"
        raise bad_request(f"{kind}{name}: {shown(value)} is not {expected}")
    return number


def _whole(kind: str, given: Mapping[str, Any], name: str) -> int:
    number = _number(kind, given, name, MAX_PRIORITY) or 0.0
    if number != int(number):
        raise bad_request(f"{kind}{name}: {shown(given[name])} is not a whole number")
    return int(number)


def require_meant(rules: RuleSet, tolerance: float) -> None:
    """Raises ``Rejection`` (400) for a tolerance that is a percentage where a share is expected."""
    try:
        rules.require_meant(tolerance)
    except InputError as error:
        raise bad_request(str(error)) from None


def with_objective(options: RequestOptions, offered: Collection[str]) -> RequestOptions:
    """The options with an objective that rules have tiers for: by default response time or, without it, their only one.

    ``offered``: objectives of the rules. Raises ``Rejection`` (400) for a stated objective that they lack.
    """
    if options.objective in offered or not offered:
        return options
    if options.objective:
        raise bad_request(f"objective {options.objective}: the tolerance tiers are for {' and '.join(sorted(offered))}")
    return replace(options, objective=RESPONSE_TIME if RESPONSE_TIME in offered else min(offered))


def group_of(value: Any, where: str) -> str:
    """A group's name: text or a whole number. Raises ``Rejection`` (400) for what is none; ``where``: it was given."""
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(name, str) or len(name) > MAX_GROUP_CHARACTERS:
        raise bad_request(f"{where}: {shown(value)} is no text of at most {MAX_GROUP_CHARACTERS} characters")
    return name


def _objective(kind: str, given: Mapping[str, Any], name: str) -> str:
    value: str = given.get(name, "")
    if name in given and value not in OBJECTIVES:
        raise bad_request(f"{kind}{name}: {shown(value)} is none of {', '.join(OBJECTIVES)}")
    return value
