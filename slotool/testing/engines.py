"""What every engine, which has the items of a campaign measured somewhere, must do.

A new engine passes with one line: ``class TestMine(EngineConformance): make = MyEngine``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

import psutil

from slotool.errors import InputError
from slotool.profiling.engines import Engine, LocalEngine
from slotool.profiling.plan import Item, Settings
from slotool.profiling.subjects import Subject
from slotool.testing.backends import error_message
from slotool.testing.scripted_backend import PLACE, scripted_subject
from slotool.timing.timer import StoppingRule

SETTINGS = Settings(backend=PLACE, rule=StoppingRule(runs=5, max_seconds=0.0), timeout_s=30.0)


class EngineConformance:
    """Set ``make``: the class, or a function from settings to an engine; and ``places``: how many items it may have
    in hand at once.

    ``settings`` name a backend that can be imported wherever slotool is; ``subject`` makes, of a name and what it does,
    a subject of it: one that can ``run``, one that will ``break``, one that lets its process ``die``.
    """

    make: ClassVar[Callable[[Settings], Engine]]
    settings: ClassVar[Settings] = SETTINGS
    subject: ClassVar[Callable[..., Subject]] = staticmethod(scripted_subject)
    places: ClassVar[int] = 1

    def engine(self, **options: Any) -> Engine:
        return type(self).make(replace(self.settings, **options))

    def item(self, name: str, does: str = "run", **options: Any) -> Item:
        return Item((replace(type(self).subject(name, does), **options),), batch_size=2)

    def test_every_item_gives_the_rows_that_this_machine_alone_would_give(self) -> None:
        items = [self.item(f"fine{i}") for i in range(5)]
        items += [self.item("broken", "break"), self.item("dead", "die"), self.item("huge", weight_bytes=1 << 60)]
        with self.engine() as engine, LocalEngine(self.settings) as local:
            found = [row for rows in engine.rows(iter(items)) for row in rows]
            wanted = {row["subject"]: row for rows in local.rows(iter(items)) for row in rows}
        assert Counter(row["subject"] for row in found) == Counter(list(wanted))
        for row in found:
            like = wanted[row["subject"]]
            assert {name: type(value) for name, value in row.items()} == {n: type(v) for n, v in like.items()}
            for name in ("point", "batch_size", "co_runners", "status", "machine", "backend", "threads", "affinity"):
                assert row[name] == like[name]
            assert len(row["samples_s"]) >= (self.settings.rule.runs if row["status"] == "ok" else 0)
        statuses = {name: row["status"] for name, row in wanted.items() if not name.startswith("fine")}
        assert statuses == {"broken": "failed", "dead": "failed", "huge": "skipped"}

    def test_items_are_drawn_when_there_is_room_and_never_after_the_last(self) -> None:
        drawn: list[Item] = []

        def items() -> Generator[Item]:
            for i in range(50):
                drawn.append(self.item(f"s{i}"))
                yield drawn[-1]

        with self.engine() as engine, closing(items()) as source:
            rows = engine.rows(source)
            for finished in range(1, 7):
                (row,) = next(rows)
                assert row["status"] == "ok"
                assert finished <= len(drawn) <= finished - 1 + self.places
            source.close()
            left = [row["subject"] for rest in rows for row in rest]
        assert len(left) == len(drawn) - 6 < self.places

    def test_what_the_measurer_refuses_goes_through(self) -> None:
        def measure() -> None:
            with self.engine(backend="no_such_module:Backend") as engine:
                list(engine.rows(iter([self.item("s")])))

        assert "no_such_module" in error_message(measure, InputError)

    def test_it_closes_in_the_midst_with_its_workers_and_twice(self) -> None:
        engine = self.engine()
        assert list(engine.rows(iter([]))) == []
        rows = engine.rows(iter([self.item(f"s{i}") for i in range(9)]))
        next(rows)
        begun = workers()
        assert begun
        engine.close()
        engine.close()
        _, alive = psutil.wait_procs(begun, timeout=10)
        assert not alive


def workers() -> list[psutil.Process]:
    """The measuring processes below this one, however far."""
    return [
        process for process in psutil.Process().children(recursive=True) if "slotool.profiling.worker" in words(process)
    ]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has ended meanwhile."""
    try:
        found: list[str] = process.cmdline()
        return found
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
