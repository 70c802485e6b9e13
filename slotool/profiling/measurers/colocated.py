"""Co-located subjects: one process each, kept alive between combinations, timed solo, co-located, then solo again.

Each member is timed alone just before and just after, in the same process on the same cores, so drift of the machine
cancels. The label is the degradation: the co-located median against the median of those solo samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from slotool.errors import WorkerError
from slotool.profiling.barrier import SharedMemoryBarrier, Spans, colocated_samples, coordinate, stopped_share
from slotool.profiling.bench import DIGITS
from slotool.profiling.measurers.base import Measurer, request_for
from slotool.profiling.plan import Item, Settings, available_memory
from slotool.profiling.process import WorkerHung, WorkerProcess
from slotool.profiling.rows import by_key
from slotool.profiling.subjects import Subject

# A combination during which other processes took more than this share of a core is measured again, so many times.
MAX_OTHERS = 0.02
# So is one in which a member was stopped for more than this share of the co-located time.
MAX_STOPPED_SHARE = 0.02
ATTEMPTS = 3
# A new worker is started only with so much memory left; those used longest ago make room.
SPARE_BYTES = 2 << 30
# Minimum co-located time: long enough to contain several time slices of the scheduler, which are some milliseconds.
MIN_SECONDS = 0.5

# What a worker is kept for: a subject's name, which copy of it, and its cores.
Key = tuple[str, int, tuple[int, ...]]


@dataclass
class _Member:
    """A worker with its cores; ``ready`` says what was prepared on it last, ``answer`` what that gave."""

    worker: WorkerProcess
    cores: Sequence[int]
    ready: tuple[str, int] | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    used_at: float = 0.0


@dataclass(frozen=True)
class _Attempt:
    """Answers of all members, the share of a core that others took, and whether a member was stopped meanwhile."""

    answers: list[dict[str, Any]]
    others: float
    stopped: bool

    @property
    def is_clean(self) -> bool:
        return self.others <= MAX_OTHERS and not self.stopped

    @property
    def badness(self) -> tuple[bool, float]:
        """A stopped co-runner is worse than other processes on the machine."""
        return self.stopped, self.others


class _Failure(Exception):
    """A member cannot take part; holds the answer for the rows of the combination."""

    def __init__(self, answer: Mapping[str, Any]):
        super().__init__(answer["reason"])
        self.answer = dict(answer)


class ColocatedMeasurer(Measurer):
    """Rows hold the co-located samples; ``solo_s`` are the solo samples around them, ``degradation_s`` and
    ``degradation_ratio`` compare the medians, ``others`` is the share of a core that the rest of the machine took."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._members: dict[Key, _Member] = {}
        self._broken: dict[tuple[Key, tuple[str, int]], dict[str, Any]] = {}

    def rows(self, item: Item) -> list[dict[str, Any]]:
        places = self.settings.cores_of(len(item.members))
        try:
            answers = self._measured(item, places)
        except _Failure as failure:
            answers = [failure.answer] * len(item.subjects)
        rows = [self.row(item, i, places[i], answers[i]) for i in range(len(item.subjects))]
        # A subject co-located with itself has one row, with the samples of both copies.
        return [_one_round(row) for row in by_key(rows, self.settings.rule).values()]

    def close(self) -> None:
        for key in list(self._members):
            self._retire(key)

    def _measured(self, item: Item, places: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        too_big = self.too_big(item)
        if too_big:
            raise _Failure(too_big)
        keys = _keys(item, places)
        members = [self._ready(key, subject, item, keys) for key, subject in zip(keys, item.members, strict=True)]
        try:
            return self._best_attempt(item, members)
        except WorkerError as error:
            for key in keys:
                self._retire(key)
            status = "timeout" if isinstance(error, WorkerHung) else "failed"
            raise _Failure({"status": status, "reason": str(error)}) from error

    def _best_attempt(self, item: Item, members: Sequence[_Member]) -> list[dict[str, Any]]:
        """The attempt that was interrupted least; the first when it was clean."""
        attempts: list[_Attempt] = []
        while len(attempts) < ATTEMPTS and not any(attempt.is_clean for attempt in attempts):
            attempts.append(self._attempt(members))
        best = min(attempts, key=lambda attempt: attempt.badness)
        for answer in best.answers:
            answer["discarded"] = len(attempts) - 1
            answer["interrupted"] = not best.is_clean
        return best.answers

    def _attempt(self, members: Sequence[_Member]) -> _Attempt:
        before = [self._alone(member) for member in members]
        spans, others = self._colocated(members)
        after = [self._alone(member) for member in members]
        answers = []
        for member, colocated_s, alone_s in zip(
            members, colocated_samples([of.samples for of in spans]), zip(before, after, strict=True), strict=True
        ):
            calls = member.answer["calls_per_sample"]
            answers.append(self._answer(member, colocated_s / calls, np.concatenate(alone_s), others))
        return _Attempt(answers, others, stopped_share(spans) > MAX_STOPPED_SHARE)

    def _answer(self, member: _Member, colocated_s: np.ndarray, alone_s: np.ndarray, others: float) -> dict[str, Any]:
        if len(colocated_s) == 0:
            reason = f"no co-located sample within {self.settings.rule.max_seconds:g} s; allow more seconds per item"
            return {"status": "timeout", "reason": reason, "others": others}
        names = ("open_s", "prepare_s", "first_call_s", "calls_per_sample", "int8_share")
        prepared = {name: member.answer[name] for name in names if name in member.answer}
        return {
            "status": "ok",
            **prepared,
            "placement": self.settings.placement,
            "samples_s": _rounded(colocated_s[:: len(colocated_s) // self.settings.rule.max_samples + 1]),
            "solo_s": _rounded(alone_s),
            "others": others,
            "measured_at": time.time(),
        }

    def _alone(self, member: _Member) -> np.ndarray:
        answer = member.worker.ask({"do": "sample", "runs": self.settings.solo_runs}, self.settings.timeout_s)
        if answer["status"] != "ok":
            raise WorkerError(answer["reason"])
        return np.array(answer["samples_s"])

    def _colocated(self, members: Sequence[_Member]) -> tuple[list[Spans], float]:
        """Each member's samples and stops, and the share of a core that the rest of the machine took."""
        rule, workers = self.settings.round_rule, [member.worker for member in members]
        barrier = SharedMemoryBarrier.create(len(members))
        try:
            for place, worker in enumerate(workers):
                request = {"do": "run colocated", "barrier": barrier.path, "members": len(members), "member": place}
                worker.send(request)
            started, busy = time.monotonic(), _busy_with_others_s(workers)
            coordinate(
                barrier, rule.runs, (MIN_SECONDS, rule.max_seconds), lambda: all(worker.alive for worker in workers)
            )
            answers = [worker.receive(self.settings.timeout_s) for worker in workers]
            others = (_busy_with_others_s(workers) - busy) / (time.monotonic() - started)
        finally:
            barrier.close()
        failed = [answer["reason"] for answer in answers if answer["status"] != "ok"]
        if failed:
            raise WorkerError(failed[0])
        spans = [
            Spans(np.array(answer["spans"]).reshape(-1, 2), np.array(answer["stops"]).reshape(-1, 3))
            for answer in answers
        ]
        return spans, max(0.0, others)

    def _ready(self, key: Key, subject: Subject, item: Item, needed: Sequence[Key]) -> _Member:
        """The member of that key with the subject ready on it. Raises ``_Failure``."""
        wanted = (subject.point, item.batch_size)
        if (key, wanted) in self._broken:
            raise _Failure(self._broken[key, wanted])
        if key not in self._members:
            self._make_room(needed)
            self._members[key] = _Member(self.start(self.settings.backend_of(subject), key[-1]), key[-1])
        member = self._members[key]
        if member.ready != wanted:
            member.answer = _prepared(member.worker, subject, item, self.settings.timeout_s)
            member.ready = wanted
        if member.answer["status"] != "ok":
            self._retire(key)
            answer = {"status": member.answer["status"], "reason": f"{subject.label}: {member.answer['reason']}"}
            self._broken[key, wanted] = answer
            raise _Failure(answer)
        member.used_at = time.monotonic()
        return member

    def _make_room(self, needed: Sequence[Key]) -> None:
        while available_memory() < SPARE_BYTES:
            idle = [key for key in self._members if key not in needed]
            if not idle:
                return
            self._retire(min(idle, key=lambda key: self._members[key].used_at))

    def _retire(self, key: Key) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            member.worker.kill()


def _one_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of a subject that were co-located were so in the same round."""
    return {**row, "rounds": 1, "samples_per_round": [len(row["samples_s"])] if row["samples_s"] else []}


def _keys(item: Item, places: Sequence[Sequence[int]]) -> list[Key]:
    names = [member.name for member in item.members]
    return [(name, names[:i].count(name), tuple(places[i])) for i, name in enumerate(names)]


def _prepared(worker: WorkerProcess, subject: Subject, item: Item, timeout_s: float) -> dict[str, Any]:
    try:
        return worker.ask(request_for(subject, item, "prepare"), timeout_s)
    except WorkerHung as error:
        return {"status": "timeout", "reason": str(error)}
    except WorkerError as error:
        return {"status": "failed", "reason": str(error)}


def _rounded(seconds: np.ndarray) -> list[float]:
    return [round(value, DIGITS) for value in seconds.tolist()]


def _busy_with_others_s(workers: Sequence[WorkerProcess]) -> float:
    """CPU seconds that this machine has spent on other processes than this one and these workers."""
    times = psutil.cpu_times()
    own = [psutil.Process().cpu_times(), *(psutil.Process(worker.pid).cpu_times() for worker in workers)]
    busy = times.user + times.system + times.nice + times.irq + times.softirq + times.steal
    return float(busy - sum(of.user + of.system for of in own))
