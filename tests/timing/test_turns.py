"""Calls timed in turns: disturbed samples are taken again, and a verdict rests on undisturbed rounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slotool.tables import OutcomeTable
from slotool.timing.interference import NOT_DECIDED, sentence
from slotool.timing.turns import Turns, in_turns, plausible, timing_columns
from tests.timing.simulated_machine import SimulatedMachine


def measured(machine: SimulatedMachine, seconds: list[float], queries: int = 100, repeats: int = 3) -> Turns:
    calls = [machine.call(s) for s in seconds]
    return in_turns(calls, lambda block: [[(i,) for i in block] for _ in calls], queries, repeats=repeats)


def test_a_busy_machine_gives_the_medians_and_means_of_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for busy in (0.0, 2.0):
        machine = SimulatedMachine(busy)
        machine.install(monkeypatch)
        turns = measured(machine, [1e-5, 4e-4])
        np.testing.assert_allclose(turns.medians_s, [1e-5, 4e-4], rtol=1e-6)
        np.testing.assert_allclose(turns.means_s, [1e-5, 4e-4], rtol=1e-6)
        np.testing.assert_allclose(turns.latency_s.mean(axis=1), [1e-5, 4e-4], rtol=1e-6)
        assert turns.saving(1, 0).reaches(0.05) is True
        assert turns.document["state"] == "stable"


def test_calls_longer_than_a_time_slice_decide_nothing_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their samples are all disturbed, so that the shorter call looks many times as fast as it is."""
    machine = SimulatedMachine(busy=3.0)
    machine.install(monkeypatch)
    turns = measured(machine, [2e-4, 1.2e-2], queries=30)
    assert turns.medians_s[1] > 2 * 1.2e-2
    saving = turns.saving(1, 0)
    assert (saving.reaches(0.05), saving.doubt) == (None, NOT_DECIDED)
    assert not turns.is_decided(0, 1)
    assert turns.document["state"] == "disturbed"
    assert sentence(turns.document).startswith("timing: disturbed")


def test_samples_are_taken_again_so_often_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, calls = SimulatedMachine(busy=1e3), [0]
    machine.install(monkeypatch)
    one = machine.call(2e-3)

    def counted() -> float:
        calls[0] += 1
        return one()

    turns = in_turns([counted], lambda block: [[() for _ in block]], 50)
    assert turns.disturbed.all()
    assert calls[0] < 50 + 60
    # Where all are disturbed, all count, and no example takes less than its quickest call.
    np.testing.assert_array_equal(turns.latency_s, turns.samples_s.min(axis=2))


def test_queries_answer_in_the_order_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine(busy=1.0)
    machine.install(monkeypatch)
    found: dict[tuple[int, int], int] = {}
    passed: list[int] = []

    def echo(variant: int, query: int) -> int:
        machine.spend(1e-4 * (1 + query % 3))
        return 1000 * variant + query

    turns = in_turns(
        [echo, echo],
        lambda block: [[(p, i) for i in block] for p in range(2)],
        250,
        received=lambda p, i, result: found.update({(p, i): result}),
        progress=lambda: passed.append(1),
    )
    assert found == {(p, i): 1000 * p + i for p in range(2) for i in range(250)}
    assert len(passed) == 250
    kept = ~turns.disturbed
    expected = np.broadcast_to(1e-4 * (1 + np.arange(250) % 3)[None, :, None], kept.shape)
    np.testing.assert_allclose(turns.samples_s[kept], expected[kept], rtol=1e-6)


def test_a_time_limit_leaves_queries_out_and_keeps_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine()
    machine.install(monkeypatch)
    calls = [machine.call(0.02)]
    turns = in_turns(calls, lambda block: [[() for _ in block]], 1000, max_seconds=1.0)
    assert 30 <= turns.samples_s.shape[1] <= 70
    assert turns.stable.all()


def rounds(*medians: float, disturbed: float = 0.0, scatter: float = 0.002) -> tuple[np.ndarray, np.ndarray]:
    """Samples and marks of one variant: 40 queries a round."""
    rng = np.random.default_rng(0)
    samples = np.stack([m * (1 + scatter * rng.standard_normal(40)) for m in medians], axis=1)
    return samples, rng.random(samples.shape) < disturbed


@pytest.mark.parametrize(
    ("part", "disturbed", "verdict"),
    [
        ((0.90, 0.91, 0.90), 0.0, True),
        ((0.99, 0.98, 0.99), 0.0, False),
        ((0.944, 0.955, 0.95), 0.0, None),  # 5.6 %, then 4.5 %
        ((0.90, 0.91, 0.90), 0.9, None),
        ((0.5, 0.9, 0.7), 0.0, True),
    ],
)
def test_a_saving_is_decided_where_all_undisturbed_rounds_agree_on_it(
    part: tuple[float, ...], disturbed: float, verdict: bool | None
) -> None:
    whole, other = rounds(1.0, 1.0, 1.0), rounds(*part, disturbed=disturbed)
    turns = Turns(np.stack([whole[0], other[0]]), np.stack([whole[1], other[1]]))
    assert turns.saving(0, 1).reaches(0.05) is verdict


def test_a_part_that_takes_longer_than_the_whole_is_measured_again() -> None:
    wrong, right = (np.stack([rounds(front, front, front)[0], rounds(1.0, 1.0, 1.0)[0]]) for front in (1.5, 0.6))
    taken = iter([Turns(samples, np.zeros(samples.shape, dtype=bool)) for samples in (wrong, right, wrong)])
    turns = plausible(lambda: next(taken), [(0, 1)])
    assert turns.medians_s[0] == pytest.approx(0.6, rel=0.01)


def test_means_that_disturbed_samples_move_are_found_and_both_stay_in_the_table() -> None:
    samples, disturbed = np.full((2, 20, 3), 265e-6), np.zeros((2, 20, 3), dtype=bool)
    samples[1, :5, 0], disturbed[1, :5, 0] = 16e-3, True
    turns = Turns(samples, disturbed)
    table = OutcomeTable(
        pd.concat(
            [
                pd.DataFrame(
                    {"example": range(20), "version": name, "error": 0.0, "confidence": 1.0} | timing_columns(turns, p)
                )
                for p, name in enumerate("ab")
            ]
        )
    )
    assert table.matrix("latency_s").mean(axis=0) == pytest.approx([265e-6, 265e-6])
    assert table.features == []
    again = Turns.of_outcomes(table)
    assert again is not None
    np.testing.assert_array_equal(again.samples_s, samples)
    np.testing.assert_array_equal(again.disturbed, disturbed)
    assert list(again.disagreements) == [1]
    clean, raw = again.disagreements[1]
    assert (clean, raw) == pytest.approx((265e-6, samples[1].mean()))
    assert Turns.of_outcomes(OutcomeTable(table.rows.drop(columns="disturbed"))) is None
