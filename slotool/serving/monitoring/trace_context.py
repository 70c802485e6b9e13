"""The W3C trace context of a request (https://www.w3.org/TR/trace-context): passed through, logged, and in spans."""

from __future__ import annotations

import re

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


def trace_id(traceparent: str | None) -> str | None:
    """Return the trace id of a ``traceparent`` header; None for no header and for one that breaks the recommendation,
    which is to be ignored (section 4.3)."""
    parts = None if traceparent is None else _FORM.fullmatch(traceparent)
    if parts is None:
        return None
    version, trace, span, more = parts.groups()
    # Version 00 ends with its flags, later ones may go on; ff is none.
    if version == "ff" or (version == "00" and more is not None) or not trace.strip("0") or not span.strip("0"):
        return None
    return trace
