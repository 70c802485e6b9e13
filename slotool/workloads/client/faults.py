"""Faults of a server under load: which worker is killed, stopped or slowed, and when; attainment around them."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from slotool import strict_json
from slotool.errors import InputError, RunError
from slotool.printable import counted, printable
from slotool.regular_files import read_text
from slotool.workloads.client import event_loop
from slotool.workloads.client.http_client import HttpClient, Response
from slotool.workloads.client.target import UNAUTHORIZED, is_loopback, reason, unauthorized
from slotool.workloads.requests import RequestLog

PATH = "/faults"
KILL, STOP, SLOW = ACTIONS = ("kill", "stop", "slow")
MAX_FACTOR = 1_000.0
ANSWER_WITHIN_S = 5.0
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0}
_TIME = r"(\d+(?:\.\d+)?)\s*(ms|s|min)"
_FAULT = re.compile(rf"{_TIME}\s*:\s*(\w+)\s+(\d{{1,6}})(?:\s+(\d+(?:\.\d+)?)x)?(?:\s+for\s+{_TIME})?")
EXPECTED = "TIME:kill|stop|slow WORKER [FACTORx] [for TIME], such as 5s:kill 1 or 15s:slow 0 2x for 5s"


@dataclass(frozen=True)
class Fault:
    """Fault of a ``worker`` at ``at_s`` seconds: killed, stopped, or slowed by ``factor``.

    ``lasts_s``: seconds until it is undone (a killed worker is started again); None: until the server replaces the
    worker, or the load ends.
    """

    at_s: float
    action: str
    worker: int
    factor: float = 1.0
    lasts_s: float | None = None

    def __str__(self) -> str:
        factor = f" {self.factor:g}x" if self.action == SLOW else ""
        lasts = "" if self.lasts_s is None else f" for {self.lasts_s:g} s"
        return f"{self.action} {self.worker}{factor}{lasts}"


def read_faults(schedule: str | Path) -> tuple[Fault, ...]:
    """Return the schedule in a file, or in the text itself; in order of time.

    One fault a line or between commas, ``#`` begins a comment. Raises ``InputError`` naming the fault that is none.
    """
    text, where = str(schedule), "faults"
    if os.path.isfile(text):
        text, where = read_text(text), text
    elif ":" not in text:
        raise InputError(f"faults: {printable(text[:80])!r} is no file and no fault; expected {EXPECTED}")
    lines = [line.partition("#")[0] for line in text.splitlines()]
    parts = [part.strip() for line in lines for part in line.split(",")]
    faults = [_fault(part, where) for part in parts if part]
    if not faults:
        raise InputError(f"{where}: there is no fault; expected {EXPECTED}")
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _fault(text: str, where: str) -> Fault:
    matched = _FAULT.fullmatch(text)
    if matched is None or matched[3] not in ACTIONS:
        raise InputError(f"{where}: {printable(text[:80])!r} is no fault; expected {EXPECTED}")
    at, unit, action, worker, factor, lasts, lasts_unit = matched.groups()
    if (action == SLOW) != (factor is not None):
        problem = "says not by how much: give a factor such as 2x" if action == SLOW else "takes no factor"
        raise InputError(f"{where}: {text[:80]!r} {problem}")
    if factor is not None and not 1.0 < float(factor) <= MAX_FACTOR:
        raise InputError(f"{where}: {text[:80]!r}: a factor above 1 and up to {MAX_FACTOR:g} is expected")
    lasts_s = None if lasts is None else float(lasts) * _SECONDS[lasts_unit]
    return Fault(float(at) * _SECONDS[unit], action, int(worker), float(factor or 1.0), lasts_s)


@dataclass
class FaultInjection:
    """Has a server on this machine inject ``faults`` while a load runs.

    ``check`` before the load, ``begin`` when it starts, ``end`` after it. Source: superserve, Fig. 11a.
    """

    address: str
    faults: Sequence[Fault]
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _records: list[dict[str, Any]] = field(default_factory=list, init=False)

    def check(self, duration_s: float) -> None:
        """Raise ``InputError`` if the server is remote, forbids faults or lacks a worker, or a fault is too late.

        Raises ``RunError`` if no server answers.
        """
        if not is_loopback(urlsplit(self.address).hostname or ""):
            raise InputError(f"{self.address}: faults are injected on this machine only")
        late = next((fault for fault in self.faults if fault.at_s >= duration_s), None)
        if late is not None:
            raise InputError(f"the fault at {late.at_s:g} s comes after the load, which ends at {duration_s:g} s")
        try:
            response = event_loop.run(_ask(self.address, "GET"))
        except (OSError, TimeoutError) as error:
            raise RunError(f"no server answers at {self.address} ({reason(error)})") from error
        if response.status in UNAUTHORIZED:
            raise unauthorized(self.address)
        workers = _document(response).get("workers")
        if response.status != 200 or not isinstance(workers, list):
            raise InputError(
                f"the server at {self.address} allows no faults: start it with "
                "slotool serve … --engine local --allow-faults"
            )
        missing = next((fault for fault in self.faults if fault.worker >= len(workers)), None)
        if missing is not None:
            raise InputError(f"{missing}: the server has {counted(len(workers), 'worker')}, numbered from 0")

    def begin(self, start_s: float, duration_s: float) -> None:
        """Start the schedule at ``start_s``, a reading of ``time.perf_counter``."""
        lasting = [
            replace(fault, lasts_s=duration_s - fault.at_s) if fault.action == SLOW and fault.lasts_s is None else fault
            for fault in self.faults
        ]
        self._thread = threading.Thread(target=self._run, args=(start_s, lasting), daemon=True)
        self._thread.start()

    def end(self) -> list[dict[str, Any]]:
        """Return the injected faults in order, with ``injected_s``, when the server had done it, or ``error``."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_WITHIN_S)
        return list(self._records)

    def _run(self, start_s: float, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if self._ended.wait(max(0.0, start_s + fault.at_s - time.perf_counter())):
                return
            error = self._inject(fault)
            self._records.append({**asdict(fault), "injected_s": time.perf_counter() - start_s, "error": error})

    def _inject(self, fault: Fault) -> str:
        request = {key: value for key, value in asdict(fault).items() if key != "at_s" and value is not None}
        try:
            response = asyncio.run(_ask(self.address, "POST", json.dumps(request).encode()))
        except (OSError, TimeoutError) as error:
            return reason(error)
        return "" if response.status == 200 else str(_document(response).get("error", f"status {response.status}"))


def _document(response: Response) -> dict[str, Any]:
    try:
        faults = strict_json.decode(response.body)
    except strict_json.JsonError:
        return {}
    return faults if isinstance(faults, dict) else {}


async def _ask(address: str, method: str, body: bytes = b"") -> Response:
    client = HttpClient(address, ANSWER_WITHIN_S)
    try:
        return await client.request(client.head(method, PATH), {"content-type": "application/json"}, body)
    finally:
        await client.close()


WIDTH_S = 1.0
# Window before a fault for comparison, if no other fault is in it.
BEFORE_S = 10.0
# Loss of attainment that counts as not recovered.
NOTICEABLE = 0.01


def over_time(log: RequestLog, width_s: float = WIDTH_S) -> list[dict[str, Any]]:
    """Return attainment and accuracy per ``width_s`` seconds in which requests were due.

    Keys are ``begin_s``, ``requests``, ``attainment`` (share answered in time), ``accuracy`` of those answered and
    ``effective_accuracy``; NaN where undefined.
    """
    due_s = log.rows["intended_s"].to_numpy()
    bins = (due_s / width_s).astype(np.int64)
    return [{"begin_s": at * width_s, **_figures(log, bins == at)} for at in np.unique(bins).tolist()]


def around_faults(log: RequestLog) -> list[dict[str, Any]]:
    """Return attainment and accuracy before and after each injected fault, with its ``error``, in order.

    Before is up to 10 s from the previous fault, after until the next. ``attainment_worst``: of the worst second after
    it. ``recovered_s``: until attainment stayed within a point of before; None: not before the next fault.
    """
    injected = log.provenance.get("faults") or []
    due_s = log.rows["intended_s"].to_numpy()
    end_s = float(due_s.max()) + 1e-9
    instants = [float(record["injected_s"]) for record in injected]
    effects = []
    for number, record in enumerate(injected):
        at_s, next_s = instants[number], [*instants, end_s][number + 1]
        from_s = max(at_s - BEFORE_S, instants[number - 1] if number else 0.0)
        before = _figures(log, (due_s >= from_s) & (due_s < at_s))
        after = _figures(log, (due_s >= at_s) & (due_s < next_s))
        worst, recovered_s = _recovery(log, at_s, next_s, before["attainment"])
        names = ("action", "worker", "factor", "lasts_s")
        effects.append(
            {
                "fault": str(Fault(record["at_s"], *(record[name] for name in names))),
                "at_s": record["at_s"],
                "injected_s": at_s,
                "error": record["error"],
                **{f"{name}_before": before[name] for name in ("attainment", "accuracy")},
                **{f"{name}_after": after[name] for name in ("attainment", "accuracy")},
                "attainment_worst": worst,
                "recovered_s": recovered_s,
            }
        )
    return effects


def _recovery(log: RequestLog, at_s: float, next_s: float, before: float) -> tuple[float, float | None]:
    """Attainment of the worst second from the fault on, and when the last second below ``before`` ended."""
    due_s = log.rows["intended_s"].to_numpy()
    worst, recovered_s = math.nan, 0.0
    for second in range(math.ceil(next_s - at_s)):
        begin_s = at_s + second * WIDTH_S
        end_s = min(begin_s + WIDTH_S, next_s)
        attainment = _figures(log, (due_s >= begin_s) & (due_s < end_s))["attainment"]
        worst = float(np.fmin(worst, attainment))
        if attainment < before - NOTICEABLE:
            recovered_s = end_s - at_s
    return worst, None if recovered_s >= next_s - at_s > 0 else recovered_s


def _figures(log: RequestLog, chosen: np.ndarray) -> dict[str, Any]:
    count, answered = int(chosen.sum()), int((chosen & log.answered).sum())
    right = chosen & log.correct
    has_labels = log.has_labels
    return {
        "requests": count,
        "attainment": float((chosen & log.in_time).sum() / count) if count else math.nan,
        "accuracy": float(right.sum() / answered) if answered and has_labels else math.nan,
        "effective_accuracy": float((right & log.in_time).sum() / count) if count and has_labels else math.nan,
    }
