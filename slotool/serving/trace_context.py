"""The W3C trace context of a request: which trace of its callers it belongs to (https://www.w3.org/TR/trace-context)."""

from __future__ import annotations

import re

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


def trace_id(traceparent: str | None) -> str | None:
    """The trace id in a ``traceparent`` header, 32 hexadecimal digits; None for no header and for one that breaks the
    recommendation, which is to be ignored (section 4.3)."""
    if traceparent is None:
        return None
    parts = _FORM.fullmatch(traceparent)
    if parts is None:
        return None
    version, trace, parent, _, more = parts.groups()
    # Version 00 ends with its flags, later ones may go on; ff is none.
    if version == "ff" or (version == "00" and more is not None) or not trace.strip("0") or not parent.strip("0"):
        return None
    return trace
