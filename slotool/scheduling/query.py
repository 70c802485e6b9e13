"""A query as a policy sees it: what it asks for and when it must be answered, without its tensors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from slotool.tables import OperatingPoint

RESPONSE_TIME = "response-time"
DEADLINE_PASSED = "the deadline has passed"


class Query(NamedTuple):
    """One request on its way through the scheduler.

    ``arrival_us`` and ``deadline_us`` are instants of one clock (any origin), in µs; no deadline is ``inf``.
    ``tolerance``: error degradation accepted against the best version (tolerance-tiers, IV-A), ``objective``: what
    to save at that tolerance. ``min_accuracy``: accuracy the answer may be expected to have (slo-aware, §2.2).
    ``priority``: 1 is the most important, then 2 …; 0, the default, comes last (as in the Open Inference
    Protocol's servers). It decides between equal deadlines, and which query is shed when not all can be in time.
    ``examples``: how many examples must be answered together. ``expected_accuracy``: what this very input may
    expect of each point; None when points differ only on average. ``alone``: it shares no call with others.
    ``batch_key``: it shares a call only with queries of the same key, whose tensors can be joined; such a call may pass
    others that can still be in time.
    """

    id: str
    arrival_us: float
    deadline_us: float = math.inf
    tolerance: float | None = None
    objective: str = RESPONSE_TIME
    min_accuracy: float | None = None
    priority: int = 0
    examples: int = 1
    expected_accuracy: Mapping[OperatingPoint, float] | None = None
    alone: bool = False
    batch_key: Hashable = None

    def slack_us(self, now_us: float) -> float:
        """µs left until the deadline; negative once it has passed, ``inf`` without one."""
        return self.deadline_us - now_us

    @property
    def urgency(self) -> tuple[float, float, float]:
        """What the queue sorts by, smallest first: deadline, then priority, then arrival."""
        return self.deadline_us, self.priority or math.inf, self.arrival_us

    @property
    def level(self) -> float:
        """``priority`` as a number that grows as importance falls: ``inf`` for none."""
        return self.priority or math.inf
