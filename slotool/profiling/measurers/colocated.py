"""Co-located subjects: one process each, reused between combinations, timed solo, co-located, then solo again.

Each member is timed alone just before and just after, in the same process on the same cores, so drift of the machine
cancels. The label is the degradation: the co-located median ÷ the median of those solo samples. On a device, members
may be streams of one process instead: no context is switched between them, and they share one allocator.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from slotool.errors import WorkerError
from slotool.machine import usable_memory
from slotool.process import cpu_seconds_of_others
from slotool.profiling.barrier import SharedMemoryBarrier, Spans, colocated_samples, coordinate, stopped_share
from slotool.profiling.bench import DIGITS
from slotool.profiling.measurers.solo import Measurer, request_for
from slotool.profiling.out_of_memory import OUT_OF_MEMORY
from slotool.profiling.plan import CONTEXT_BYTES, MIN_COLOCATED_S, MIN_SOLO_S, Item, Settings
from slotool.profiling.process import START_TIMEOUT_S, MeasuringProcess, MeasuringWorker, WorkerHung
from slotool.profiling.rows import by_key
from slotool.profiling.subjects import Subject
from slotool.tables.latency import MEASURED_COLUMNS

# A combination is measured again if other processes take more than this share of a core, or a member is stopped for
# more than this share of the co-located time.
MAX_OTHERS = 0.02
MAX_STOPPED_SHARE = 0.02
ATTEMPTS = 3
# Free memory that a new worker needs; the least recently used ones are ended for it.
SPARE_BYTES = 2 << 30

# Key of a worker: name of the subject, number of its copy, and cores.
Key = tuple[str, int, tuple[int, ...]]


@dataclass
class _Member:
    """Worker with its cores; ``ready``: point and batch size prepared last; ``answer``: the result of preparing."""

    worker: MeasuringProcess
    cores: Sequence[int]
    ready: tuple[str, int] | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    used_at: float = 0.0


@dataclass(frozen=True)
class _Attempt:
    """Answers of all members, and the share of a core that others took; ``spoiled``: by a stop or throttling."""

    answers: list[dict[str, Any]]
    others: float
    spoiled: bool

    @property
    def is_clean(self) -> bool:
        return self.others <= MAX_OTHERS and not self.spoiled

    @property
    def badness(self) -> tuple[bool, float]:
        """Order of attempts: a stopped co-runner or a throttled device is worse than other processes."""
        return self.spoiled, self.others


class _Failure(Exception):
    """Failure of a member, with the answer for the rows of the combination."""

    def __init__(self, answer: Mapping[str, Any]):
        super().__init__(answer["reason"])
        self.answer = dict(answer)


class ColocatedMeasurer(Measurer):
    """Measurer of co-located subjects in a process each.

    Rows hold co-located samples; ``solo_s``: the solo samples around them; ``degradation_s`` and ``degradation_ratio``
    compare the medians; ``others``: the share of a core that other processes took.
    """

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
        except _Failure:
            for key in keys:
                self._retire(key)
            raise
        except WorkerError as error:
            for key in keys:
                self._retire(key)
            status = "timeout" if isinstance(error, WorkerHung) else "failed"
            raise _Failure({"status": status, "reason": str(error)}) from error

    def _best_attempt(self, item: Item, members: Sequence[_Member]) -> list[dict[str, Any]]:
        """Return the least disturbed of up to ``ATTEMPTS`` attempts, the first if it is clean."""
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
        rule = self.settings.round_rule
        runs, others = self._colocated(members, rule.runs, (MIN_COLOCATED_S, rule.max_seconds))
        after = [self._alone(member) for member in members]
        spans = [Spans(np.array(run["spans"]).reshape(-1, 2), np.array(run["stops"]).reshape(-1, 3)) for run in runs]
        answers = []
        for member, colocated_s, alone_s, run in zip(
            members, colocated_samples([of.samples for of in spans]), zip(before, after, strict=True), runs, strict=True
        ):
            calls = member.answer["calls_per_sample"]
            answer = self._answer(member, colocated_s / calls, np.concatenate(alone_s), others)
            answers.append(answer | {name: run[name] for name in MEASURED_COLUMNS if name in run})
        throttled = any(run["throttled"] for run in runs)
        return _Attempt(answers, others, stopped_share(spans) > MAX_STOPPED_SHARE or throttled)

    def _answer(self, member: _Member, colocated_s: np.ndarray, alone_s: np.ndarray, others: float) -> dict[str, Any]:
        if len(colocated_s) == 0:
            reason = f"no sample within {self.settings.rule.max_seconds:g} s; allow more seconds per item"
            return {"status": "timeout", "reason": reason, "others": others}
        return {
            **{name: value for name, value in member.answer.items() if name != "healthy"},
            "placement": self.settings.placement,
            "samples_s": _rounded(colocated_s[:: len(colocated_s) // self.settings.rule.max_samples + 1]),
            "solo_s": _rounded(alone_s),
            "others": others,
            "measured_at": time.time(),
        }

    def _alone(self, member: _Member) -> np.ndarray:
        """Return solo samples, s: as many as asked for, evenly spaced, of the loop that co-located ones come from."""
        count = self.settings.solo_runs
        (run,), _ = self._colocated([member], count, (MIN_SOLO_S, self.settings.timeout_s))
        (samples_s,) = colocated_samples([np.array(run["spans"]).reshape(-1, 2)])
        return samples_s[:: max(1, len(samples_s) // count)][:count] / member.answer["calls_per_sample"]

    def _colocated(
        self, members: Sequence[_Member], samples: int, seconds: tuple[float, float]
    ) -> tuple[list[dict[str, Any]], float]:
        """Return the answer of each member, and the share of a core that other processes took; see ``coordinate``."""
        workers = [member.worker for member in members]
        barrier = SharedMemoryBarrier.create(len(members))
        try:
            for place, worker in enumerate(workers):
                request = {"do": "run colocated", "barrier": barrier.path, "members": len(members), "member": place}
                worker.send(request)
            started, busy = time.monotonic(), cpu_seconds_of_others()
            coordinate(barrier, samples, seconds, lambda: all(worker.alive for worker in workers))
            answers = [worker.receive(self.settings.timeout_s) for worker in workers]
            others = (cpu_seconds_of_others() - busy) / (time.monotonic() - started)
        finally:
            barrier.close()
        _require_ok(answers)
        return answers, max(0.0, others)

    def _ready(self, key: Key, subject: Subject, item: Item, needed: Sequence[Key]) -> _Member:
        """Return the member of a key with the subject prepared. Raises ``_Failure``."""
        setting = (subject.point, item.batch_size)
        if (key, setting) in self._broken:
            raise _Failure(self._broken[key, setting])
        member = self._member_of(key, subject, needed)
        if member.ready != setting:
            self._make_room_on_device(member.worker, subject, item, needed)
            member.answer = _prepared(member.worker, subject, item, self.settings.timeout_s)
            if member.answer["status"] == OUT_OF_MEMORY and self._retire_idle(needed):
                member.answer = _prepared(member.worker, subject, item, self.settings.timeout_s)
            member.ready = setting
        if member.answer["status"] != "ok":
            self._retire(key)
            answer = {"status": member.answer["status"], "reason": f"{subject.label}: {member.answer['reason']}"}
            if answer["status"] != OUT_OF_MEMORY:
                # Beside other subjects, memory may suffice.
                self._broken[key, setting] = answer
            raise _Failure(answer)
        member.used_at = time.monotonic()
        return member

    def _member_of(self, key: Key, subject: Subject, needed: Sequence[Key]) -> _Member:
        if key not in self._members or not self._members[key].worker.alive:
            self._retire(key)
            self._make_room(needed)
            worker = self.worker_for(key, subject, needed)
            self._members[key] = _Member(worker, key[-1])
        return self._members[key]

    def worker_for(self, key: Key, subject: Subject, needed: Sequence[Key]) -> MeasuringProcess:
        """Start a worker for a member; ``needed``: all members of its combination."""
        return self.start(self.settings.backend_of(subject), key[-1])

    def _make_room(self, needed: Sequence[Key]) -> None:
        while usable_memory() < SPARE_BYTES and self._retire_oldest(needed):
            pass

    def _make_room_on_device(
        self, worker: MeasuringProcess, subject: Subject, item: Item, needed: Sequence[Key]
    ) -> None:
        """End the least recently used idle workers, which hold networks on the device, until the subject fits."""
        if self.settings.device_limit_bytes is None:
            return
        needed_bytes = self.settings.needed_bytes(Item((subject,), item.batch_size)) + CONTEXT_BYTES
        while _free_bytes(worker) < needed_bytes and self._retire_oldest(needed):
            pass

    def _retire_idle(self, needed: Sequence[Key]) -> bool:
        """End every worker that the combination does not need; return True if there were any."""
        retired = False
        while self._retire_oldest(needed):
            retired = True
        return retired

    def _retire_oldest(self, needed: Sequence[Key]) -> bool:
        """End the least recently used worker that the combination does not need; return True if there was one."""
        idle = [key for key in self._members if key not in needed]
        if idle:
            self._retire(min(idle, key=lambda key: self._members[key].used_at))
        return bool(idle)

    def _retire(self, key: Key) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            member.worker.kill()


def _require_ok(answers: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``_Failure`` if memory ran out, ``WorkerError`` if a member failed otherwise."""
    failed = sorted((a for a in answers if a["status"] != "ok"), key=lambda a: a["status"] != OUT_OF_MEMORY)
    if failed and failed[0]["status"] == OUT_OF_MEMORY:
        raise _Failure({"status": OUT_OF_MEMORY, "reason": failed[0]["reason"]})
    if failed:
        raise WorkerError(failed[0]["reason"])


def _free_bytes(worker: MeasuringProcess) -> float:
    """Return the free memory of a worker's device, infinite if unknown."""
    try:
        memory = worker.ask({"do": "device"}, START_TIMEOUT_S).get("memory")
    except WorkerError:
        return float("inf")  # the next request reports the error
    return float("inf") if memory is None else float(memory["free_bytes"])


def _one_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row as one round, as copies of a subject are measured together."""
    return {**row, "rounds": 1, "samples_per_round": [len(row["samples_s"])] if row["samples_s"] else []}


def _keys(item: Item, places: Sequence[Sequence[int]]) -> list[Key]:
    names = [member.name for member in item.members]
    return [(name, names[:i].count(name), tuple(places[i])) for i, name in enumerate(names)]


def _prepared(worker: MeasuringProcess, subject: Subject, item: Item, timeout_s: float) -> dict[str, Any]:
    try:
        return worker.ask(request_for(subject, item, "prepare"), timeout_s)
    except WorkerHung as error:
        return {"status": "timeout", "reason": str(error)}
    except WorkerError as error:
        return {"status": "failed", "reason": str(error)}


def _rounded(seconds: np.ndarray) -> list[float]:
    return [round(value, DIGITS) for value in seconds.tolist()]


class SharedWorker:
    """Worker that several seats share; an answer goes to the seat that it names."""

    def __init__(self, worker: MeasuringWorker, backend: str, cores: Sequence[int]):
        self.worker, self.backend, self.cores = worker, backend, cores
        self.numbers = count()
        self._answers: dict[int, deque[dict[str, Any]]] = defaultdict(deque)

    def receive(self, seat: int, timeout_s: float) -> dict[str, Any]:
        """Return the next answer to this seat. Raises as ``MeasuringWorker.receive`` does."""
        while not self._answers[seat]:
            answer = self.worker.receive(timeout_s)
            self._answers[int(answer.pop("seat"))].append(answer)
        return self._answers[seat].popleft()


class Seat:
    """Place in a shared worker, with the interface of a ``MeasuringWorker``."""

    def __init__(self, shared: SharedWorker, cores: Sequence[int]):
        self._shared, self._cores, self._number = shared, list(cores), next(shared.numbers)

    @property
    def pid(self) -> int:
        return self._shared.worker.pid

    @property
    def alive(self) -> bool:
        return self._shared.worker.alive

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout_s)

    def send(self, request: Mapping[str, Any]) -> None:
        self._shared.worker.send({**request, "seat": self._number, "cores": self._cores})

    def receive(self, timeout_s: float) -> dict[str, Any]:
        return self._shared.receive(self._number, timeout_s)

    def kill(self) -> None:
        """Free the seat; a worker that fails to do so is ended with all of its seats."""
        if not self.alive:
            return
        try:
            self.ask({"do": "leave"}, START_TIMEOUT_S)
        except WorkerError:
            self._shared.worker.kill()


class StreamsMeasurer(ColocatedMeasurer):
    """``ColocatedMeasurer`` with a seat in one worker for each co-runner; if it dies, all of them restart."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._shared: SharedWorker | None = None

    def close(self) -> None:
        self._members.clear()
        if self._shared is not None:
            self._shared.worker.kill()
            self._shared = None

    def worker_for(self, key: Key, subject: Subject, needed: Sequence[Key]) -> Seat:
        backend = self.settings.backend_of(subject)
        cores = sorted({core for *_, of_member in needed for core in of_member})
        shared = self._shared
        if shared is None or not shared.worker.alive or (shared.backend, shared.cores) != (backend, cores):
            self.close()
            shared = self._shared = SharedWorker(self.start(backend, cores), backend, cores)
        return Seat(shared, key[-1])
