"""A batch on its way through a cascade: which version to ask next, for which examples, and what goes out.

The versions are asked by others, here or behind other servers. Whether an answer is enough, and which one goes out, the
cascade itself says, as it does when tables are replayed.
"""

from __future__ import annotations

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.errors import InputError
from slotool.rules.cascades import Cascade
from slotool.serving.outputs import Computed, gathered


class CascadeRun:
    """``x``: the batch. ``next_rows`` and ``given`` (or ``missing``) take turns until no rows are left to ask for."""

    def __init__(self, cascade: Cascade, x: Inputs):
        self.cascade, self.x = cascade, x
        # Per version asked: which examples it was asked for, and its answers.
        self.asked: dict[str, tuple[np.ndarray, Computed | None]] = {}
        # Per version what conditions have looked at: to make it costs more than to compare it.
        self.labels: dict[str, np.ndarray] = {}
        self._rows = np.arange(len(x))
        self._picked = np.full(len(x), -1)
        self._complete = True  # no version's answers are missing

    @property
    def step(self) -> int:
        """Which version is to be asked next, counted from 0."""
        return len(self.asked)

    @property
    def next_rows(self) -> np.ndarray | None:
        """The examples that the next version is asked for: int [any], all at first; None when there is no need."""
        return self._rows if len(self._rows) and len(self.asked) < len(self.cascade.steps) else None

    def given(self, answers: Computed) -> None:
        """Take in the next version's answers to ``next_rows``. Raises ``InputError`` where they lack what the
        conditions look at."""
        self._take(answers)

    def missing(self) -> None:
        """The next version gives no answer: none of its rows is accepted, and others' answers go out."""
        self._take(None)

    @property
    def unanswered(self) -> bool:
        """Whether all versions were asked and no answer can go out for some example."""
        return self.next_rows is None and bool((self._picked < 0).any())

    def answers(self) -> Computed:
        """What goes out for the batch. Raises ``RunError`` when the versions' outputs make no batch."""
        parts = list(self.asked.values())
        _, answers = parts[int(self._picked[0])]
        return answers if len(self._picked) == 1 and answers is not None else gathered(parts, self._picked)

    def _take(self, answers: Computed | None) -> None:
        rows, step = self._rows, self.cascade.steps[len(self.asked)]
        self._complete &= answers is not None
        self.asked[step.version] = rows, answers
        seen = _Seen(self, rows)
        if step.accept is not None:
            done = step.accept.holds(seen)
            enough = np.count_nonzero(done)
            if not enough:
                return
            if enough < len(rows):
                self._rows, rows = rows[~done], rows[done]
                seen = _Seen(self, rows)
            else:
                self._rows = rows[:0]
        else:
            self._rows = rows[:0]
        picked = self.cascade.choose(seen, len(self.asked))
        if self._complete:
            self._picked[rows] = picked
        else:
            answered = np.array([answers is not None for _, answers in self.asked.values()])
            self._picked[rows] = np.where(answered[picked], picked, -1)


class _Seen:
    """The answers to ``rows`` so far, as conditions look at them."""

    def __init__(self, run: CascadeRun, rows: np.ndarray):
        self._run, self._rows = run, rows

    def confidence(self, version: str) -> np.ndarray:
        asked, answers = self._run.asked[version]
        if answers is None:
            return np.full(len(self._rows), np.nan)
        if answers.confidence is None:
            raise InputError(f"version {version} states no confidence: no second version can be consulted")
        if len(asked) == len(self._rows):
            return answers.confidence
        return answers.confidence[np.searchsorted(asked, self._rows)]

    def label(self, version: str) -> np.ndarray:
        asked, answers = self._run.asked[version]
        known = self._run.labels.get(version)
        if known is None:
            given = [""] * len(asked) if answers is None else map(str, answers.answers.tolist())
            known = self._run.labels[version] = np.array(list(given), dtype=object)
        return known if len(asked) == len(self._rows) else known[np.searchsorted(asked, self._rows)]

    def feature(self, name: str) -> np.ndarray:
        x = self._run.x
        if not isinstance(x, Columns) or name not in x.arrays:
            raise InputError(f"the rules look at {name!r}, which is no input of the request")
        return np.asarray(x.arrays[name][self._rows], dtype=np.float64).reshape(len(self._rows), -1)[:, 0]
