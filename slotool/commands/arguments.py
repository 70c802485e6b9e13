"""Checks of arguments that several functions have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slotool.errors import ArgumentError


def require_at_least(low: float, **arguments: float | None) -> None:
    """Raise ``ArgumentError`` for the first of these arguments that is below ``low``; None is any value."""
    for name, value in arguments.items():
        if value is not None and not value >= low:
            raise ArgumentError(name, f"{value:g} is too few, at least {low:g}")


def tolerance_shares(tolerance: float | Mapping[float, float] | None) -> dict[float, float]:
    """Shares of the requests by tolerance, empty for none. Raises ``ArgumentError``."""
    if tolerance is None:
        return {}
    shares = dict(tolerance) if isinstance(tolerance, Mapping) else {tolerance: 1.0}
    meant = all(0 <= each < math.inf and share > 0 for each, share in shares.items())
    if not (meant and abs(sum(shares.values()) - 1) <= 1e-6):  # nothing of this holds for NaN
        stated = ",".join(f"{each:g}={share:g}" for each, share in shares.items())
        problem = "is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1"
        raise ArgumentError("tolerance", f"{stated!r} {problem}")
    return {float(each): float(share) for each, share in shares.items()}
