"""Delayed labels: measured accuracy, and whether the guarantees of the rules still hold."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.columns import Inputs, concatenate
from slotool.elastic import ElasticModel
from slotool.elastic.evaluation import version_name
from slotool.errors import SlotoolError
from slotool.models import Classification
from slotool.rules.drift import Watched, Watcher
from slotool.rules.ruleset import RuleSet
from slotool.serving import rejections
from slotool.serving.ensemble import compute
from slotool.serving.model_queue import InferenceResult
from slotool.serving.served import ServedModel
from slotool.tables import OutcomeTable

# Answers remembered until their labels come: so many, and no more than so many bytes of input.
MAX_REMEMBERED, MAX_BYTES = 10_000, 64 * 2**20
# Accuracy covers so many labelled examples, the latest.
MAX_LABELLED = 5_000
# Certificates are looked at again after so many labelled requests.
LOOK_EVERY = 20
ALARM_CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class _Remembered:
    x: Inputs
    answers: np.ndarray
    in_time: bool


# Inputs and their true classes.
_Labelled = tuple[Inputs, np.ndarray]


class Feedback:
    """Keeps answers until their labels arrive, and evaluates them. One per served model.

    A label given for a request is held against its answer: effective accuracy is the share of labelled answers that
    were right and in time, times the share of all requests that were answered at all (model-switching, §2). Where rules
    serve, every version that they consult answers the labelled input too, whichever the request was answered by, so
    that each certificate is watched on all labels (``rules.drift``).
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Remembered] = OrderedDict()
        self._bytes = 0
        self._right: deque[tuple[bool, bool]] = deque(maxlen=MAX_LABELLED)
        self._unseen: list[_Labelled] = []
        self._answered = self._rejected = self._labelled = 0
        self._watcher: Watcher | None = None
        self.alarms: list[Watched] = []
        self.confirmed: list[Watched] = []

    def answered(self, x: Inputs, answer: InferenceResult) -> None:
        """Remember the answer to ``x`` until its label comes."""
        self._answered += 1
        self._waiting[answer.request] = _Remembered(x, answer.labels, answer.slack_us >= 0)
        self._bytes += x.nbytes
        while len(self._waiting) > MAX_REMEMBERED or self._bytes > MAX_BYTES:
            _, forgotten = self._waiting.popitem(last=False)
            self._bytes -= forgotten.x.nbytes

    def remembers(self, request: str) -> bool:
        """Whether its labels may still come."""
        return request in self._waiting

    def rejected(self) -> None:
        """A request ended without an answer."""
        self._rejected += 1

    def label(self, served: ServedModel, request: str, labels: np.ndarray) -> None:
        """Take the true classes (int64 [n]) of the examples of a request.

        Raises ``Rejection``: 404 for a request that is not remembered, or was labelled already; 400 for another number
        of labels than it had examples, a class there is not, or a model whose answers are no classes.
        """
        if not _classifies(served.model):
            task = served.model.task.name if served.model.task is not None else "no task"
            raise rejections.bad_request(f"model {served.name} answers {task}: labels are taken of classes only")
        remembered = self._waiting.get(request)
        if remembered is None:
            raise rejections.not_found(f"request {request[:40]!r} is not remembered: old, labelled, or never answered")
        if labels.shape != remembered.answers.shape:
            raise rejections.bad_request(f"{len(labels)} labels for a request of {len(remembered.answers)} examples")
        if not ((labels >= 0) & (labels < served.model.classes)).all():
            raise rejections.bad_request(f"labels are classes from 0 to {served.model.classes - 1}")
        del self._waiting[request]
        self._bytes -= remembered.x.nbytes
        self._right.extend((bool(right), remembered.in_time) for right in labels == remembered.answers)
        self._labelled += len(labels)
        if served.rules is not None:
            self._unseen.append((remembered.x, labels))

    @property
    def accuracy(self) -> float:
        """Of the last labelled examples; NaN before any."""
        return float(np.mean([right for right, _ in self._right])) if self._right else math.nan

    def summary(self) -> dict[str, Any]:
        """``labelled`` examples, ``accuracy`` of the last of them and ``effective_accuracy`` (None before any), and
        the ``alarms``: tiers whose guarantee the labels violate; and those whose guarantee they alone confirm."""
        right = np.array(self._right, dtype=bool).reshape(-1, 2)
        asked = self._answered + self._rejected
        share = self._answered / asked if asked else 1.0
        return {
            "labelled": self._labelled,
            "accuracy": self.accuracy if len(right) else None,
            "effective_accuracy": float(right.all(axis=1).mean()) * share if len(right) else None,
            "alarms": [{"point": w.point.label, "tolerance": w.tolerance, "evidence": w.evidence} for w in self.alarms],
            "confirmed": [
                {"point": w.point.label, "tolerance": w.tolerance, "labelled": w.confirmed_at} for w in self.confirmed
            ],
        }

    async def look(self, served: ServedModel) -> None:
        """Have the versions answer what was labelled since, and look at the certificates, when it is time.

        In a thread, since it takes tens of milliseconds. Labels of examples that a version fails on, such as one
        behind a server that is gone, say nothing about certificates.
        """
        rules = served.rules
        if rules is None or len(self._unseen) < LOOK_EVERY:
            return
        taken, self._unseen = self._unseen, []
        if self._watcher is None or self._watcher.rules is not rules:
            self._watcher, self.alarms, self.confirmed = Watcher(rules, ALARM_CONFIDENCE), [], []
        watcher = self._watcher
        try:
            watched = await asyncio.to_thread(_look, served.model, watcher, taken)
        except SlotoolError:
            return
        if watcher is self._watcher:
            self.alarms = [w for w in watched if w.alarm_at is not None]
            self.confirmed = [w for w in watched if w.confirmed_at is not None]


def _classifies(model: ElasticModel) -> bool:
    return model.signature is None or isinstance(model.task, Classification)


def _look(model: ElasticModel, watcher: Watcher, labelled: list[_Labelled]) -> list[Watched]:
    watcher.see(_outcomes(model, watcher.rules, labelled))
    return watcher.watched()


def _outcomes(model: ElasticModel, rules: RuleSet, labelled: list[_Labelled]) -> OutcomeTable:
    """What each version the rules consult would have answered; their time is not measured here, so it is none."""
    points = {version_name(point): point for point in model.points}
    parts, labels = _joined([x for x, _ in labelled]), np.concatenate([labels for _, labels in labelled])
    frames = []
    for version in {*rules.versions, rules.best_version}:
        computed = [compute(model, x, points[version]) for x in parts]
        answers = np.concatenate([part.answers for part in computed])
        sure = np.concatenate([np.full(len(part), np.nan) if part.confidence is None else part.confidence
                               for part in computed])  # fmt: skip
        error = (answers != labels).astype(np.float64)
        columns = {"version": version, "error": error, "confidence": sure, "latency_s": 0.0}
        frames.append(pd.DataFrame({"example": [str(i) for i in range(len(labels))], **columns}))
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def _joined(parts: Sequence[Inputs]) -> list[Inputs]:
    """The same examples in as few calls as their shapes allow, in the same order."""
    joined = []
    for _, alike in groupby(parts, key=lambda x: x.shape[1:] if isinstance(x, np.ndarray) else x.batch_key):
        joined.append(concatenate(list(alike)))
    return joined
