"""What tests between real processes share."""

from __future__ import annotations

from collections.abc import Callable

from slotool.profiling.subjects import Subject

MakeSubject = Callable[..., Subject]
ATTEMPTS = 5


def shown_once(attempt: Callable[[int], bool]) -> bool:
    """Whether one of a few attempts shows an effect between real processes: in any one the host may take cores away."""
    return any(attempt(number) for number in range(ATTEMPTS))
