"""Co-located subjects: which samples count, what is measured again, and what a failure costs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.profiling.barrier import Spans, colocated_samples, stopped_share
from slotool.profiling.campaign import Campaign
from slotool.profiling.plan import Item, Settings, combinations_of, points_with_copies
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable
from slotool.timing.timer import StoppingRule
from tests.profiling.conftest import MakeSubject
from tests.profiling.hostile_backend import STOPPED_S

SETTINGS = Settings(
    backend="hostile_backend:HostileBackend",
    rule=StoppingRule(runs=5, precision=0.5, max_seconds=20.0),
    timeout_s=30.0,
    placement="shared",
)


@pytest.fixture(autouse=True)
def others_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of others on this machine is no reason to measure anything again."""
    monkeypatch.setattr("slotool.profiling.measurers.colocated.MAX_OTHERS", float("inf"))


@st.composite
def one_member(draw: st.DrawFn) -> np.ndarray:
    """Begin and end of samples, one after the other with pauses between."""
    steps = draw(st.lists(st.floats(0.0, 5.0), min_size=2, max_size=40).filter(lambda s: len(s) % 2 == 0))
    return np.cumsum([draw(st.floats(0.0, 10.0)), *steps])[1:].reshape(-1, 2)


@given(st.lists(one_member(), min_size=1, max_size=4))
def test_a_sample_counts_exactly_while_all_members_are_live(spans: list[np.ndarray]) -> None:
    colocated = colocated_samples(spans)
    begin, end = max(s[0, 1] for s in spans), min(s[-1, 1] for s in spans)
    for of_member, seconds in zip(spans, colocated, strict=True):
        wanted = [b - a for a, b in of_member if a >= begin and b <= end]
        np.testing.assert_array_equal(seconds, wanted)
        assert len(seconds) <= len(of_member) - (of_member[0, 1] == begin and of_member[0, 0] < begin)


def test_a_member_without_samples_leaves_none_co_located() -> None:
    assert [len(s) for s in colocated_samples([np.array([[0.0, 1.0]]), np.empty((0, 2))])] == [0, 0]


def test_a_stop_counts_as_far_as_it_lies_in_the_co_located_time() -> None:
    samples = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 11.0]])
    quiet = Spans(samples, np.empty((0, 3)))
    assert stopped_share([quiet, Spans(samples, np.array([[2.0, 11.0, 5.0]]))]) == pytest.approx(0.5)
    assert stopped_share([quiet, Spans(samples, np.array([[9.0, 19.0, 8.0]]))]) == pytest.approx(0.2)
    assert stopped_share([quiet, Spans(samples, np.array([[0.0, 0.9, 0.8]]))]) == 0.0
    assert stopped_share([quiet, Spans(np.empty((0, 2)), np.empty((0, 3)))]) == 0.0


def test_a_round_in_which_one_was_stopped_is_measured_again(subject: MakeSubject, tmp_path: Path, out: Path) -> None:
    """By SIGSTOP for some seconds, while the other went on: no sample of either is co-located."""
    items = combinations_of([subject("one", "stop-once"), subject("two", "work")], [2], SETTINGS)
    rows = measured(items, SETTINGS, out).rows
    assert set(rows["status"]) == {"ok"}
    assert (tmp_path / "mark").exists()
    assert (rows["discarded"] >= 1).all()
    assert max(samples.max() for samples in rows["samples_s"]) < STOPPED_S


def measured(items: list[Item], settings: Settings, out: Path) -> LatencyTable:
    with Campaign(items, settings, out) as campaign:
        return campaign.run()


def test_on_one_core_two_that_need_it_take_longer_than_alone(subject: MakeSubject, out: Path) -> None:
    subjects = [subject("one", "work"), subject("two", "work"), subject("idle")]
    rows = measured(combinations_of(subjects, [2, 3], SETTINGS), SETTINGS, out).rows
    rows = rows.set_index(["subject", "co_runners"])
    assert len(rows) == 2 * 3 + 3
    assert set(rows["status"]) == {"ok"}
    row = rows.loc[("two", "one")]
    assert row["degradation_s"] == pytest.approx(np.median(row["samples_s"]) - np.median(row["solo_s"]))
    assert len(row["solo_s"]) >= 2 * SETTINGS.solo_runs  # more, where others interrupted all of them
    assert len(row["samples_s"]) >= 5
    assert (row["placement"], row["affinity"]) == ("shared", rows.loc[("one", "two"), "affinity"])
    # Read back, nothing is left to measure.
    with Campaign(combinations_of(subjects, [2, 3], SETTINGS), SETTINGS, out) as campaign:
        assert campaign.plan.todo == []


def test_one_that_fails_costs_its_combinations_alone(subject: MakeSubject, out: Path) -> None:
    subjects = [
        subject("fine"),
        subject("good"),
        subject("odd", "odd"),
        subject("crash", "die"),
        subject("hung", "hang"),
    ]
    settings = replace(SETTINGS, timeout_s=4.0)
    rows = measured(combinations_of(subjects, [2], settings), settings, out).rows
    ok = rows[rows["status"] == "ok"]
    assert sorted(zip(ok["subject"], ok["co_runners"], strict=True)) == [("fine", "good"), ("good", "fine")]
    assert rows["subject"].value_counts().to_dict() == dict.fromkeys(("fine", "good", "odd", "crash", "hung"), 4)
    reasons = rows[rows["subject"] == "fine"].set_index("co_runners")["reason"]
    assert "odd: operator 'odd' is odd" in reasons["odd"]
    assert "SIGKILL" in reasons["crash"]
    assert "within 4 s" in reasons["hung"]
    # What failed once is known, and not started again for each combination.
    assert (out.parent / "log").read_text().split().count("crash") == 1


def test_one_that_dies_co_located_is_replaced_for_the_next_combination(subject: MakeSubject, out: Path) -> None:
    subjects = [subject("fine"), subject("good"), subject("late", "die-later")]
    settings = replace(SETTINGS, timeout_s=10.0)
    rows = measured(combinations_of(subjects, [2], settings), settings, out).rows
    status = rows.set_index(["subject", "co_runners"])["status"]
    assert status["fine", "good"] == status["good", "fine"] == "ok"
    assert status["fine", "late"] == status["late", "fine"] == "failed"
    assert status["good", "late"] == "failed"


def test_a_subject_beside_itself_is_one_row_of_both_copies(subject: MakeSubject, out: Path) -> None:
    rows = measured(combinations_of([subject("a")], [2], SETTINGS, with_itself=True), SETTINGS, out).rows
    assert rows[["subject", "co_runners", "rounds"]].to_numpy().tolist() == [["a", "a", 1]]
    assert len(rows["solo_s"][0]) == 4 * SETTINGS.solo_runs


def test_points_run_beside_copies_of_the_most_expensive_one(subject: MakeSubject, out: Path) -> None:
    points = [replace(subject("model"), point=point) for point in ("k=0.5", "full")]
    rows = measured(points_with_copies(points, [0, 2], SETTINGS), SETTINGS, out).rows
    assert sorted(zip(rows["point"], rows["co_runners"], strict=True)) == [
        ("full", ""),
        ("full", "model+model"),
        ("k=0.5", ""),
        ("k=0.5", "model+model"),
    ]


def test_impossible_combinations_are_refused(subject: MakeSubject, out: Path) -> None:
    subjects: list[Subject] = [subject("a"), subject("b")]
    for size in (1, 3):
        with pytest.raises(InputError, match="cannot be co-located"):
            combinations_of(subjects, [size], SETTINGS)
    cores = len(os.sched_getaffinity(0))
    split = replace(SETTINGS, placement="split", threads=cores)
    with pytest.raises(InputError, match=f"2 × {cores} threads"):
        measured(combinations_of(subjects, [2], split), split, out)


def test_a_limit_draws_combinations_by_the_seed(subject: MakeSubject) -> None:
    subjects = [subject(f"s{i}") for i in range(8)]

    def drawn(seed: int) -> list[list[str]]:
        items = combinations_of(subjects, [2, 3], replace(SETTINGS, seed=seed), limit=5)
        return [[s.name for s in item.subjects] for item in items]

    assert [len(names) for names in drawn(1)] == [2] * 5 + [3] * 5
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
