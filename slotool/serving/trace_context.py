"""The W3C trace context of a request: which trace of its callers it belongs to (https://www.w3.org/TR/trace-context)."""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """What a ``traceparent`` header says: ``trace``, 32 hexadecimal digits, ``span``, 16 of them, and whether the
    caller records its spans."""

    trace: str
    span: str
    is_sampled: bool


class TraceContext(NamedTuple):
    """``trace`` and ``span``: ids of a request's trace and of its own span; ``parent``: of the caller's span, empty
    without one."""

    trace: str
    span: str
    parent: str

    @property
    def header(self) -> str:
        """As ``traceparent``: who gets it may make spans below this one."""
        return f"00-{self.trace}-{self.span}-01"


def parse(traceparent: str | None) -> TraceParent | None:
    """What the header says; None for no header and for one that breaks the recommendation, which is to be ignored
    (section 4.3)."""
    if traceparent is None:
        return None
    parts = _FORM.fullmatch(traceparent)
    if parts is None:
        return None
    version, trace, span, flags, more = parts.groups()
    # Version 00 ends with its flags, later ones may go on; ff is none.
    if version == "ff" or (version == "00" and more is not None) or not trace.strip("0") or not span.strip("0"):
        return None
    return TraceParent(trace, span, bool(int(flags, 16) & _SAMPLED))


def trace_id(traceparent: str | None) -> str | None:
    """The trace id in the header; None where ``parse`` says nothing."""
    found = parse(traceparent)
    return None if found is None else found.trace
