"""Campaigns that are killed, forced, resumed and whose journals decay: no row is lost, doubled or altered."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from slotool.errors import InputError
from slotool.journal import Journal, read_journal
from slotool.machine import machine_id
from slotool.profiling.campaign import Campaign, journal_path, plan_only
from slotool.profiling.measurers import Measurer
from slotool.profiling.plan import Item, Settings, solo_items
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable
from slotool.tables.latency import MEASURED_COLUMNS
from slotool.timing.timer import StoppingRule

SETTINGS = Settings(backend="onnx", rounds=2, rule=StoppingRule(runs=4))
SUBJECTS = [Subject(name=f"s{i}", content=f"s{i}", request={}) for i in range(12)]
# So often one campaign is killed before it may end.
KILLS = 6


class CountingMeasurer(Measurer):
    """Answers at once; every sample is unique, and shows its campaign by `base`."""

    def __init__(self, settings: Settings, base: int = 0):
        super().__init__(settings)
        self._base = base

    def rows(self, item: Item) -> list[dict[str, Any]]:
        time.sleep(0.001)
        name, point, batch_size, beside = item.keys[0]
        samples = [self._base + 1.0 + random.random() for _ in range(2)]
        return [
            {
                **MEASURED_COLUMNS,
                "subject": name,
                "point": point,
                "batch_size": batch_size,
                "co_runners": beside,
                "content": item.subjects[0].content,
                "machine": machine_id(),
                "status": "ok",
                "reason": "",
                "samples_s": samples,
                "samples_per_round": [2],
            }
        ]

    def close(self) -> None:
        pass


def run(out: Path, *, base: int = 0, force: bool = False, stop_after: int | None = None) -> None:
    """A campaign over all subjects; with ``stop_after`` it dies after so many rounds of items."""

    def progress() -> None:
        nonlocal stop_after
        if stop_after is not None:
            stop_after -= 1
            if stop_after == 0:
                raise Died

    items = solo_items(SUBJECTS, SETTINGS)
    measurer = mock.patch("slotool.profiling.campaign.measurer_for", lambda settings: CountingMeasurer(settings, base))
    with measurer, Campaign(items, SETTINGS, out, force=force) as campaign:
        campaign.run(progress)


class Died(Exception):
    """Where a real campaign would have been killed."""


def check_whole(out: Path, base: int = 0) -> None:
    """Every subject once, with two rounds of two different samples of the campaign ``base``."""
    rows = LatencyTable.load(out).rows
    assert Counter(rows["subject"]) == Counter(subject.name for subject in SUBJECTS)
    assert set(rows["rounds"]) == {2}
    samples = [sample for row in rows["samples_s"] for sample in row]
    assert len(samples) == len(set(samples)) == 4 * len(SUBJECTS)
    assert all(base + 1 <= sample < base + 2 for sample in samples)
    assert rows["samples_per_round"].map(list).tolist() == [[2, 2]] * len(SUBJECTS)


def test_death_between_the_tables_rename_and_the_journals_removal_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Journal) -> None:
        raise Died

    out = tmp_path / "t.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", die)
        with pytest.raises(Died):
            run(out)
        check_whole(out)
        assert journal_path(out).exists()
        assert plan_only(solo_items(SUBJECTS, SETTINGS), SETTINGS, out).todo == []
        with pytest.raises(Died):  # once more at the same place
            run(out)
    run(out)
    check_whole(out)
    assert not journal_path(out).exists()


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_a_killed_forced_campaign_resumed_without_force_keeps_no_sample_of_the_old_table(
    tmp_path: Path, rounds: int
) -> None:
    out = tmp_path / "t.parquet"
    run(out)
    before = out.read_bytes()
    with pytest.raises(Died):
        run(out, base=5, force=True, stop_after=rounds)
    assert out.read_bytes() == before
    left = 2 * len(SUBJECTS) - rounds
    assert len(plan_only(solo_items(SUBJECTS, SETTINGS), SETTINGS, out).todo) == left
    run(out, base=5)
    check_whole(out, base=5)


def test_a_forced_campaign_that_measured_nothing_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    run(out)
    with Journal(journal_path(out), SETTINGS.configuration(), fresh=True) as journal:
        journal.append({"not": "kept"})
        header = journal.path.read_bytes().partition(b"\n")[0]
    journal_path(out).write_bytes(header + b"\n")
    assert plan_only(solo_items(SUBJECTS, SETTINGS), SETTINGS, out).todo == []
    run(out)
    check_whole(out)


def test_kills_at_random_moments_lose_double_and_alter_nothing(tmp_path: Path, hostile_seconds: float) -> None:
    chance, until, campaigns = random.Random(7), time.monotonic() + hostile_seconds, 0
    while not campaigns or time.monotonic() < until:
        out, began = tmp_path / f"t{campaigns}.parquet", False
        run(out)  # an old table, which the first forced run is to replace
        for _ in range(KILLS):
            _run_in_a_child(out, base=3, force=not began, killed_after_s=chance.uniform(0.0, 0.2))
            began = began or bool(read_journal(journal_path(out), SETTINGS.configuration()).rows)
        run(out, base=3, force=not began)
        check_whole(out, base=3)
        assert not journal_path(out).exists()
        campaigns += 1


def _run_in_a_child(out: Path, *, base: int, force: bool, killed_after_s: float) -> None:
    """Let a campaign run in a process of its own, and kill it."""
    child = os.fork()
    if child == 0:
        random.seed()
        try:
            run(out, base=base, force=force)
        finally:
            os._exit(0)
    time.sleep(killed_after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_every_flipped_bit_of_a_journal_is_refused_by_its_line_or_drops_the_torn_last_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotool.journal.machine_facts", lambda: {"cpu": "short"})
    path, rows = tmp_path / "j", [{"subject": name, "samples_s": [0.1, 0.25]} for name in ("a", "b")]
    configuration = {"threads": 1}
    with Journal(path, configuration) as journal:
        for row in rows:
            journal.append(row)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if bit // 8 == len(whole) - 1:  # the last row has no end any more
            assert list(read_journal(path, configuration).rows) == rows[:-1]
            continue
        line = whole[: bit // 8].count(b"\n") + 1
        with pytest.raises(InputError, match=rf"line {line} is damaged" if line > 1 else "line 1|another version"):
            read_journal(path, configuration)


GOOD_ROW = {
    "subject": "other", "point": "full", "batch_size": 1, "co_runners": "", "status": "ok", "reason": "",
    "content": "", "rounds": 1, "discarded": 0, "interrupted": False, "stable": False, "measured_at": 1.0,
    "limit_s": None, "samples_s": [0.1], "samples_per_round": [1],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"subject": None},
        {"batch_size": "many"},
        {"status": 7},
        {"samples_s": []},
        {"samples_s": [[0.1]]},
        {"samples_s": None},
        {"samples_per_round": [5]},
        {"samples_per_round": [-1, 2], "rounds": 2},
        {"rounds": 1e300},
        {"solo_s": []},
        {"limit_s": "soon"},
    ],
    ids=str,
)
def test_a_crafted_row_in_a_journal_is_refused_in_a_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    out = tmp_path / "t.parquet"
    with Journal(journal_path(out), SETTINGS.configuration()) as journal:
        journal.append(GOOD_ROW)
    plan_only(solo_items(SUBJECTS, SETTINGS), SETTINGS, out)
    with Journal(journal_path(out), SETTINGS.configuration()) as journal:
        journal.append({**GOOD_ROW, **change})
    with pytest.raises(InputError, match=r"line 3 is not a campaign's row \(.*--force"):
        plan_only(solo_items(SUBJECTS, SETTINGS), SETTINGS, out)


def test_limits_are_no_part_of_what_a_campaign_depends_on() -> None:
    other = replace(SETTINGS, timeout_s=1.0, memory_limit_bytes=1)
    assert other.configuration() == SETTINGS.configuration()
