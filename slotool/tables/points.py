"""The one notion of an operating point: where a service's dial stands for one query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slotool.errors import InputError

Setting = int | float | str

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TEXT = re.compile(r"[A-Za-z0-9._:/-]+")


@dataclass(frozen=True)
class OperatingPoint:
    """Dial settings, e.g. ``k=0.25``, ``version=small`` or ``depth=2,width=0.5``; no settings means the full model.

    ``settings``: dial name to number or plain text. Two points are equal when their settings are, whatever their
    order. ``key`` is the canonical text under which tables store the point, and ``parse(key)`` gives it back.

    Raises ``InputError`` for a name or a text value that the key could not carry.
    """

    settings: tuple[tuple[str, Setting], ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", tuple(sorted(self.settings)))
        for name, value in self.settings:
            if not _NAME.fullmatch(name):
                raise InputError(f"operating point: {name!r} is not a dial name (lower-case letters, digits, _)")
            if isinstance(value, str) and not _TEXT.fullmatch(value):
                raise InputError(f"operating point: {value!r} cannot be a value of {name} (letters, digits, . _ : / -)")

    @classmethod
    def of(cls, settings: Mapping[str, Setting] | None = None, /, **more: Setting) -> OperatingPoint:
        """``OperatingPoint.of(k=0.25)``."""
        return cls(tuple({**(settings or {}), **more}.items()))

    @classmethod
    def parse(cls, key: str) -> OperatingPoint:
        """The point whose ``key`` this is. Raises ``InputError`` when it is none."""
        if key == "full":
            return cls()
        pairs = [part.partition("=") for part in key.split(",")]
        if any(not name or not equals or not value for name, equals, value in pairs):
            raise InputError(f"operating point: cannot read {key!r}; expected 'full' or 'dial=value,dial=value'")
        return cls(tuple((name, _number_or_text(value)) for name, _, value in pairs))

    @property
    def key(self) -> str:
        """Canonical text: ``full``, or ``dial=value`` pairs in alphabetical order."""
        return ",".join(f"{name}={_plain(value)}" for name, value in self.settings) or "full"

    def get(self, dial: str) -> Setting | None:
        """The setting of ``dial``, or None when the point does not turn it."""
        return dict(self.settings).get(dial)

    def __str__(self) -> str:
        return self.key


FULL = OperatingPoint()


def _plain(value: Setting) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _number_or_text(value: str) -> Setting:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
