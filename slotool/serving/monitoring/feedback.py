"""Delayed labels: measured accuracy, and checks of the rules' guarantees."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.columns import Columns
from slotool.elastic import ElasticModel
from slotool.elastic.model import version_name
from slotool.errors import SlotoolError
from slotool.models import Classification
from slotool.rules.evidence.groups import OTHERS
from slotool.rules.monitor.drift import Watched, Watcher
from slotool.rules.ruleset.rules import RuleSet
from slotool.serving import rejections
from slotool.serving.engines.ensemble import compute
from slotool.serving.request import InferenceResult, Outputs
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel
from slotool.tables import OutcomeTable
from slotool.tables.importing import less_sure

# Labelled requests between two checks of the certificates.
LOOK_EVERY = 20
ALARM_CONFIDENCE = 0.99
# Inputs recognised when they are labelled again: 10 MB.
MAX_INPUTS = 100_000


@dataclass(frozen=True, slots=True)
class Labelled:
    """Examples of a request and their true classes: int64 [n]. ``groups``: one each, or empty if unknown."""

    x: Columns
    labels: np.ndarray
    groups: tuple[str, ...]


class Guarantees:
    """Watch of the certificates of a model's rules (``rules.drift``) on labelled inputs, answered by every version.

    An input counts once, by its first label. A certificate is about the mean over inputs, and the test assumes that
    labelled inputs are drawn independently. Versions give a repeated input the same answers, so its label is no new
    evidence: 1,500 labels of one input would confirm or violate every tier. Only constant sums are stored, and digests
    of the last ``MAX_INPUTS`` inputs. Other rules begin anew: they have other certificates.
    """

    def __init__(self) -> None:
        self._unseen: list[Labelled] = []
        self._watcher: Watcher | None = None
        self._watched: list[Watched] = []
        self._labelled: Counter[str] = Counter()
        # Digests of counted inputs, oldest first.
        self._inputs: dict[bytes, None] = {}
        # One check at a time: labels count in the order in which they came.
        self._looking = False

    def add(self, request: Labelled) -> None:
        """Add examples of a labelled request that have not counted yet, for the next ``look``."""
        new = []
        for at in range(len(request.labels)):
            digest = _digest(request.x[at : at + 1])
            if digest not in self._inputs:
                new.append(at)
                self._inputs[digest] = None
        while len(self._inputs) > MAX_INPUTS:
            del self._inputs[next(iter(self._inputs))]
        if new:
            groups = tuple(request.groups[at] for at in new)
            self._unseen.append(Labelled(request.x[np.array(new)], request.labels[new], groups))

    @property
    def alarms(self) -> list[Watched]:
        """Guarantees that labels violate."""
        return [tier for tier in self._watched if tier.alarm_at is not None]

    @property
    def confirmed(self) -> list[Watched]:
        """Guarantees that labels alone confirm."""
        return [tier for tier in self._watched if tier.confirmed_at is not None]

    def by_group(self) -> Mapping[str, int]:
        """Return the number of examples that counted for each group of the rules; empty without groups."""
        rules = None if self._watcher is None else self._watcher.rules
        return {name: self._labelled[name] for name in rules.config.get("groups", ())} if rules is not None else {}

    @property
    def of_other_groups(self) -> int:
        """Number of counted examples whose group has no guarantee."""
        rules = None if self._watcher is None else self._watcher.rules
        promised = rules is None or OTHERS in rules.config.get("groups", ())
        return 0 if promised else self._labelled[OTHERS]

    def documents(self) -> dict[str, list[dict[str, Any]]]:
        """Return ``alarms`` and ``confirmed`` as plain JSON values."""
        alarms = [{**_named(tier), "evidence": tier.evidence} for tier in self.alarms]
        return {
            "alarms": alarms,
            "confirmed": [{**_named(tier), "labelled": tier.confirmed_at} for tier in self.confirmed],
        }

    async def look(self, served: ServedModel) -> list[tuple[str, str, dict[str, Any]]]:
        """Run the versions on new labelled inputs and check the certificates, when it is time; return the events.

        This runs in a thread, since it takes tens of milliseconds. Examples on which a version fails, such as one
        behind a server that is gone, are left out. Events are kind, sentence and fields.
        """
        rules = served.rules
        if rules is None or len(self._unseen) < LOOK_EVERY or self._looking:
            return []
        inputs, self._unseen, self._looking = self._unseen, [], True
        if self._watcher is None or self._watcher.rules is not rules:
            if self._watcher is not None:
                self._inputs.clear()
            self._watcher, self._watched, self._labelled = Watcher(rules, ALARM_CONFIDENCE), [], Counter()
        watcher, before = self._watcher, self._watched
        try:
            watched = await asyncio.to_thread(_look, served.model, watcher, inputs)
        except SlotoolError:
            return []
        finally:
            self._looking = False
        self._watched = watched
        self._labelled.update(_group_of(name, rules) for one in inputs for name in one.groups)
        return _events(served.name, rules, before, watched)


def outcomes_of(model: ElasticModel, rules: RuleSet, parts: Sequence[Columns], labels: np.ndarray) -> OutcomeTable:
    """Run every version that the rules consult on labelled inputs.

    ``labels``: int64 [examples], the true classes. The table holds errors and confidences; no
    times. Raises ``SlotoolError`` when a version fails.
    """
    points = {version_name(point): point for point in model.points}
    joined = _joined(parts)
    frames = []
    for version in dict.fromkeys([*sorted(rules.versions), rules.best_version]):
        computed = [compute(model, x, points[version]) for x in joined]
        answers = np.concatenate([part.answers for part in computed])
        error = (answers != labels).astype(np.float64)
        examples = np.arange(len(answers)).astype(str)
        columns = {"version": version, "error": error, "confidence": _confidence(computed), "latency_s": 0.0}
        frames.append(pd.DataFrame({"example": examples, **columns}))
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def _digest(example: Columns) -> bytes:
    """Return a digest of one example, equal for equal values of the same tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in example.arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        for part in [array.tobytes()] if array.dtype.kind != "O" else array.ravel().tolist():
            digest.update(len(part).to_bytes(8) + (part if isinstance(part, bytes) else str(part).encode()))
    return digest.digest()


def _look(model: ElasticModel, watcher: Watcher, requests: list[Labelled]) -> list[Watched]:
    groups = [name for one in requests for name in one.groups]
    labels = np.concatenate([one.labels for one in requests])
    watcher.see(outcomes_of(model, watcher.rules, [one.x for one in requests], labels), groups)
    return watcher.watched()


def _confidence(computed: Sequence[Outputs]) -> np.ndarray:
    """Return float64 [examples]; an answer without confidence is less sure than all others, as in tables."""
    parts = [np.full(len(part), np.nan) if part.confidence is None else part.confidence for part in computed]
    sure = np.concatenate(parts).astype(np.float64)
    return less_sure(sure, ~np.isfinite(sure))


def _joined(parts: Sequence[Columns]) -> list[Columns]:
    """Concatenate examples of equal shapes, in the same order, for fewer calls."""
    return [Columns.concatenate(list(group)) for _, group in groupby(parts, key=lambda x: x.batch_key)]


def _group_of(name: str, rules: RuleSet) -> str:
    return name if not name or name in rules.config.get("groups", ()) else OTHERS


def _named(state: Watched) -> dict[str, Any]:
    return {"tier": state.tier, "point": state.point.label, "tolerance": state.tolerance, "group": state.group}


def _events(
    model: str, rules: RuleSet, before: Sequence[Watched], after: Sequence[Watched]
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the events of guarantees that are newly violated or confirmed."""
    reached = {(tier.point, tier.group): (tier.alarm_at, tier.confirmed_at) for tier in before}
    command, events = rules.certify_again, []
    for tier in after:
        alarmed, confirmed = reached.get((tier.point, tier.group), (None, None))
        fields = {"model": model, **_named(tier)}
        if tier.alarm_at is not None and alarmed is None:
            sentence = f"{model}: {tier.alarm(rules)}; certify again with fresh outcomes: {command}"
            evidence = {"evidence": tier.evidence, "evidence_wanted": tier.wanted, "command": command}
            events.append(("guarantee-violated", sentence, {**fields, "labelled": tier.alarm_at, **evidence}))
        if tier.confirmed_at is not None and confirmed is None:
            sentence = f"{model}: {tier.confirmation(rules)}"
            events.append(("guarantee-confirmed", sentence, {**fields, "labelled": tier.confirmed_at}))
    return events


# Remembered answers, and bytes of their inputs.
MAX_REMEMBERED, MAX_BYTES = 10_000, 64 * 2**20
# Latest labelled examples that accuracy covers.
MAX_LABELLED = 5_000
# Distinct unknown groups: requests may invent names.
MAX_UNKNOWN_GROUPS = 20


@dataclass(slots=True)
class Remembered:
    """Answered request whose labels may still come. ``x``: None where no rules served; ``answers``: int64 [n]."""

    x: Columns | None
    answers: np.ndarray
    in_time: bool
    options: RequestOptions


class Feedback:
    """Answers of a served model that wait for their labels, and the figures of labelled ones.

    A label is compared with its answer: effective accuracy is the share of labelled answers that were right and in
    time, times the share of requests that were answered (model-switching, §2), without those that failed by the
    client's fault. Where rules serve, every version
    that they consult answers each labelled input too, so that all labels count for each certificate (``Guarantees``).
    """

    def __init__(self) -> None:
        # Oldest first: unfiled answers, and those filed by request.
        self._unread: deque[tuple[str, Columns | None, np.ndarray, bool, RequestOptions]] = deque()
        self._remembered: OrderedDict[str, Remembered] = OrderedDict()
        # Ids of remembered requests by their clients' ids.
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

    def answered(self, answers: Iterable[tuple[Columns | None, InferenceResult, RequestOptions]]) -> None:
        """Remember answers until their labels come: input (None without rules), answer, and options of the request."""
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
        """Remembered answers by request, filed at the first look: most servers get no labels."""
        while self._unread:
            request, x, labels, in_time, options = self._unread.popleft()
            self._remembered[request] = Remembered(x, labels, in_time, options)
            if options.id:
                self._by_own_id.setdefault(options.id, []).append(request)
        return self._remembered

    def of_unknown_groups(self, groups: Counter[str]) -> list[str]:
        """Count requests by groups unknown to the rules, up to ``MAX_UNKNOWN_GROUPS``; return the new groups."""
        room = MAX_UNKNOWN_GROUPS - len(self._unknown_groups)
        new = [name for name in groups if name not in self._unknown_groups][:room]
        for name in groups:
            if name in new or name in self._unknown_groups:
                self._unknown_groups[name] += groups[name]
        return new

    def rejected(self, count: int) -> None:
        """Count requests without an answer, except those that failed by the client's fault."""
        self._rejected += count

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
        group_of_example = groups if len(groups) == len(labels) else groups * len(labels)
        if (rules := served.rules) is not None:
            named = [name for name in groups if name and name != remembered.options.group]
            self.of_unknown_groups(Counter(name for name in named if not rules.knows_group(name)))
        self._labelled += len(labels)
        self._forget(request)
        self._right.extend((bool(right), remembered.in_time) for right in labels == remembered.answers)
        if served.rules is not None and remembered.x is not None:
            self.guarantees.add(Labelled(remembered.x, labels, group_of_example))

    def _named(self, request: str, client: str | None) -> str:
        """Return the remembered request that its client means by ``request``. Raises ``Rejection`` (404, 400)."""
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
        """Accuracy on the last labelled examples; NaN before any."""
        return float(np.mean([right for right, _ in self._right])) if self._right else math.nan

    def summary(self) -> dict[str, Any]:
        """Return the figures of labels and guarantees.

        ``labelled`` examples, ``accuracy`` of the last of them and ``effective_accuracy`` (None before any); ``alarms``
        and ``confirmed``: tiers whose guarantee the labels violate, or alone confirm. Where rules have groups:
        ``groups`` with examples of each, and ``other_groups`` with examples of groups without a guarantee.
        ``unknown_groups``: requests by group that the rules do not know, if any.
        """
        right = np.array(self._right, dtype=bool).reshape(-1, 2)
        requests = self._answered + self._rejected
        share = self._answered / requests if requests else 1.0
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
