"""Batch on its way through a cascade: the next version to ask, its examples, and the answers to send.

The caller asks the versions, here or behind other servers. The cascade decides whether an answer is enough and which
one to send, as it does when tables are replayed.
"""

from __future__ import annotations

import numpy as np

from slotool.errors import InputError
from slotool.rules.policies.cascades import Cascade
from slotool.serving.outputs import Outputs, gathered


class CascadeRun:
    """Run of ``examples``: ``next_rows`` and ``record`` (or ``missing``) alternate until no rows are left."""

    def __init__(self, cascade: Cascade, examples: int):
        self.cascade = cascade
        # By version: its examples and answers.
        self.answered: dict[str, tuple[np.ndarray, Outputs | None]] = {}
        self._rows, self._picked = np.arange(examples), np.full(examples, -1)

    @property
    def step(self) -> int:
        """Index of the next version to ask."""
        return len(self.answered)

    @property
    def next_rows(self) -> np.ndarray | None:
        """Examples for the next version: int [any], all at first; None when no version need be asked."""
        return self._rows if len(self._rows) and self.step < len(self.cascade.steps) else None

    def record(self, answers: Outputs) -> None:
        """Record answers to ``next_rows``. Raises ``InputError`` for answers without a confidence."""
        if answers.confidence is None:
            version = self.cascade.steps[self.step].version
            raise InputError(f"version {version} states no confidence: no second version can be consulted")
        self._take(answers, answers.confidence)

    def missing(self) -> None:
        """Record that the next version gives no answer: other versions' answers are sent."""
        self._take(None, np.full(len(self._rows), np.nan))

    @property
    def unanswered(self) -> bool:
        """True if all versions were asked and some example has no answer to send."""
        return self.next_rows is None and bool((self._picked < 0).any())

    def answers(self) -> Outputs:
        """Return the batch of answers to send. Raises ``RunError`` when the versions' outputs make no batch."""
        parts = list(self.answered.values())
        _, answers = parts[int(self._picked[0])]
        return answers if len(self._picked) == 1 and answers is not None else gathered(parts, self._picked)

    def _take(self, answers: Outputs | None, confidence: np.ndarray) -> None:
        rows, step = self._rows, self.cascade.steps[self.step]
        if answers is not None:
            self._picked[rows] = self.step
        self.answered[step.version] = rows, answers
        self._rows = rows[:0] if step.at_least is None else rows[~step.accepts(confidence)]
