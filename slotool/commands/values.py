"""Values of parameters: bounds, and readers of texts on the command line and in option files.

A reader takes a text of the command line or a number of a TOML file. It raises ``ValueError`` with a sentence that does
not name the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from slotool.commands.measured_networks import ROW_FILTERS

Kind = TypeVar("Kind", int, float)
MAX_NUMBERS = 10_000
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, or of each in a sequence, for ``Annotated``; inclusive unless they are ``excluded``."""

    low: float = -math.inf
    high: float = math.inf
    excluded: bool = False

    def hold(self, number: float) -> bool:
        """True if a number lies within; NaN does not."""
        return self.low < number < self.high if self.excluded else self.low <= number <= self.high

    @property
    def problem(self) -> str:
        """Clause on why a number is rejected."""
        if self.high == math.inf:
            return f"is no number above {self.low:g}" if self.excluded else f"is too few, at least {self.low:g}"
        both = ", both excluded" if self.excluded else ""
        return f"does not lie between {self.low:g} and {self.high:g}{both}"


@dataclass(frozen=True)
class RowColumns:
    """Columns of a latency table by which rows are selected, for ``Annotated``: an option for each."""

    columns: tuple[str, ...]


Rows = Annotated[Mapping[str, Any], RowColumns(ROW_FILTERS)]
ColocatedRows = Annotated[Mapping[str, Any], RowColumns((*ROW_FILTERS, "placement"))]


def at_least(low: float) -> Bounds:
    return Bounds(low)


def between(low: float, high: float) -> Bounds:
    return Bounds(low, high)


def above(low: float) -> Bounds:
    return Bounds(low, excluded=True)


def inside(low: float, high: float) -> Bounds:
    """Return bounds without their ends."""
    return Bounds(low, high, excluded=True)


def numbers(text: Any) -> list[float]:
    """Return the numbers in ``0:0.1:0.001`` (start:stop:step, stop included), in a comma list, or in both mixed.

    Without a step it is 1, which must lead to the stop.
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
    """Return the names in a comma list, none for an empty text."""
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
    expected = "a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1"
    shares = _shares(text, float, expected)
    return next(iter(shares)) if len(shares) == 1 and "=" not in str(text) else shares


def shares_by_priority(text: Any) -> dict[int, float]:
    """Return shares of requests by priority: ``1`` is all of 1, ``1=0.2,2=0.3`` leaves half of them without any."""
    return _shares(text, int, "a priority from 1 on nor shares like 1=0.2,2=0.3 that add up to 1 at most")


def _shares(text: Any, kind: Callable[[str], Kind], expected: str) -> dict[Kind, float]:
    """Return shares by key; a key alone has all."""
    try:
        parts = [part.partition("=") for part in str(text).split(",")]
        pairs = [(kind(key), float(share) if equals else 1.0) for key, equals, share in parts]
    except ValueError:
        pairs = []
    if not pairs or len(dict(pairs)) < len(pairs):
        raise ValueError(f"{text!r} is neither {expected}")
    return dict(pairs)


def prices_per_second(texts: Sequence[str]) -> float | dict[str, float]:
    """Return the price in ``0.02``, or the price by version of ``small=0.01,large=0.04`` in one text or several.

    Names of versions may hold ``=`` themselves (k=0.5), so the price follows the last one.
    """
    single = [text for text in texts if "=" not in text]
    if single and len(texts) > 1:
        raise ValueError(
            f"{single[0]} is a price of every version, and another one is given; give one number, or VERSION=PRICE for "
            "each version"
        )
    try:
        return float(single[0]) if single else named_numbers([part for text in texts for part in text.split(",")])
    except ValueError as error:
        if "twice" in str(error):
            raise
        raise ValueError(f"{','.join(texts)!r} is neither a number nor VERSION=PRICE,…") from None


def column_names(text: str) -> dict[str, str]:
    """Return column by key of ``version=service,truth=label``."""
    try:
        return named_texts([part for part in text.split(",") if part.strip()])
    except ValueError:
        raise ValueError(f"{text!r} is not KEY=COLUMN,… such as version=service") from None


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
