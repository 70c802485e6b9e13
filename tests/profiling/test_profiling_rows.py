"""Rounds to one item become one row that keeps every sample and is no surer than they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slotool.profiling.rows import by_key, doubt
from slotool.tables.latency import MEASURED_COLUMNS
from slotool.timing.timer import StoppingRule

RULE = StoppingRule(runs=10, precision=0.01)


def round_row(subject: str = "s", samples: list[float] | None = None, **more: Any) -> dict[str, Any]:
    ok = {"status": "ok", "samples_s": samples} if samples else {"status": "failed", "samples_s": []}
    key = {"subject": subject, "point": "full", "batch_size": 1, "co_runners": ""}
    return {**MEASURED_COLUMNS, **key, **ok, "samples_per_round": [len(samples)] if samples else [], **more}


rounds = st.lists(
    st.builds(
        round_row, st.sampled_from("ab"), st.one_of(st.none(), st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30))
    ),
    max_size=8,
)


@given(rounds)
def test_every_sample_is_kept_whatever_the_order_of_visits(rows: list[dict[str, Any]]) -> None:
    found = by_key(rows, RULE)
    assert set(found) == {(row["subject"], "full", 1, "") for row in rows}
    for (subject, *_), row in found.items():
        mine = [r for r in rows if r["subject"] == subject]
        assert row["samples_s"] == [s for r in mine for s in r["samples_s"]]
        assert (row["status"] == "ok") == any(r["samples_s"] for r in mine)
        if row["status"] == "ok":
            assert row["rounds"] == sum(bool(r["samples_s"]) for r in mine)
            assert row["samples_per_round"] == [len(r["samples_s"]) for r in mine if r["samples_s"]]
    backwards = by_key(reversed(rows), RULE)
    assert {key: sorted(row["samples_s"]) for key, row in backwards.items()} == {
        key: sorted(row["samples_s"]) for key, row in found.items()
    }


@given(rounds)
def test_pooling_what_was_pooled_changes_nothing(rows: list[dict[str, Any]]) -> None:
    for cut in range(len(rows) + 1):
        first = by_key(rows[:cut], RULE).values()
        assert by_key([*first, *rows[cut:]], RULE) == by_key(rows, RULE)


def test_visits_that_agree_are_stable_and_visits_that_differ_are_not() -> None:
    steady, slower = [1.0] * 10, [1.1] * 10
    key = ("s", "full", 1, "")
    agreeing = by_key([round_row(samples=steady), round_row(samples=steady)], RULE)[key]
    assert agreeing["stable"]
    assert doubt(agreeing) == 0.0
    # Each is sure of itself; together they are not.
    differing = by_key([round_row(samples=steady), round_row(samples=slower)], RULE)[key]
    assert not differing["stable"]
    assert 0.05 < doubt(differing) < 0.15
    assert not by_key([round_row(samples=steady), round_row(samples=steady, interrupted=True)], RULE)[key]["stable"]
    assert not by_key([round_row(samples=steady[:4])] * 2, RULE)[key]["stable"]


def test_one_round_that_disagrees_makes_a_row_unstable_however_many_agree() -> None:
    key, slower = ("s", "full", 1, ""), round_row(samples=[1.05] * 10)
    for place in range(6):
        rounds = [round_row(samples=[1.0] * 10) for _ in range(5)]
        assert by_key(rounds, RULE)[key]["stable"]
        assert not by_key([*rounds[:place], slower, *rounds[place:]], RULE)[key]["stable"]


def test_one_round_alone_is_never_stable_and_in_doubt() -> None:
    row = by_key([round_row(samples=[1.0] * 100)], RULE)["s", "full", 1, ""]
    assert not row["stable"]
    assert doubt(row) > RULE.precision


def test_degradation_is_of_all_samples_together() -> None:
    pair = [round_row(samples=[2.0] * 10, solo_s=[1.0] * 4), round_row(samples=[2.0] * 9, solo_s=[1.0, 4.0])]
    row = next(iter(by_key(pair, RULE).values()))
    assert row["degradation_s"] == np.median([2.0]) - 1.0
    assert row["degradation_ratio"] == 2.0
