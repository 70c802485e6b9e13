"""A solo campaign: every subject alone on the machine, one row each, resumable at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from slotool.errors import AlreadyExistsError, InputError, TableError, WorkerError
from slotool.machine import machine_facts, machine_id
from slotool.profiling.backends import backend_class
from slotool.profiling.journal import Journal, read_journal, refuse_other
from slotool.profiling.plan import Item, Plan, Row, Settings, key_of, make_plan
from slotool.profiling.process import WorkerHung, WorkerProcess
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable

# Columns beside the schema's: samples are means over blocks of calls; content identifies what the name stood for.
EXTRA_COLUMNS = ("calls_per_sample", "measured_at", "content")
# A worker that dies is given a second try, for it may have been killed from outside.
TRIES = 2


def profile_solo(
    subjects: Iterable[Subject],
    settings: Settings,
    out: str | Path,
    *,
    force: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> LatencyTable:
    """Measure every subject at every batch size and write ``out``; the same call again takes up where one ended.

    A subject that is too big is one row ``skipped``, one that fails or kills its worker ``failed``, one that hangs
    ``timeout``, each with its reason. ``progress`` is called per finished row. ``force`` begins again.
    ``provenance["campaign"]`` of the table tells of this run: rows measured and resumed, seconds, and how many cores
    other processes kept busy meanwhile.

    Raises ``InputError`` for unusable subjects or settings, ``AlreadyExistsError`` when ``out`` was measured
    otherwise, ``WorkerError`` when no worker can be started.
    """
    with SoloCampaign(subjects, settings, out, force=force) as campaign:
        return campaign.run(progress)


def plan_only(subjects: Iterable[Subject], settings: Settings, out: Path, force: bool = False) -> Plan:
    """What ``profile_solo`` would do, leaving every file as it is."""
    _check(settings, out)
    finished = [] if force else [*_finished(out, settings), *read_journal(journal_path(out), settings.configuration())]
    return make_plan(subjects, settings, finished)


class SoloCampaign:
    """A campaign whose journal is open and locked: ``plan`` says what is left, ``run`` does it."""

    def __init__(self, subjects: Iterable[Subject], settings: Settings, out: str | Path, *, force: bool = False):
        self._settings, self._out = settings, Path(out)
        _check(settings, self._out)
        with ExitStack() as opened:
            journal = Journal(journal_path(self._out), settings.configuration(), fresh=force)
            self._journal = opened.enter_context(journal)
            earlier = [] if force else _finished(self._out, settings)
            self.plan = make_plan(subjects, settings, [*earlier, *journal.rows])
            self._open = opened.pop_all()

    def run(self, progress: Callable[[], None] = lambda: None) -> LatencyTable:
        """Measure what is left, write the table, remove the journal."""
        started, busy_before = time.monotonic(), _seconds_of_others()
        with _Measurer(self._settings) as measurer:
            for item in self.plan.todo:
                self._journal.append(measurer.row(item))
                progress()
        seconds = time.monotonic() - started
        run = {
            "measured": len(self.plan.todo),
            "resumed": self.plan.resumed,
            "seconds": seconds,
            "cores_busy_with_others": max(0.0, _seconds_of_others() - busy_before) / seconds,
        }
        table = _table([*self.plan.rows, *self._journal.rows], {**self._provenance(), "campaign": run})
        if self.plan.todo or self._journal.rows or not self._out.exists():
            table.save(self._out)
            _make_durable(self._out)
        self._journal.remove()
        return table

    def _provenance(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "configuration": settings.configuration(),
            "seed": settings.seed,
            "timeout_s": settings.timeout_s,
            "memory_limit_bytes": settings.memory_limit_bytes,
            "affinity": settings.affinity(),
            "machine_facts": machine_facts(),
        }

    def __enter__(self) -> SoloCampaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def journal_path(out: Path) -> Path:
    """Where the journal of an output lies while its campaign is unfinished."""
    return out.with_name(f"{out.name}.journal")


class _Measurer:
    """Turns items into rows; keeps a worker alive between them and replaces one that cannot be trusted."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._worker: WorkerProcess | None = None
        self._backend = ""

    def row(self, item: Item) -> dict[str, Any]:
        settings, subject = self._settings, item.subject
        needed = subject.memory_bytes(item.batch_size)
        if needed > settings.memory_limit_bytes:
            reason = f"needs about {needed / 2**30:.2f} GiB, the limit is {settings.memory_limit_bytes / 2**30:.2f} GiB"
            answer: dict[str, Any] = {"status": "skipped", "reason": reason}
        else:
            answer = self._measured(item)
        return {
            "subject": subject.name,
            "point": subject.point,
            "batch_size": item.batch_size,
            "device": settings.device,
            "backend": backend_class(settings.backend_of(subject)).name,
            "threads": self._worker.hello["threads"] if self._worker else settings.threads,
            "machine": machine_id(),
            "content": subject.content,
            "reason": "",
            "first_call_s": None,
            "samples_s": [],
            "calls_per_sample": 0,
            "measured_at": time.time(),
            **answer,
        }

    def _measured(self, item: Item) -> dict[str, Any]:
        request = {"subject": dict(item.subject.request), "batch_size": item.batch_size}
        death = ""
        for _ in range(TRIES):
            worker = self._worker_for(self._settings.backend_of(item.subject))
            try:
                answer = worker.ask(request, self._settings.timeout_s)
            except WorkerHung as error:
                self.retire()
                return {"status": "timeout", "reason": str(error)}
            except WorkerError as error:
                self.retire()
                death = str(error)
            else:
                if not answer.pop("healthy"):
                    self.retire()
                return answer
        return {"status": "failed", "reason": death}

    def _worker_for(self, backend: str) -> WorkerProcess:
        if self._worker is not None and self._backend != backend:
            self.retire()
        if self._worker is None:
            settings = self._settings
            self._worker = WorkerProcess(
                backend=backend,
                device=settings.device,
                threads=settings.threads,
                affinity=settings.affinity(),
                rule=settings.rule,
                seed=settings.seed,
            )
            self._backend = backend
        return self._worker

    def retire(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> _Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.retire()


def _check(settings: Settings, out: Path) -> None:
    """Before anything is touched: the settings are possible, the output can be a file."""
    backend_class(settings.backend)
    settings.affinity()
    if out.exists() and not out.is_file():
        raise InputError(f"{out} exists and is no regular file; choose another name")


def _finished(out: Path, settings: Settings) -> list[Row]:
    """Rows of an earlier, finished run of this very campaign."""
    if not out.exists():
        return []
    try:
        table = LatencyTable.load(out)
    except TableError as error:
        raise AlreadyExistsError(f"{out} exists already and is no latency table") from error
    if "configuration" not in table.provenance or set(EXTRA_COLUMNS) - set(table.rows.columns):
        raise AlreadyExistsError(f"{out} exists already and was not written by a solo campaign")
    refuse_other(table.provenance["configuration"], settings.configuration(), out)
    return [{str(name): value for name, value in row.items()} for row in table.rows.to_dict("records")]


def _table(rows: Iterable[Row], provenance: dict[str, Any]) -> LatencyTable:
    # Rows of an earlier table have every column, rows of the journal only those that were set.
    defaults = {column.name: column.default for column in LatencyTable.schema.columns}
    unique = {key_of(row): {**defaults, **row} for row in rows}
    return LatencyTable(pd.DataFrame(list(unique.values())), provenance)


def _seconds_of_others() -> float:
    """CPU seconds that this machine has spent on processes other than this one and its finished children."""
    times, own = psutil.cpu_times(), os.times()
    busy = times.user + times.system + times.nice + times.irq + times.softirq + times.steal
    return busy - (own.user + own.system + own.children_user + own.children_system)


def _make_durable(path: Path) -> None:
    """Force the file and its name to the disk, so that the journal may go."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
