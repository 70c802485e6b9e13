"""Routing policies: what each would have answered, how soon and at what price, on tables small enough to check."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.rules import OSFA, Conc, Seq, consults_second, from_point, takes_second
from slotool.rules.generate.candidates import Candidates
from slotool.tables import OperatingPoint, OutcomeTable
from slotool.testing.rules import family_outcomes

# example: (error, confidence, latency, cost) of the fast and of the slow version
HAND = {
    "sure": ((0.0, 0.9, 1.0, 10.0), (1.0, 0.99, 4.0, 80.0)),
    "unsure, slow surer": ((1.0, 0.4, 2.0, 20.0), (0.0, 0.6, 4.0, 80.0)),
    "unsure, fast surer": ((1.0, 0.7, 1.0, 10.0), (0.0, 0.5, 3.0, 60.0)),
    "a tie": ((1.0, 0.5, 1.0, 10.0), (0.0, 0.5, 3.0, 60.0)),
    "just at the threshold": ((1.0, 0.8, 1.0, 10.0), (0.0, 0.99, 5.0, 100.0)),
}


@pytest.fixture
def hand() -> OutcomeTable:
    rows = [
        dict(zip(("example", "version", "error", "confidence", "latency_s", "cost"), (name, v, *cells), strict=True))
        for name, both in HAND.items()
        for v, cells in zip(("fast", "slow"), both, strict=True)
    ]
    return OutcomeTable(pd.DataFrame(rows))


def test_osfa_is_the_version_itself(hand: OutcomeTable) -> None:
    replayed = OSFA("slow").replay(hand)
    assert replayed.error.tolist() == [1, 0, 0, 0, 0]
    assert replayed.response_time_s.tolist() == [4, 4, 3, 3, 5]
    assert replayed.cost.tolist() == [80, 80, 60, 60, 100]


def test_seq_asks_the_second_only_below_the_threshold_and_returns_the_surer_answer(hand: OutcomeTable) -> None:
    replayed = Seq("fast", "slow", 0.8).replay(hand)
    assert replayed.error.tolist() == [0, 0, 1, 0, 1]  # a tie goes to the second
    assert replayed.response_time_s.tolist() == [1, 6, 4, 4, 1]
    assert replayed.cost.tolist() == [10, 100, 70, 70, 10]


def test_conc_waits_for_the_second_only_below_the_threshold_and_pays_for_the_time_it_ran(hand: OutcomeTable) -> None:
    replayed = Conc("fast", "slow", 0.8).replay(hand)
    assert replayed.error.tolist() == Seq("fast", "slow", 0.8).replay(hand).error.tolist()
    assert replayed.response_time_s.tolist() == [1, 4, 3, 3, 1]
    assert replayed.cost.tolist() == [10 + 80 / 4, 100, 70, 70, 10 + 100 / 5]


def test_conc_with_a_faster_second_waits_for_the_first_and_saves_nothing(hand: OutcomeTable) -> None:
    replayed = Conc("slow", "fast", 0.9).replay(hand)
    assert replayed.response_time_s.tolist() == [4, 4, 3, 3, 5]
    assert replayed.cost.tolist() == [90, 100, 70, 70, 110]


def test_a_version_that_takes_no_time_costs_its_whole_price(hand: OutcomeTable) -> None:
    rows = hand.rows.assign(latency_s=0.0)
    assert Conc("fast", "slow", 0.0).replay(OutcomeTable(rows)).cost.tolist() == [90, 100, 70, 70, 110]


def test_the_live_rule_is_the_replayed_one() -> None:
    assert not consults_second(0.8, 0.8)
    assert consults_second(np.float32(0.8), 0.80000002)  # compared as float64: float32(0.8) is 0.800000012
    assert consults_second(np.array([0.1, 0.9, np.nan]), 0.5).tolist() == [True, False, True]
    assert takes_second([0.5, 0.6, np.nan, 0.5], [0.5, 0.5, 0.1, np.nan]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("policy", [OSFA("k=0.25"), OSFA("3"), Seq("a", "b", 0.25), Conc("d=1,w=2", "full", 1.0)])
def test_a_point_names_its_policy(policy: OSFA | Seq | Conc) -> None:
    assert from_point(OperatingPoint.parse(policy.point.key)) == policy
    assert all(version in policy.words for version in policy.versions)


@pytest.mark.parametrize("key", ["full", "k=0.5", "policy=osfa,first=a", "policy=seq,first=a,second=b", "policy=best"])
def test_a_point_that_names_no_policy_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="no routing policy"):
        from_point(OperatingPoint.parse(key))


def test_a_version_the_table_lacks_is_named(hand: OutcomeTable) -> None:
    with pytest.raises(InputError, match=r"no version 'huge'; it has fast, slow"):
        Seq("fast", "huge", 0.5).replay(hand)


def _tables() -> st.SearchStrategy[OutcomeTable]:
    @st.composite
    def table(draw: st.DrawFn) -> OutcomeTable:
        n, versions = draw(st.integers(1, 12)), draw(st.integers(2, 3))
        cell = st.tuples(
            st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.1, 0.5, 1 / 3, 0.9]), st.floats(0, 5), st.floats(0, 5)
        )
        rows = [
            dict(
                zip(("error", "confidence", "latency_s", "cost"), draw(cell), strict=True),
                example=str(i),
                version=f"v{v}",
            )
            for i in range(n)
            for v in range(versions)
        ]
        return OutcomeTable(pd.DataFrame(rows))

    return table()


@settings(max_examples=60, deadline=None)
@given(_tables())
def test_seq_lies_between_the_first_version_and_full_operation(outcomes: OutcomeTable) -> None:
    always, never = Seq("v0", "v1", 2.0).replay(outcomes), Seq("v0", "v1", 0.0).replay(outcomes)
    first, second = OSFA("v0").replay(outcomes), OSFA("v1").replay(outcomes)
    sure = outcomes.matrix("confidence")
    surer = np.where(sure[:, 1] >= sure[:, 0], second.error, first.error)
    np.testing.assert_array_equal(always.error, surer)
    np.testing.assert_array_equal(always.response_time_s, first.response_time_s + second.response_time_s)
    np.testing.assert_array_equal(never.error, first.error)
    np.testing.assert_array_equal(never.response_time_s, first.response_time_s)
    np.testing.assert_array_equal(never.cost, first.cost)


@settings(max_examples=60, deadline=None)
@given(_tables(), st.integers(1, 6))
def test_all_at_once_is_one_by_one(outcomes: OutcomeTable, thresholds: int) -> None:
    _same_as_one_by_one(outcomes, Candidates(outcomes, 0, thresholds=thresholds))


@pytest.mark.parametrize("continuous", [False, True])
def test_all_at_once_is_one_by_one_on_a_larger_table_and_on_part_of_it(continuous: bool) -> None:
    outcomes = family_outcomes(300, continuous=continuous)
    candidates = Candidates(outcomes, 2, thresholds=12)
    assert len(candidates) == 3 + 6 * 2 * 12
    _same_as_one_by_one(outcomes, candidates)
    _same_as_one_by_one(outcomes, candidates, np.array([5, 5, 17, 200]))


def _same_as_one_by_one(outcomes: OutcomeTable, candidates: Candidates, rows: np.ndarray | None = None) -> None:
    chosen = slice(None) if rows is None else rows
    means = candidates.means(rows)
    squares = candidates.mean_of_error(lambda error: (error - 0.5) ** 2, rows)
    for i in range(len(candidates)):
        plain = candidates.policy(i).replay(outcomes)
        assert means.error[i] == pytest.approx(plain.error[chosen].mean(), abs=1e-12)
        assert means.response_time_s[i] == pytest.approx(plain.response_time_s[chosen].mean(), abs=1e-9)
        assert means.cost[i] == pytest.approx(plain.cost[chosen].mean(), abs=1e-9)
        assert squares[i] == pytest.approx(((plain.error[chosen] - 0.5) ** 2).mean(), abs=1e-12)


def test_a_stored_threshold_treats_ties_as_the_table_did() -> None:
    outcomes = family_outcomes(100)
    outcomes.rows["confidence"] = np.float32(outcomes.rows["confidence"]).astype(float)  # digits beyond a key's ten
    candidates = Candidates(outcomes, 0, thresholds=9)
    for i in range(3, len(candidates)):
        policy = candidates.policy(i)
        assert from_point(OperatingPoint.parse(policy.point.key)) == policy


def test_a_constant_confidence_gives_no_threshold_of_its_own() -> None:
    outcomes = family_outcomes(50)
    outcomes.rows.loc[outcomes.rows["version"] == "small", "confidence"] = 0.5
    candidates = Candidates(outcomes, 2)
    firsts = {candidates.policy(i).versions[0] for i in range(3, len(candidates))}
    assert firsts == {"medium", "large"}


def test_without_osfa_only_the_best_version_stands_alone() -> None:
    candidates = Candidates(family_outcomes(50), 2, policies=("seq",), thresholds=3)
    assert [candidates.policy(i).kind for i in range(len(candidates))].count("osfa") == 1
    assert candidates.policy(candidates.best) == OSFA("large")
