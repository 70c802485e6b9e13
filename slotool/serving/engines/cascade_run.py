"""Batch on its way through a cascade: the next version to ask, its examples, and the answers to send.

The caller asks the versions, here or behind other servers. The cascade decides whether an answer is enough and which
one to send, as it does when tables are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.errors import InputError
from slotool.rules.policies.cascades import Cascade
from slotool.serving.outputs import Outputs, gathered
from slotool.tables.labels import label_text


class OneCascadeRun:
    """``BatchCascadeRun`` of one example without arrays, which would take longer than the decision."""

    def __init__(self, cascade: Cascade, x: Inputs, names: Sequence[str] = ()):
        self.cascade, self.x, self._names = cascade, x, names
        self._answered: dict[str, Outputs | None] = {}
        # Values that conditions have read: most read them again.
        self._confidences: dict[str, float] = {}
        self._labels: dict[str, str] = {}
        self._picked: Outputs | None = None
        self._over = False

    @property
    def step(self) -> int:
        """Index of the next version to ask."""
        return len(self._answered)

    @property
    def answered(self) -> dict[str, tuple[np.ndarray, Outputs | None]]:
        """The example and its answer, by version asked."""
        return {name: (_THE_ONE, answers) for name, answers in self._answered.items()}

    @property
    def next_rows(self) -> np.ndarray | None:
        """The example, while a further version must be asked; else None."""
        return None if self._over else _THE_ONE

    def record(self, answers: Outputs) -> None:
        """Record the next version's answer. Raises ``InputError`` if the conditions need more outputs."""
        self._take(answers)

    def missing(self) -> None:
        """Record that the next version gives no answer."""
        self._take(None)

    @property
    def unanswered(self) -> bool:
        """True if all versions were asked and none has an answer to send."""
        return self._over and self._picked is None

    def answers(self) -> Outputs:
        """Return the answer to send."""
        assert self._picked is not None
        return self._picked

    def _take(self, answers: Outputs | None) -> None:
        step = self.cascade.steps[len(self._answered)]
        self._answered[step.version] = answers
        if step.accept is not None and not step.accept.holds(self):
            return
        self._over = True
        names = self.cascade.versions[: len(self._answered)]
        self._picked = self._answered[names[self.cascade.choose_one(self, names)]]

    def confidence(self, version: str) -> float:
        cached = self._confidences.get(version)
        if cached is None:
            answers = self._answered[version]
            cached = math.nan if answers is None else float(_confidence_of(version, answers)[0])
            self._confidences[version] = cached
        return cached

    def label(self, version: str) -> str:
        cached = self._labels.get(version)
        if cached is None:
            answers = self._answered[version]
            cached = self._labels[version] = "" if answers is None else label_of(answers.first, self._names)
        return cached

    def feature(self, name: str) -> float:
        return float(_feature_of(self.x, name, _THE_ONE)[0])


_THE_ONE = np.arange(1)
_THE_ONE.flags.writeable = False


class BatchCascadeRun:
    """Run of batch ``x``: ``next_rows`` and ``record`` (or ``missing``) alternate until no rows are left."""

    def __init__(self, cascade: Cascade, x: Inputs, names: Sequence[str] = ()):
        self.cascade, self.x, self.names = cascade, x, names
        # By version: its examples and answers.
        self.answered: dict[str, tuple[np.ndarray, Outputs | None]] = {}
        # By version, values that conditions have read: making them costs more than comparing.
        self.labels: dict[str, np.ndarray] = {}
        self._rows = np.arange(len(x))
        self._picked = np.full(len(x), -1)
        self._complete = True  # no version's answers are missing

    @property
    def step(self) -> int:
        """Index of the next version to ask."""
        return len(self.answered)

    @property
    def next_rows(self) -> np.ndarray | None:
        """Examples for the next version: int [any], all at first; None when no version need be asked."""
        return self._rows if len(self._rows) and len(self.answered) < len(self.cascade.steps) else None

    def record(self, answers: Outputs) -> None:
        """Record answers to ``next_rows``. Raises ``InputError`` if the conditions need more outputs."""
        self._take(answers)

    def missing(self) -> None:
        """Record that the next version gives no answer: other versions' answers are sent."""
        self._take(None)

    @property
    def unanswered(self) -> bool:
        """True if all versions were asked and some example has no answer to send."""
        return self.next_rows is None and bool((self._picked < 0).any())

    def answers(self) -> Outputs:
        """Return the batch of answers to send. Raises ``RunError`` when the versions' outputs make no batch."""
        parts = list(self.answered.values())
        _, answers = parts[int(self._picked[0])]
        return answers if len(self._picked) == 1 and answers is not None else gathered(parts, self._picked)

    def _take(self, answers: Outputs | None) -> None:
        rows, step = self._rows, self.cascade.steps[len(self.answered)]
        self._complete &= answers is not None
        self.answered[step.version] = rows, answers
        answers_so_far = _Answers(self, rows)
        if step.accept is not None:
            done = step.accept.holds(answers_so_far)
            enough = np.count_nonzero(done)
            if not enough:
                return
            if enough < len(rows):
                self._rows, rows = rows[~done], rows[done]
                answers_so_far = _Answers(self, rows)
            else:
                self._rows = rows[:0]
        else:
            self._rows = rows[:0]
        picked = self.cascade.choose(answers_so_far, len(self.answered))
        if self._complete:
            self._picked[rows] = picked
        else:
            answered = np.array([answers is not None for _, answers in self.answered.values()])
            self._picked[rows] = np.where(answered[picked], picked, -1)


class _Answers:
    """Answers to ``rows`` so far, as conditions read them."""

    def __init__(self, run: BatchCascadeRun, rows: np.ndarray):
        self._run, self._rows = run, rows

    def confidence(self, version: str) -> np.ndarray:
        rows, answers = self._run.answered[version]
        if answers is None:
            return np.full(len(self._rows), np.nan)
        confidence = _confidence_of(version, answers)
        return confidence if len(rows) == len(self._rows) else confidence[np.searchsorted(rows, self._rows)]

    def label(self, version: str) -> np.ndarray:
        rows, answers = self._run.answered[version]
        cached = self._run.labels.get(version)
        if cached is None:
            names = self._run.names
            texts = [""] * len(rows) if answers is None else [label_of(a, names) for a in answers.answers.tolist()]
            cached = self._run.labels[version] = np.array(texts, dtype=object)
        return cached if len(rows) == len(self._rows) else cached[np.searchsorted(rows, self._rows)]

    def feature(self, name: str) -> np.ndarray:
        return _feature_of(self._run.x, name, self._rows)


CascadeRun = OneCascadeRun | BatchCascadeRun


def cascade_run(cascade: Cascade, x: Inputs, names: Sequence[str] = ()) -> CascadeRun:
    """Start the run of a batch through a cascade, with the names of ``class_names``."""
    return OneCascadeRun(cascade, x, names) if len(x) == 1 else BatchCascadeRun(cascade, x, names)


def class_names(cascades: Iterable[Cascade], names: Sequence[str]) -> Sequence[str]:
    """Return ``names`` of classes where thresholds of ``cascades`` are by name; empty where they are by number."""
    all_names = frozenset(names)
    return names if any(not cascade.labels.isdisjoint(all_names) for cascade in cascades) else ()


def label_of(answer: object, names: Sequence[str]) -> str:
    """Format an answer as outcome tables do, with ``class_names``."""
    if names and isinstance(answer, int) and 0 <= answer < len(names):
        return names[answer]
    return label_text(answer)


def _confidence_of(version: str, answers: Outputs) -> np.ndarray:
    if answers.confidence is None:
        raise InputError(f"version {version} states no confidence: no second version can be consulted")
    return answers.confidence


def _feature_of(x: Inputs, name: str, rows: np.ndarray) -> np.ndarray:
    if not isinstance(x, Columns) or name not in x.arrays:
        raise InputError(f"the rules look at {name!r}, which is no input of the request")
    return np.asarray(x.arrays[name][rows], dtype=np.float64).reshape(len(rows), -1)[:, 0]
