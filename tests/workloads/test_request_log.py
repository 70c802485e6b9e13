"""The request log's views, on cases worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import TableError
from slotool.workloads import RequestLog


def row(intended_s: float, sent_s: float, done_s: float, **more: Any) -> dict[str, Any]:
    return {
        "intended_s": intended_s,
        "sent_s": sent_s,
        "done_s": done_s,
        "status": 200,
        "label": 3,
        "answer": 3,
        "confidence": 0.9,
        "point": "k=0.5",
        "deadline_s": 0.1,
        **more,
    }


@pytest.fixture
def log() -> RequestLog:
    """Right and in time; right but late from its intended instant, though in time from its sending; wrong; rejected;
    a server that answered without a class.
    """
    return RequestLog.of(
        [
            row(0.0, 0.0, 0.05),
            row(1.0, 1.08, 1.15),
            row(2.0, 2.0, 2.09, answer=4, point="full"),
            row(3.0, 3.0, 3.01, status=503, answer=-1, confidence=None, point="", error="the queue is full"),
            row(4.0, 4.0, 4.02, answer=-1, error="not JSON"),
        ],
        {"subject": "m"},
    )


def test_latency_counts_from_the_intended_instant(log: RequestLog) -> None:
    assert log.latency_s == pytest.approx([0.05, 0.15, 0.09, 0.01, 0.02])
    assert log.send_delay_s == pytest.approx([0, 0.08, 0, 0, 0])


def test_who_was_answered_in_time_and_correctly(log: RequestLog) -> None:
    assert log.answered.tolist() == [True, True, True, False, False]
    assert log.in_time.tolist() == [True, False, True, False, False]
    assert log.correct.tolist() == [True, True, False, False, False]


def test_summary(log: RequestLog) -> None:
    summary = log.summary()
    assert summary["requests"] == 5
    assert summary["answered"] == 3
    assert summary["deadline_meet_rate"] == pytest.approx(2 / 5)
    assert summary["effective_accuracy"] == pytest.approx(1 / 5), "only the first was correct and in time"
    assert summary["accuracy_of_answered"] == pytest.approx(2 / 3)
    assert summary["p50_s"] == pytest.approx(0.09), "of the answered ones"
    assert summary["worst_s"] == pytest.approx(0.15)
    assert math.isnan(summary["p90_s"]), "three answers have no 90th percentile"
    assert summary["drawn_rate_per_s"] == summary["achieved_rate_per_s"] == pytest.approx(1.0)
    assert summary["send_delay_max_s"] == pytest.approx(0.08)
    assert summary["deadline_s"] == pytest.approx(0.1)


def test_statuses_and_points(log: RequestLog) -> None:
    assert log.statuses() == [
        {"status": 200, "requests": 4, "error": "not JSON"},
        {"status": 503, "requests": 1, "error": "the queue is full"},
    ]
    first, second = log.points()
    assert (first["point"], first["share"], first["accuracy"]) == ("k=0.5", pytest.approx(2 / 3), 1.0)
    assert first["median_latency_s"] == pytest.approx(0.1)
    assert (second["point"], second["accuracy"]) == ("full", 0.0)


def test_without_a_deadline_every_answer_is_in_time() -> None:
    log = RequestLog.of([row(0, 0, 5, deadline_s=None), row(1, 1, 2, deadline_s=None, status=500, answer=-1)])
    assert log.in_time.tolist() == [True, False]
    assert log.deadline_s is None


def test_a_log_without_any_answer_has_no_quantiles() -> None:
    summary = RequestLog.of([row(0, 0, 1, status=0, answer=-1)]).summary()
    assert all(math.isnan(summary[name]) for name in ("p50_s", "p99_s", "worst_s", "accuracy_of_answered"))
    assert summary["effective_accuracy"] == 0.0


def test_p99_needs_662_answers() -> None:
    rows = [row(i, i, i + 0.001 * (1 + i % 100)) for i in range(662)]
    assert math.isnan(RequestLog.of(rows[:661]).quantile_s(0.99))
    assert RequestLog.of(rows).quantile_s(0.99) == pytest.approx(0.099, rel=0.02)


@given(
    gaps=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30)
)
@settings(max_examples=20, deadline=None)
def test_effective_accuracy_is_at_most_either_factor(gaps: list[tuple[float, float, float, bool]]) -> None:
    rows = [row(a, a + b, a + b + c, answer=3 if right else 1) for a, b, c, right in gaps]
    log = RequestLog.of(rows)
    summary = log.summary()
    assert 0 <= summary["effective_accuracy"] <= summary["deadline_meet_rate"] <= 1
    assert summary["effective_accuracy"] <= log.correct.mean()
    assert (np.diff(log.rows["intended_s"]) >= 0).all()


def test_a_log_survives_its_file(log: RequestLog, tmp_path: Path) -> None:
    log.save(tmp_path / "r.parquet")
    again = RequestLog.load(tmp_path / "r.parquet")
    assert again.rows.equals(log.rows)
    assert again.provenance == log.provenance


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sent_s": 0.5}, "row 1, column sent_s: lies before intended_s"),
        ({"done_s": 0.99}, "row 1, column done_s: lies before sent_s"),
        ({"deadline_s": -1.0}, "row 1, column deadline_s"),
        ({"status": "teapot"}, "row 1, column status"),
        ({"intended_s": float("nan")}, "row 1, column intended_s"),
    ],
)
def test_a_row_that_cannot_be_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TableError, match=sentence):
        RequestLog.of([{**row(1.0, 1.0, 1.1), **change}])


def test_an_empty_log_is_rejected() -> None:
    with pytest.raises(TableError, match="no request was sent"):
        RequestLog.of([])
