"""Delayed labels: measured accuracy, and whether the guarantees of the rules still hold."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.columns import Inputs
from slotool.models import Classification
from slotool.rules.monitor.drift import Watched
from slotool.serving import rejections
from slotool.serving.monitoring.guarantees import Guarantees, Labelled
from slotool.serving.request import InferenceResult
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel

# Answers remembered until their labels come: so many, and no more than so many bytes of input.
MAX_REMEMBERED, MAX_BYTES = 10_000, 64 * 2**20
# Accuracy covers so many labelled examples, the latest.
MAX_LABELLED = 5_000
# Names that requests may make up as they like.
MAX_UNKNOWN_GROUPS = 20


@dataclass(slots=True)
class Remembered:
    """Answered request whose labels may still come. ``x``: None where no rules served; ``answers``: int64 [n]."""

    x: Inputs | None
    answers: np.ndarray
    in_time: bool
    options: RequestOptions


class Feedback:
    """Keeps answers until their labels arrive, and evaluates them. One per served model.

    A label given for a request is held against its answer: effective accuracy is the share of labelled answers that
    were right and in time, times the share of all requests that were answered at all (model-switching, §2). Where rules
    serve, every version that they consult answers the labelled input too, whichever the request was answered by, so
    that each certificate is watched on all labels (``Guarantees``).
    """

    def __init__(self) -> None:
        # The oldest first: answers that nobody has asked about, and those that somebody may have.
        self._unread: deque[tuple[str, Inputs | None, np.ndarray, bool, RequestOptions]] = deque()
        self._remembered: OrderedDict[str, Remembered] = OrderedDict()
        # Ids of remembered requests by the ids that their clients gave them.
        self._by_own_id: dict[str, list[str]] = {}
        self._bytes = 0
        self._right: deque[tuple[bool, bool]] = deque(maxlen=MAX_LABELLED)
        self._answered = self._rejected = self._labelled = 0
        self._unknown_groups: Counter[str] = Counter()
        self.guarantees = Guarantees()

    @property
    def alarms(self) -> Sequence[Watched]:
        """Tiers whose guarantee labels violate."""
        return self.guarantees.alarms

    def answered(self, answers: Iterable[tuple[Inputs | None, InferenceResult, RequestOptions]]) -> None:
        """Remember answers until their labels come: each input, None where no rules serve, its answer, and the options
        of the request."""
        unread = self._unread
        for x, answer, options in answers:
            self._answered += 1
            self._bytes += 0 if x is None else x.nbytes
            unread.append((answer.request, x, answer.labels, answer.slack_us >= 0, options))
        while len(self._remembered) + len(unread) > MAX_REMEMBERED or self._bytes > MAX_BYTES:
            if self._remembered:
                self._forget(next(iter(self._remembered)))
            else:
                x = unread.popleft()[1]
                self._bytes -= 0 if x is None else x.nbytes

    @property
    def _waiting(self) -> OrderedDict[str, Remembered]:
        """By request. Most servers get no labels, so answers are filed when somebody asks for one."""
        while self._unread:
            request, x, labels, in_time, options = self._unread.popleft()
            self._remembered[request] = Remembered(x, labels, in_time, options)
            if options.id:
                self._by_own_id.setdefault(options.id, []).append(request)
        return self._remembered

    def of_unknown_groups(self, groups: Counter[str]) -> list[str]:
        """Count requests by groups that the rules do not know; returned are the names that are new. Only the first
        ``MAX_UNKNOWN_GROUPS`` names are kept."""
        room = MAX_UNKNOWN_GROUPS - len(self._unknown_groups)
        new = [name for name in groups if name not in self._unknown_groups][:room]
        for name in groups:
            if name in new or name in self._unknown_groups:
                self._unknown_groups[name] += groups[name]
        return new

    def rejected(self) -> None:
        """A request ended without an answer."""
        self._rejected += 1

    def label(
        self,
        served: ServedModel,
        request: str,
        labels: np.ndarray,
        groups: Sequence[str] | None = None,
        client: str | None = None,
    ) -> None:
        """Add the true classes of the examples of a request.

        Args:
            served: The model that answered.
            request: The id that came with the answer, or the one that its client gave the request.
            labels: True classes, int64 [n].
            groups: Group of all examples, or of each; None: the one that the request named.
            client: The client whose requests may be labelled; None: those of all.

        Raises:
            Rejection: 404 for a request that is not remembered, was labelled already, or came from another client; 400
                for an id that several requests share, another number of labels than examples, a class there is not, or
                a model whose answers are no classes.
        """
        _require_classes(served)
        request = self._named(request, client)
        remembered = self._waiting[request]
        if labels.shape != remembered.answers.shape:
            raise rejections.bad_request(f"{len(labels)} labels for a request of {len(remembered.answers)} examples")
        if not ((labels >= 0) & (labels < served.model.classes)).all():
            raise rejections.bad_request(f"labels are classes from 0 to {served.model.classes - 1}")
        groups = tuple(groups or (remembered.options.group,))
        if len(groups) not in (1, len(labels)):
            raise rejections.bad_request(f"{len(groups)} groups for a request of {len(labels)} examples")
        each = groups if len(groups) == len(labels) else groups * len(labels)
        if (rules := served.rules) is not None:
            named = [name for name in groups if name and name != remembered.options.group]
            self.of_unknown_groups(Counter(name for name in named if not rules.knows_group(name)))
        self._labelled += len(labels)
        self._forget(request)
        self._right.extend((bool(right), remembered.in_time) for right in labels == remembered.answers)
        if served.rules is not None and remembered.x is not None:
            self.guarantees.add(Labelled(remembered.x, labels, each))

    def _named(self, request: str, client: str | None) -> str:
        """The remembered request that its client may mean by ``request``. Raises ``Rejection`` (404, 400)."""
        waiting = self._waiting
        named = [request] if request in waiting else self._by_own_id.get(request, [])
        named = [name for name in named if client is None or waiting[name].options.client == client]
        if not named:
            raise rejections.not_found(
                f"request {request[:40]!r} is not remembered for this client: old, labelled, or never answered here"
            )
        if len(named) > 1:
            raise rejections.bad_request(
                f"{len(named)} requests have the id {request[:40]!r}: send the id that came with the answer"
            )
        return named[0]

    def _forget(self, request: str) -> None:
        remembered = self._waiting.pop(request)
        self._bytes -= 0 if remembered.x is None else remembered.x.nbytes
        if own_id := remembered.options.id:
            self._by_own_id[own_id].remove(request)
            if not self._by_own_id[own_id]:
                del self._by_own_id[own_id]

    @property
    def accuracy(self) -> float:
        """Of the last labelled examples; NaN before any."""
        return float(np.mean([right for right, _ in self._right])) if self._right else math.nan

    def summary(self) -> dict[str, Any]:
        """``labelled`` examples, ``accuracy`` of the last of them and ``effective_accuracy`` (None before any), and
        the ``alarms``: tiers whose guarantee the labels violate; and those whose guarantee they alone confirm. Where
        rules have groups, also how many examples of each were looked at, and how many name a group that no guarantee is
        for. ``unknown_groups``: requests by names of groups that the rules do not know, where there are any."""
        right = np.array(self._right, dtype=bool).reshape(-1, 2)
        asked = self._answered + self._rejected
        share = self._answered / asked if asked else 1.0
        groups = self.guarantees.by_group()
        return {
            "labelled": self._labelled,
            "accuracy": self.accuracy if len(right) else None,
            "effective_accuracy": float(right.all(axis=1).mean()) * share if len(right) else None,
            **self.guarantees.documents(),
            **({"groups": groups, "other_groups": self.guarantees.of_other_groups} if groups else {}),
            **({"unknown_groups": dict(self._unknown_groups)} if self._unknown_groups else {}),
        }


def _require_classes(served: ServedModel) -> None:
    task = served.model.task
    if not isinstance(task, Classification):
        named = task.name if task is not None else "no task"
        raise rejections.bad_request(f"model {served.name} answers {named}: labels are taken of classes only")
