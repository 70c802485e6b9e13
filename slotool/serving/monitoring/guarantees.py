"""Whether the certificates of rules hold for what is labelled: of all requests, and of each group."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.columns import Columns, Inputs, concatenate
from slotool.elastic import ElasticModel
from slotool.elastic.evaluation import version_name
from slotool.errors import SlotoolError
from slotool.rules.evidence.groups import OTHERS
from slotool.rules.monitor.drift import Watched, Watcher
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.points import from_point
from slotool.rules.ruleset.rules import RuleSet
from slotool.serving.engines.cascade_run import class_names, label_of
from slotool.serving.engines.ensemble import compute
from slotool.serving.outputs import Outputs
from slotool.serving.served import ServedModel
from slotool.tables import OutcomeTable
from slotool.tables.importing import less_sure

# Certificates are looked at again after so many labelled requests.
LOOK_EVERY = 20
ALARM_CONFIDENCE = 0.99
# Inputs that are recognised when they are labelled again: 10 MB.
MAX_INPUTS = 100_000


@dataclass(frozen=True, slots=True)
class Labelled:
    """Examples of a request and their true classes: int64 [n]. ``groups``: of each, empty where it is not known."""

    x: Inputs
    labels: np.ndarray
    groups: tuple[str, ...]


class Guarantees:
    """Watches the certificates of a model's rules (``rules.drift``), by what every version answers to labelled inputs.

    An input counts once, by its first label. A certificate is about the mean over inputs, and the test assumes that
    labelled inputs are drawn independently. Versions give a repeated input the same answers, so its label is no new
    evidence: 1,500 labels of one input would confirm or violate every tier. Only constant sums are kept of what was
    looked at, and digests of the last ``MAX_INPUTS`` inputs. Other rules begin anew: they have other certificates.
    """

    def __init__(self) -> None:
        self._unseen: list[Labelled] = []
        self._watcher: Watcher | None = None
        self._watched: list[Watched] = []
        self._labelled: Counter[str] = Counter()
        # Digests of inputs that have counted, the oldest first.
        self._inputs: dict[bytes, None] = {}
        # One look at a time: labels count in the order in which they came.
        self._looking = False

    def add(self, request: Labelled) -> None:
        """Add the examples of a labelled request that have not counted yet, for the next ``look``."""
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
        """Those that labels violate."""
        return [own for own in self._watched if own.alarm_at is not None]

    @property
    def confirmed(self) -> list[Watched]:
        """Those that labels alone show to hold."""
        return [own for own in self._watched if own.confirmed_at is not None]

    def by_group(self) -> Mapping[str, int]:
        """Examples that counted, of each group of the rules; empty where they have none."""
        rules = None if self._watcher is None else self._watcher.rules
        return {name: self._labelled[name] for name in rules.config.get("groups", ())} if rules is not None else {}

    @property
    def of_other_groups(self) -> int:
        """Examples that counted and name a group for which the rules promise nothing."""
        rules = None if self._watcher is None else self._watcher.rules
        promised = rules is None or OTHERS in rules.config.get("groups", ())
        return 0 if promised else self._labelled[OTHERS]

    def documents(self) -> dict[str, list[dict[str, Any]]]:
        """``alarms`` and ``confirmed`` as plain JSON values."""
        alarms = [{**_named(own), "evidence": own.evidence} for own in self.alarms]
        return {
            "alarms": alarms,
            "confirmed": [{**_named(own), "labelled": own.confirmed_at} for own in self.confirmed],
        }

    async def look(self, served: ServedModel) -> list[tuple[str, str, dict[str, Any]]]:
        """Have the versions answer what was labelled since, and look at the certificates, when it is time.

        In a thread, since it takes tens of milliseconds. Labels of examples that a version fails on, such as one
        behind a server that is gone, say nothing about certificates. Returned are the events: kind, sentence, fields.
        """
        rules = served.rules
        if rules is None or len(self._unseen) < LOOK_EVERY or self._looking:
            return []
        taken, self._unseen, self._looking = self._unseen, [], True
        if self._watcher is None or self._watcher.rules is not rules:
            if self._watcher is not None:
                self._inputs.clear()
            self._watcher, self._watched, self._labelled = Watcher(rules, ALARM_CONFIDENCE), [], Counter()
        watcher, before = self._watcher, self._watched
        try:
            watched = await asyncio.to_thread(_look, served.model, watcher, taken)
        except SlotoolError:
            return []
        finally:
            self._looking = False
        self._watched = watched
        self._labelled.update(_group_of(name, rules) for one in taken for name in one.groups)
        return _events(served.name, rules, before, watched)


def outcomes_of(model: ElasticModel, rules: RuleSet, parts: Sequence[Inputs], labels: np.ndarray) -> OutcomeTable:
    """What each version that the rules consult answers to inputs: answers, confidences, and inputs that rules look at.

    ``labels``: int64 [examples], the true classes. Times are not measured here, so they are
    none. Raises ``SlotoolError`` when a version fails.
    """
    points = {version_name(point): point for point in model.points}
    joined = _joined(parts)
    policies = [from_point(rule.point) for rule in rules.rules]
    names = class_names([policy for policy in policies if isinstance(policy, Cascade)], model.labels)
    features = _features(joined)
    frames = []
    for version in dict.fromkeys([*sorted(rules.versions), rules.best_version]):
        computed = [compute(model, x, points[version]) for x in joined]
        answers = np.concatenate([part.answers for part in computed])
        error = (answers != labels).astype(np.float64)
        # As conditions see an answer when they serve.
        texts = np.array([label_of(answer, names) for answer in answers.tolist()], dtype=object)
        columns = {"version": version, "error": error, "confidence": _confidence(computed), "latency_s": 0.0}
        numbered = {"example": np.arange(len(answers)).astype(str), "answer": texts}
        frames.append(pd.DataFrame({**numbered, **columns, **features}))
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def _digest(example: Inputs) -> bytes:
    """Digest of one example, equal for equal values of the same tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in ({"": example} if isinstance(example, np.ndarray) else example.arrays).items():
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
    """float64 [examples]. An answer without one is less sure than all others, as in tables of answers."""
    parts = [np.full(len(part), np.nan) if part.confidence is None else part.confidence for part in computed]
    sure = np.concatenate(parts).astype(np.float64)
    return less_sure(sure, ~np.isfinite(sure))


def _features(parts: Sequence[Inputs]) -> dict[str, np.ndarray]:
    """Numbers among the inputs, of which rules may look at any by name: float64 [examples], the first of several."""
    if not parts or not isinstance(parts[0], Columns):
        return {}
    found = {}
    for name, array in parts[0].arrays.items():
        arrays = [part.arrays[name] for part in parts if isinstance(part, Columns)]
        if array.dtype.kind in "biuf" and all(own.size for own in arrays):
            found[name] = np.concatenate([own.reshape(len(own), -1)[:, 0] for own in arrays]).astype(np.float64)
    own = ("example", "version", "error", "confidence", "latency_s", "cost", "answer")
    return {name: values for name, values in found.items() if name not in own}


def _joined(parts: Sequence[Inputs]) -> list[Inputs]:
    """The same examples in as few calls as their shapes allow, in the same order."""
    joined = []
    for _, alike in groupby(parts, key=lambda x: x.shape[1:] if isinstance(x, np.ndarray) else x.batch_key):
        joined.append(concatenate(list(alike)))
    return joined


def _group_of(name: str, rules: RuleSet) -> str:
    return name if not name or name in rules.config.get("groups", ()) else OTHERS


def _named(own: Watched) -> dict[str, Any]:
    return {"point": own.point.label, "tolerance": own.tolerance, "group": own.group}


def _events(
    model: str, rules: RuleSet, before: Sequence[Watched], after: Sequence[Watched]
) -> list[tuple[str, str, dict[str, Any]]]:
    """What is known now and was not before."""
    known = {(own.point, own.group): (own.alarm_at, own.confirmed_at) for own in before}
    events = []
    for own in after:
        was = known.get((own.point, own.group), (None, None))
        whose = f" of {rules.config['group']} {own.group}" if own.group else ""
        fields = {"model": model, **_named(own)}
        for kind, at, earlier, says in (
            ("guarantee-violated", own.alarm_at, was[0], "loses more than"),
            ("guarantee-confirmed", own.confirmed_at, was[1], "keeps"),
        ):
            if at is not None and earlier is None:
                sentence = (
                    f"{model}: {at} requests{whose} show that {own.point.label} {says} tolerance {own.tolerance:g}"
                )
                events.append((kind, sentence, {**fields, "labelled": at}))
    return events
