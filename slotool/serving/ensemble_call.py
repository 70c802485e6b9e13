"""A call of both versions of a Conc ensemble at the same time, each on its own worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slotool.errors import SlotoolError
from slotool.serving.ensemble import EnsemblePlan
from slotool.serving.outputs import Computed, combined

CallOutcome = Computed | Exception
# An outcome, and the instant in µs at which it was there.
OutcomeCallback = Callable[[CallOutcome, float], None]


class EnsembleCall:
    """Waits for the ``first`` version, and for the ``second`` where the first is not confident; calls ``done`` once.

    The second answer is not needed when the first is confident, or fails: then ``cancel`` is called, unless the second
    has ended. So the answers are Seq's, example by example (tolerance-tiers, §IV-C).
    """

    def __init__(self, plan: EnsemblePlan, done: OutcomeCallback, cancel: Callable[[], None]):
        self._plan, self._done, self._cancel = plan, done, cancel
        self._first: Computed | None = None
        self._unsure: np.ndarray | None = None
        self._second: CallOutcome | None = None
        self.over = False

    def first(self, outcome: CallOutcome, now_us: float) -> None:
        """The first version's worker has ended."""
        if not isinstance(outcome, Exception):
            try:
                self._unsure = self._plan.consults(outcome)
            except SlotoolError as error:
                outcome = error
        if not isinstance(outcome, Exception) and self._unsure is not None and self._unsure.any():
            self._first = outcome
            self._combine(now_us)
            return
        if self._second is None:
            self._cancel()
        self._report(outcome, now_us)

    def second(self, outcome: CallOutcome, now_us: float) -> None:
        """The second version's worker has ended."""
        self._second = outcome
        self._combine(now_us)

    def _combine(self, now_us: float) -> None:
        if self.over or self._first is None or self._second is None or self._unsure is None:
            return
        if isinstance(self._second, Exception):
            self._report(self._second, now_us)
            return
        try:
            self._report(combined(self._first, self._unsure, self._second.take(self._unsure)), now_us)
        except SlotoolError as error:
            self._report(error, now_us)

    def _report(self, outcome: CallOutcome, now_us: float) -> None:
        self.over = True
        self._done(outcome, now_us)
