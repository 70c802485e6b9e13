"""Answering back to back: each way answers as it says, and what becomes of it is kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.colocation.back_to_back import aclo, fixed, lcao, profile_rows, run
from benchmarks.colocation.chooser import Lcao
from benchmarks.colocation.measured import CoLocationSettings, measure
from benchmarks.colocation.table import InterferenceTable
from slotool.data.dataset import Split
from slotool.elastic.model import ElasticModel
from slotool.elastic.queries import Queries
from slotool.errors import InputError
from slotool.scheduling import CoRunnerEstimator, LatencyProfile
from slotool.tables import FULL, LatencyTable, OperatingPoint

HALF = OperatingPoint.of(k=0.5)


class Halved(ElasticModel):
    """Class i of an input is its value i; at k = 0.5 only the first two of four can be told."""

    name, input_shape, classes, points = "halved", (4,), 4, (HALF, FULL)

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        self.require(point)
        return x if point == FULL else np.where(np.arange(4) < 2, x, -np.inf).astype(np.float32)


def queries() -> Queries:
    return Queries(Halved(), Split(np.eye(4, dtype=np.float32), np.arange(4)))


def profile(half_us: float, full_us: float) -> LatencyProfile:
    known = {HALF: half_us, FULL: full_us}
    return LatencyProfile((HALF, FULL), {0: known}, {0: known})


def test_each_way_answers_as_it_says_and_every_answer_is_scored() -> None:
    asked = queries()
    answers = {point: asked.answer(point) for point in asked.model.points}
    estimator = CoRunnerEstimator({0: {HALF: 1.0, FULL: 1.0}, 1: {HALF: 1e9, FULL: 1e9}})
    ways = [
        fixed("full", FULL, asked),
        fixed("least", HALF, asked),
        lcao(Lcao(profile(10.0, 20.0)), 15.0, answers, 0),
        lcao(Lcao(profile(10.0, 20.0)), 5.0, answers, 0),
        lcao(Lcao(profile(10.0, 20.0)), 25.0, answers, estimator),
    ]
    run(ways, asked, 0.01, seed=3)
    rows = [way.row(asked, 0) for way in ways]
    # However many queries each had time for.
    assert rows[0]["right"].all()
    assert all((r["right"] == (r["example"] < 2)).all() for r in rows[1:3])
    assert [set(r["k"].tolist()) for r in rows] == [{1.0}, {0.5}, {0.5}, set(), {1.0}]
    assert rows[3]["rejected"] == rows[3]["queries"] > 0
    assert all(len(r["latency_s"]) == len(r["right"]) == len(r["k"]) for r in rows)
    InterferenceTable(pd.DataFrame(rows))
    with pytest.raises(InputError, match="cannot estimate accuracy per input"):
        aclo(0.9, asked)


def test_a_measured_profile_is_one_that_lcao_reads() -> None:
    rows = [profile_rows(queries(), 0.01, co_runners).rows for co_runners in (0, 2)]
    found = LatencyProfile.of_table("halved", Halved.points, LatencyTable(pd.concat(rows, ignore_index=True)))
    assert {co_runners: set(known) for co_runners, known in found.planned_us.items()} == {
        0: {HALF, FULL},
        2: {HALF, FULL},
    }


@pytest.mark.parametrize("x", [np.ones((3, 5), dtype=np.float32), np.ones((0, 4), dtype=np.float32)])
def test_examples_of_another_shape_are_refused(x: np.ndarray) -> None:
    with pytest.raises(InputError):
        Queries(Halved(), Split(x, np.zeros(len(x), dtype=np.int64)))


@pytest.mark.parametrize("estimate", [False, True])
def test_alone_the_measured_profile_is_planned_with_and_deadlines_are_swept(estimate: bool) -> None:
    split = Split(np.eye(4, dtype=np.float32), np.arange(4))
    data = SimpleNamespace(validation=split, test=split)
    settings = CoLocationSettings(co_runner_counts=(0,), seconds=0.02, estimate=estimate)
    measured = measure(Halved(), data, {}, settings)
    table = measured.table
    assert (table.co_runner_counts, len(table.deadlines_s)) == ([0], 10)
    assert measured.deadline_us == pytest.approx(1e6 * table.deadlines_s[-3]), "two deadlines lie beyond it"
    assert [found["lost"] for found in table.summary() if found["mean_k"] == 1.0][-1] == pytest.approx(0.0)
    only = measure(Halved(), data, {}, replace(settings, sweep=False), latency=measured.latency)
    assert 1e6 * only.table.deadlines_s == pytest.approx([measured.deadline_us])
    chosen = measure(Halved(), data, {}, replace(settings, deadlines_us=(5.0, 1e6)), latency=measured.latency)
    assert [answers.mean_k for answers in chosen.table.answers("lcao", 0)][-1] == pytest.approx(1.0)


def interference_table() -> InterferenceTable:
    """Ten queries each; alone all is well, with one co-runner the full network is late seven times and LCAO once."""
    nan, alone = float("nan"), [50.0] * 10
    rows = [
        _answers("full", 0, nan, alone),
        _answers("least", 0, nan, alone),
        _answers("lcao", 0, 60e-6, alone),
        _answers("full", 1, nan, [50.0] * 3 + [4_000.0] * 7),
        _answers("least", 1, nan, [5.0] * 10),
        _answers("lcao", 1, 60e-6, [20.0] * 9 + [4_000.0], right=np.array([1.0] * 8 + [0.0] * 2)),
        _answers("lcao", 1, 2e-6, [], queries=10, rejected=10),
        _answers("aclo", 0, 0.9, [25.0] * 10),
        _answers("aclo", 1, 0.9, alone),
    ]
    return InterferenceTable(pd.DataFrame(rows), {"deadline_us": 60.0})


def _answers(strategy: str, co_runners: int, target: float, latency_us: list[float], **more: Any) -> dict[str, Any]:
    n = len(latency_us)
    same = {"queries": n, "rejected": 0, "right": np.ones(n), "k": np.full(n, 0.25), "example": np.arange(n)}
    known = {"strategy": strategy, "co_runners": co_runners, "target": target, "latency_s": 1e-6 * np.array(latency_us)}
    return {**same, **known, **more}


def test_shares_are_of_all_queries_and_accuracy_of_those_answered() -> None:
    found = {(r["co_runners"], round(r["deadline_us"])): r for r in interference_table().summary()}
    assert set(found) == {(0, 60), (1, 60), (1, 2)}
    late = found[1, 60]
    assert (late["met_share"], late["full_met_share"], late["least_met_share"]) == pytest.approx((0.9, 0.3, 1.0))
    assert (late["accuracy"], late["mean_k"]) == pytest.approx((0.8, 0.25))
    assert (late["lost"], late["lost_standard_error"]) == pytest.approx((0.2, 0.4 / 10**0.5))
    rejected = found[1, 2]
    assert (rejected["met_share"], rejected["rejected_share"]) == (0.0, 1.0)
    assert np.isnan(rejected["accuracy"])
