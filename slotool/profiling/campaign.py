"""Campaigns: every item is measured, its rows are stored at once, and an interrupted campaign resumes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from slotool import strict_json
from slotool.energy import EnergyMeter
from slotool.errors import AlreadyExistsError, InputError, TableError
from slotool.journal import Journal, JournalContent, read_journal, refuse_other
from slotool.machine import throttled
from slotool.profiling.measurers import measurer_for
from slotool.profiling.plan import STREAMS, Item, Plan, Settings, make_plan
from slotool.profiling.process import MeasuringWorker
from slotool.profiling.rows import Key, Row, by_key, check_row, doubt, key_of
from slotool.tables import LatencyTable
from slotool.tables.latency import MEASURED_COLUMNS
from slotool.timing.interference import OtherWork
from slotool.timing.speed import facts_with_speed

# Not all free memory is usable: allocators round up, and other processes may take some.
USABLE_SHARE = 0.9


def probed(settings: Settings, items: Sequence[Item]) -> Settings:
    """Return the settings with facts of their device, by the backend of the first of ``items``; unchanged for the CPU.

    A worker process reads them, so that this one holds nothing on the device. Raises ``InputError`` if the backend does
    not offer the device, ``WorkerError`` if the process does not start.
    """
    if settings.device == "cpu" or settings.device_name or not items:
        return settings
    with MeasuringWorker(
        backend=settings.backend_of(items[0].subjects[0]),
        device=settings.device,
        threads=settings.threads,
        affinity=settings.cores_of()[0],
        rule=settings.round_rule,
        seed=settings.seed,
        precision=settings.precision,
        streams=settings.on_streams,
    ) as worker:
        device = worker.hello["device"]
    if not device:
        return settings
    memory = device["memory"]
    return replace(
        settings,
        device_name=device["device_name"],
        device_limit_bytes=None if memory is None else int(USABLE_SHARE * memory["free_bytes"]),
        colocation=STREAMS if settings.on_streams else device["colocation"],
        device_busy_percent=device["busy_percent"] or 0.0,
    )


# Columns that only a campaign writes.
_MARKS = ("content", "rounds", "stable", "calls_per_sample")


def plan_only(
    items: Sequence[Item],
    settings: Settings,
    out: Path,
    *,
    force: bool = False,
    budgeted: bool = False,
    in_order: bool = False,
) -> Plan:
    """Return the plan of a campaign, leaving every file as it is."""
    _check(items, settings, out)
    settings = probed(settings, items)
    journal = JournalContent() if force else read_journal(journal_path(out), settings.configuration())
    finished = [] if force else _finished(out, settings, journal)
    return make_plan(items, settings, finished, budgeted=budgeted, in_order=in_order)


class Campaign:
    """Campaign that measures items and writes ``out``, as a context manager; the same call again resumes it.

    A subject that is too big has a row ``skipped``, one that runs out of memory ``out-of-memory``, one that fails or
    kills its worker ``failed``, one that hangs ``timeout``, each with its reason. With ``budget_s`` it ends after so
    many seconds: items that tell most for their time come first (``plan.worth_first``), and unstable rows are measured
    again once all are done. With ``in_order`` the items are measured as given. ``force`` begins again.

    Opening it locks the journal; ``plan`` holds the items that are left. Raises ``InputError`` for unusable items or
    settings, ``AlreadyExistsError`` if ``out`` was measured differently.
    """

    def __init__(
        self,
        items: Sequence[Item],
        settings: Settings,
        out: str | Path,
        *,
        force: bool = False,
        budget_s: float | None = None,
        in_order: bool = False,
    ):
        self._out, self._budget_s, self._in_order = Path(out), budget_s, in_order
        self._failed: set[Key] = set()  # in this run: their later rounds are passed over
        self._passed = 0
        _check(items, settings, self._out)
        self._settings = settings = probed(settings, items)
        with ExitStack() as opened:
            journal = Journal(journal_path(self._out), settings.configuration(), fresh=force)
            self._journal = opened.enter_context(journal)
            finished = [] if force else _finished(self._out, settings, journal)
            self._pooled = len(journal.rows)  # so many are in the plan's rows already
            self.plan = make_plan(items, settings, finished, budgeted=budget_s is not None, in_order=in_order)
            self._open = opened.pop_all()

    def run(self, progress: Callable[[], None] = lambda: None) -> LatencyTable:
        """Measure what is left, write the table, remove the journal; ``progress`` is called per finished item.

        ``provenance["campaign"]`` of the table describes this run: items measured, resumed and left over, seconds,
        cores taken by other processes, and the number and length of stops by a CPU quota. Raises ``WorkerError`` if no
        worker can be started.
        """
        started, others, measured = time.monotonic(), OtherWork(), 0
        periods_before, throttled_s_before = throttled()
        with measurer_for(self._settings) as measurer:
            for item in self._due(started):
                rows = measurer.rows(item)
                self._journal.append(*rows)
                self._failed |= {key_of(row) for row in rows if row["status"] != "ok"}
                measured += 1
                progress()
        seconds, busy_cores = others.read()
        periods, throttled_s = throttled()
        run = {
            "measured": measured,
            "resumed": self.plan.resumed,
            "left": max(0, len(self.plan.todo) - measured - self._passed),
            "seconds": seconds,
            "cores_busy_with_others": busy_cores,
            "throttled_periods": periods - periods_before,
            "throttled_s": throttled_s - throttled_s_before,
            "energy_unknown": EnergyMeter().reason or None,
        }
        table = LatencyTable.of(self._rows(), {**self._provenance(), "campaign": run})
        if measured or self._journal.rows or not self._out.exists():
            table.save(self._out)
            _make_durable(self._out)
        self._journal.remove()
        return table

    @property
    def has_rows(self) -> bool:
        """True if the journal has rows for the next run."""
        return bool(self._journal.rows)

    def _due(self, started: float) -> Iterator[Item]:
        """Yield items while there is time, at least one; with a budget, unstable ones again after all others."""
        deadline = math.inf if self._budget_s is None else started + self._budget_s
        for i, item in enumerate(self.plan.todo):
            if i and time.monotonic() >= deadline:
                return
            if self._failed.intersection(item.keys):
                self._passed += 1
                continue
            yield item
        if self._budget_s is not None and not self._in_order:
            for item in self._unstable():
                if time.monotonic() >= deadline:
                    return
                yield item

    def _unstable(self) -> list[Item]:
        """Return items with an unstable row, the least stable first."""
        doubts = {key_of(row): doubt(row) for row in self._rows()}
        worst = {id(item): max(doubts.get(key, 0.0) for key in item.keys) for item in self.plan.items}
        return sorted((item for item in self.plan.items if worst[id(item)] > 0), key=lambda item: -worst[id(item)])

    def _rows(self) -> Collection[Row]:
        return by_key([*self.plan.rows, *self._journal.rows[self._pooled :]], self._settings.rule).values()

    def _provenance(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "configuration": settings.configuration(),
            "seed": settings.seed,
            "timeout_s": settings.timeout_s,
            "journal": {"id": self._journal.id, "rows": len(self._journal.rows)},
            "memory_limit_bytes": settings.limit_bytes,
            "machine_facts": facts_with_speed(),
        }

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def journal_path(out: Path) -> Path:
    """Return the path of an output's journal, which exists while its campaign is unfinished."""
    return out.with_name(f"{out.name}.journal")


def _check(items: Sequence[Item], settings: Settings, out: Path) -> None:
    """Raise ``InputError`` for impossible settings, or an output that cannot be a file."""
    for backend in {settings.backend, *(settings.backend_of(member) for item in items for member in item.members)}:
        settings.precision_of(backend)
    for members in {len(item.members) for item in items} or {1}:
        settings.cores_of(members)
    if out.exists() and not out.is_file():
        raise InputError(f"{out} exists and is no regular file; choose another name")


def _finished(out: Path, settings: Settings, journal: Journal | JournalContent) -> list[Row]:
    """Return rows of an earlier run of this campaign: of its table, and those of the journal that it lacks.

    A table names its journal and the number of its rows, since a process may die after writing the table and before
    removing the journal. A table that the journal's campaign replaces (``force``) does not count.
    """
    if not out.exists():
        return _checked(journal, out)
    try:
        table = LatencyTable.load(out)
    except TableError as error:
        raise AlreadyExistsError(f"{out} exists already and is no latency table") from error
    if "configuration" not in table.provenance or set(_MARKS) - set(table.rows.columns):
        raise AlreadyExistsError(f"{out} exists already and was not written by such a campaign")
    source = table.provenance.get("journal", {})
    is_source = source.get("id") == journal.id
    if journal.replaces and not is_source:
        return _checked(journal, out)
    refuse_other(
        table.provenance["configuration"], settings.configuration(), out, table.provenance.get("machine_facts")
    )
    unsaved = _checked(journal, out)[source.get("rows", 0) if is_source else 0 :]
    return [*({**MEASURED_COLUMNS, **row} for row in table.rows.to_dict("records")), *unsaved]


def _checked(journal: Journal | JournalContent, out: Path) -> list[Row]:
    """Return the journal's rows. Raises ``InputError`` for one that no campaign wrote."""
    for number, row in enumerate(journal.rows, start=2):
        try:
            check_row(row)
        except strict_json.JsonError as error:
            raise InputError(
                f"{journal_path(out)}: line {number} is not a campaign's row ({error}); "
                "remove that line, or add --force to begin again"
            ) from error
    return list(journal.rows)


def _make_durable(path: Path) -> None:
    """Force the file and its name to the disk, so that the journal can be removed."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
