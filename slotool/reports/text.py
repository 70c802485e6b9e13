"""Numbers as a reader of a report wants them."""

from __future__ import annotations

import math
import re

_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def duration(seconds: float | None) -> str:
    """Three significant digits in the unit that fits; a dash for nothing."""
    if seconds is None or math.isnan(seconds):
        return "–"
    name, scale = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    return f"{_significant(seconds / scale)} {name}"


def percent(share: float | None, digits: int = 1) -> str:
    """``97.3 %``; a dash for nothing."""
    return "–" if share is None or math.isnan(share) else f"{share * 100:.{digits}f} %"


def file_name(text: str) -> str:
    """``text`` as the stem of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "plot"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
