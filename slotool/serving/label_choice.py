"""Which remembered answers to label: some drawn at random, and of these only the ones whose label tells something.

An answer that every tier gives as the best version does counts without a label (``rules.labelling``). What counts must
stay a random sample, whoever labels and however slowly. So answers are drawn in random order and count in that order:
one that needs no label counts once all drawn before it are labelled, and a draw ends with one that does need it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.columns import Inputs
from slotool.rules.labelling import ensembles_that_differ
from slotool.rules.ruleset import RuleSet
from slotool.serving.guarantees import Labelled, Unlabelled, outcomes_of
from slotool.serving.served import ServedModel

# Requests that may wait for a chosen label at once; and their inputs, in bytes.
MAX_CHOSEN, MAX_CHOSEN_BYTES = 1_000, 16 * 2**20
# Requests drawn that do not count yet.
MAX_UNCOUNTED = 20_000
# All versions answer so much at a time, and so many requests are drawn at most each time.
PART_REQUESTS, PART_BYTES, MAX_DRAWN = 100, 4 * 2**20, 2_000


@dataclass(slots=True)
class Remembered:
    """An answered request. ``drawn``: for labels that were chosen; ``labelled``: its label has come."""

    x: Inputs
    answers: np.ndarray
    in_time: bool
    group: str
    drawn: bool = False
    labelled: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """Of each example."""
        return (self.group,) * len(self.answers)


class LabelChoice:
    """Requests drawn for labels, in their random order, until they count. Other rules begin anew."""

    def __init__(self) -> None:
        self._order: deque[tuple[str, Labelled | Unlabelled | None]] = deque()
        self._open: dict[str, Remembered] = {}
        self._rules: RuleSet | None = None
        self._lock = asyncio.Lock()
        self._random = random.Random()
        self._drawn = self._free = 0

    def remembered(self, request: str) -> Remembered | None:
        """A request that waits for its chosen label."""
        return self._open.get(request)

    def labelled(self, request: str, labelled: Labelled) -> Iterator[Labelled | Unlabelled]:
        """Take in a chosen label; what counts now is given, in order."""
        del self._open[request]
        self._order = deque((name, labelled if name == request else known) for name, known in self._order)
        yield from self._counting()

    def _counting(self) -> Iterator[Labelled | Unlabelled]:
        while self._order and (first := self._order[0][1]) is not None:
            self._order.popleft()
            yield first

    async def draw(
        self, served: ServedModel, answers: Mapping[str, Remembered], forget: Callable[[str], None], labels: int
    ) -> list[Labelled | Unlabelled]:
        """Draw from ``answers`` until ``labels`` wait for their label, or no more can be drawn. ``forget`` takes one of
        these out of ``answers``: it is kept here. What counts now is returned, in order. Raises ``SlotoolError`` when a
        version fails."""
        rules = served.rules
        assert rules is not None
        async with self._lock:
            if self._rules is not rules:
                self._rules, self._drawn, self._free = rules, 0, 0
                self._order.clear()
                self._open.clear()
            names = [name for name, own in answers.items() if not own.drawn]
            for part in _parts(self._random.sample(names, min(len(names), MAX_DRAWN)), answers):
                if not self._has_room(labels):
                    break
                asked = [answers[name] for name in part]
                telling = await asyncio.to_thread(_telling, served, rules, [own.x for own in asked])
                for name, own, tells in zip(part, asked, telling, strict=True):
                    # One that was labelled meanwhile has counted by that.
                    if self._has_room(labels) and not own.labelled:
                        self._take(name, own, tells)
                        if tells:
                            forget(name)
        return list(self._counting())

    def _has_room(self, labels: int) -> bool:
        held = sum(own.x.nbytes for own in self._open.values())
        return len(self._open) < labels and held < MAX_CHOSEN_BYTES and len(self._order) < MAX_UNCOUNTED

    def _take(self, name: str, own: Remembered, tells: bool) -> None:
        own.drawn = True
        self._drawn += 1
        if tells:
            self._open[name] = own
        else:
            self._free += 1
        self._order.append((name, None if tells else Unlabelled(own.groups)))

    def document(self) -> dict[str, Any]:
        """``requests`` that wait for a label, in the order in which they count: the first holds back all drawn after
        it, and ``waits_for`` names it, None where none waits. Each is as feedback takes it once classes stand for null.
        And how many were ``drawn`` since these rules serve, how many of them are ``free``, they need none, and how many
        have ``counted``."""
        requests = [
            {"request": name, "labels": [None] * len(own.answers), **({"group": own.group} if own.group else {})}
            for name, own in self._open.items()
        ]
        counted = self._drawn - len(self._order)
        first = self._order[0][0] if self._order else None
        return {
            "requests": requests, "waits_for": first, "drawn": self._drawn, "free": self._free, "counted": counted,
        }  # fmt: skip


def _parts(names: Sequence[str], answers: Mapping[str, Remembered]) -> Iterator[list[str]]:
    """``names`` in parts that all versions may answer at once, without those that are forgotten by then."""
    part: list[str] = []
    size = 0
    for name in names:
        if part and (len(part) >= PART_REQUESTS or size >= PART_BYTES):
            if kept := [own for own in part if own in answers]:
                yield kept
            part, size = [], 0
        if name in answers:
            part.append(name)
            size += answers[name].x.nbytes
    if kept := [own for own in part if own in answers]:
        yield kept


def _telling(served: ServedModel, rules: RuleSet, parts: Sequence[Inputs]) -> list[bool]:
    """Of each request, whether some ensemble answers one of its examples otherwise than the best version."""
    differ = ensembles_that_differ(rules, outcomes_of(served.model, rules, parts, None)) > 0
    ends = np.cumsum([len(x) for x in parts])
    return [bool(own.any()) for own in np.split(differ, ends[:-1])]
