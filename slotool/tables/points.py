"""The one notion of an operating point: the settings of a service for one query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slotool.errors import InputError

Setting = int | float | str

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9._:/-]+")
_TEXT = re.compile(r"[^\n]+")
# Within parentheses these are written as %28 and %29, and what would read as one of them with %25 for its percent sign.
_ESCAPED = re.compile(r"[()]|%(?=2[589])")
_ESCAPE = re.compile(r"%(2[589])")
_COMMA = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True)
class OperatingPoint:
    """Settings, e.g. ``k=0.25``, ``version=small`` or ``depth=2,width=0.5``; no settings means the full model.

    ``settings``: name to number or plain text. Two points are equal when their settings are, whatever their
    order. ``key`` is the canonical text under which tables store the point, and ``parse(key)`` gives it back. A text
    that would read as a number or as more settings stands in parentheses there: ``version=(k=0.25)``; its own are
    written as %28 and %29. Of a float it has ten digits, and so has the setting, so that 8 of 300 nodes are
    found again. ``label`` is what people and metrics see: the key without documents, which are texts that begin
    with "{".

    Raises ``InputError`` for a name or a text value that the key could not carry.
    """

    settings: tuple[tuple[str, Setting], ...] = field(default=())

    def __post_init__(self) -> None:
        carried = ((name, _carried(value)) for name, value in self.settings)
        object.__setattr__(self, "settings", tuple(sorted(carried)))
        for name, value in self.settings:
            if not _NAME.fullmatch(name):
                raise InputError(f"operating point: {name!r} is not a setting's name (lower-case letters, digits, _)")
            if isinstance(value, str) and not _TEXT.fullmatch(value):
                raise InputError(f"operating point: {value!r} cannot be a value of {name} (one line of text)")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.settings)

    @classmethod
    def of(cls, settings: Mapping[str, Setting] | None = None, /, **more: Setting) -> OperatingPoint:
        """Return a point of these settings: ``OperatingPoint.of(k=0.25)``."""
        return cls(tuple({**(settings or {}), **more}.items()))

    @classmethod
    def parse(cls, key: str) -> OperatingPoint:
        """Return the point of a ``key``. Raises ``InputError`` for an invalid one."""
        if key == "full":
            return cls()
        pairs = [part.partition("=") for part in _COMMA.split(key)]
        if any(not name or not equals or not _is_value(value) for name, equals, value in pairs):
            raise InputError(f"operating point: cannot read {key!r}; expected 'full' or 'name=value,name=value'")
        return cls(tuple((name, _number_or_text(value)) for name, _, value in pairs))

    @cached_property
    def key(self) -> str:
        """Canonical text: ``full``, or ``name=value`` pairs in alphabetical order."""
        return ",".join(f"{name}={_plain(value)}" for name, value in self.settings) or "full"

    @cached_property
    def label(self) -> str:
        """``key`` without settings that are documents, for answers, metrics and logs."""
        shown = tuple((name, v) for name, v in self.settings if not (isinstance(v, str) and v.startswith("{")))
        return self.key if len(shown) == len(self.settings) else OperatingPoint(shown).key

    def get(self, name: str) -> Setting | None:
        """Return the value of the setting ``name``, or None if the point lacks it."""
        return dict(self.settings).get(name)

    def __str__(self) -> str:
        return self.label


FULL = OperatingPoint()


def _carried(value: Setting) -> Setting:
    """Return ``value`` as read back from its text."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _plain(value: Setting) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, int):
        return str(value)
    return value if _PLAIN.fullmatch(value) and isinstance(_number_or_text(value), str) else f"({_escaped(value)})"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _is_value(text: str) -> bool:
    in_parentheses = len(text) > 2 and text[0] == "(" and text[-1] == ")"
    return in_parentheses or bool(_PLAIN.fullmatch(text)) or not isinstance(_number_or_text(text), str)


def _number_or_text(value: str) -> Setting:
    if value.startswith("("):
        return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), value[1:-1])
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
