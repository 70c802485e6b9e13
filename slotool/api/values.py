"""Values of parameters: bounds, and how texts of the command line and of option files are read as them.

A reader takes what stands on the command line, or the number that a TOML file holds, and raises ``ValueError`` with a
sentence that does not name the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Of one parameter.
MAX_NUMBERS = 10_000
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, inclusive, for ``Annotated``."""

    low: float | None = None
    high: float | None = None


def at_least(low: float) -> Bounds:
    return Bounds(low)


def between(low: float, high: float) -> Bounds:
    return Bounds(low, high)


def numbers(text: Any) -> list[float]:
    """Return the numbers in ``0:0.1:0.001`` (start:stop:step, stop included), in a comma list, or in both mixed.

    A step left out is 1, which must then lead to the stop.
    """
    if isinstance(text, int | float):
        return [float(text)]
    return [number for part in str(text).split(",") for number in _range_of(part)]


def _range_of(part: str) -> list[float]:
    try:
        values = [float(piece) for piece in part.strip().split(":")]
    except ValueError:
        raise ValueError(f"{part!r} is neither a number nor start:stop:step") from None
    if len(values) == 1:
        return values
    if len(values) == 2 and values[0] <= values[1] < math.inf and (values[1] - values[0]) % 1:
        such = f"{part.strip()}:{(values[1] - values[0]) / 10:g}"
        raise ValueError(f"{part!r} names no step; start:stop:step is expected, such as {such}")
    start, stop, step = [*values, 1.0] if len(values) == 2 else [*values, 0.0, 0.0][:3]
    if len(values) > 3 or not (step > 0 and -math.inf < start <= stop < math.inf):
        raise ValueError(f"{part!r} is not start:stop:step with step > 0")
    steps = (stop - start) / step + 1e-9
    if steps >= MAX_NUMBERS:
        raise ValueError(f"{part!r} are {steps + 1:,.0f} numbers; at most {MAX_NUMBERS:,} are taken")
    return [round(start + i * step, 12) for i in range(int(steps) + 1)]


def whole_numbers(text: Any) -> list[int]:
    """Return ``numbers`` that are all whole."""
    parsed = numbers(text)
    if not all(number.is_integer() for number in parsed):
        raise ValueError(f"{text!r}: whole numbers are expected")
    return [int(number) for number in parsed]


def number_range(text: Any) -> tuple[int, int]:
    """Return minimum and maximum of ``3:10``; of ``5`` both are 5."""
    try:
        ends = [int(end) for end in str(text).split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise ValueError(f"{text!r} is not minimum:maximum")
    return ends[0], ends[-1]


def sizes(text: Any) -> tuple[int, ...]:
    """Return the shape in ``3,32,32``."""
    return tuple(whole_numbers(text))


def names(text: Any) -> tuple[str, ...]:
    """Return the names of a comma list; none of an empty one."""
    return tuple(name.strip() for name in str(text).split(",")) if text else ()


def duration(text: Any) -> float:
    """Return the seconds in ``20ms``, ``90s``, ``2min``, ``1.5h`` or a bare number."""
    seconds = duration_or_zero(text)
    if seconds == 0:
        raise ValueError(f"{text!r} is no duration such as 20ms, 90s, 2min or 1h")
    return seconds


def duration_or_zero(text: Any) -> float:
    """Return the seconds of ``duration``, or of ``0s``."""
    unit = next((unit for unit in _SECONDS if str(text).endswith(unit)), "s")
    try:
        seconds = float(str(text).removesuffix(unit)) * _SECONDS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is no duration such as 20ms, 90s, 2min or 1h")
    return seconds


def latency(text: Any) -> float:
    """Return the seconds in ``20ms``, ``500us`` or ``1.5s``. A bare number could be of any unit."""
    stated = str(text).strip()
    if stated[-1:].isdigit():
        raise ValueError(
            f"{text!r} names no unit: give microseconds, milliseconds or seconds, such as {stated}us, {stated}ms or "
            f"{stated}s"
        )
    return duration(text)


def tolerance(text: Any) -> float | dict[float, float]:
    """Return the tolerance in ``0.05``, or the shares of requests by tolerance in ``0=0.2,0.05=0.8``."""
    try:
        if "=" not in str(text):
            return float(text)
        pairs = [(float(left), float(share)) for left, _, share in (part.partition("=") for part in text.split(","))]
    except ValueError:
        pairs = []
    if len(dict(pairs)) < max(1, len(pairs)):
        raise ValueError(f"{text!r} is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1")
    return dict(pairs)


def named_texts(texts: Sequence[str]) -> dict[str, str]:
    """Return value by name of NAME=VALUE texts; a name may hold ``=`` itself."""
    named: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.rpartition("="))
        if not (equals and name and value):
            raise ValueError(f"{text!r} is not NAME=VALUE")
        if name in named:
            raise ValueError(f"{name!r} is given twice")
        named[name] = value
    return named


def named_numbers(texts: Sequence[str]) -> dict[str, float]:
    """Return number by name of NAME=NUMBER texts."""
    named = named_texts(texts)
    try:
        return {name: float(value) for name, value in named.items()}
    except ValueError:
        raise ValueError(f"{', '.join(texts)!r}: NAME=NUMBER is expected") from None
