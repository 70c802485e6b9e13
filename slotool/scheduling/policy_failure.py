"""A policy that raises: which method of which policy, and what happens to the requests."""

from __future__ import annotations

from dataclasses import dataclass
from traceback import walk_tb

from slotool.scheduling.policy import Policy

# By method of a policy: what happens where it fails.
INSTEAD = {
    "decide": "the request gets no answer",
    "shed_candidate": "no request is shed",
    "serves": "requests do not share a call",
    "own_point": "no request passes another",
    "decision_for": "requests of a call are all reported as its first one",
    "planned_us": "the call has no planned length",
    "observe": "the policy learns nothing of the call",
}


@dataclass(frozen=True)
class PolicyFailure:
    """A policy, perhaps somebody's own, raised ``error`` in ``method``, or answered what it must not."""

    policy: Policy
    method: str
    error: Exception

    def __str__(self) -> str:
        kind = type(self._at_fault)
        name = getattr(kind, "name", None) or f"{kind.__module__}:{kind.__qualname__}"
        return f"the policy {name} failed in {self.method}: {type(self.error).__name__}: {self.error}"

    @property
    def _at_fault(self) -> Policy:
        """Of a policy that asks others the one that raised."""
        selves = (frame.f_locals.get("self") for frame, _ in walk_tb(self.error.__traceback__))
        return [self.policy, *(each for each in selves if isinstance(each, Policy))][-1]

    @property
    def instead(self) -> str:
        """What happens now, in words."""
        return INSTEAD[self.method]
