"""T(k, β) from latencies alone and a few co-located: on a core whose slices are known, and by the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.colocation.chooser import Lcao
from slotool.artifacts.bundle import shipped_artifact
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import InputError
from slotool.predictors.colocated.time_slices import fill
from slotool.scheduling import CoRunnerEstimator, LatencyProfile
from slotool.tables import FULL, LatencyTable, OperatingPoint

POINTS = (*(OperatingPoint.of(k=k) for k in (0.1, 0.2, 0.5)), FULL)
OWN_US = (5.0, 20.0, 120.0, 900.0)
SLICE_S, STRETCH = 4e-3, 1.1


def calls_s(own_us: float, beside: int, n: int = 20_000, seed: int = 0) -> np.ndarray:
    """Single calls back to back on a core that rivals have for a slice each, after every slice of ours."""
    rng = np.random.default_rng([seed, beside, int(own_us)])
    own_s = 1e-6 * own_us * rng.uniform(0.9, 1.3, n) * (STRETCH if beside else 1.0)
    ended = np.floor(np.cumsum(own_s) / SLICE_S)
    return own_s + beside * SLICE_S * np.diff(ended, prepend=0.0)


def row(point: OperatingPoint, own_us: float, beside: int, name: str = "net") -> dict[str, Any]:
    return {
        "subject": name,
        "point": point.key,
        "co_runners": "+".join([name] * beside),
        "samples_s": calls_s(own_us, beside),
    }


def table(in_company: dict[int, tuple[int, ...]], name: str = "net", points: Any = POINTS) -> LatencyTable:
    """All points alone, and those of these numbers beside so many copies."""
    pairs = list(zip(points, OWN_US[: len(points)], strict=True))
    rows = [row(*pair, 0, name) for pair in pairs]
    rows += [row(*pairs[at], beside, name) for beside, chosen in in_company.items() for at in chosen]
    return LatencyTable.of(rows)


@pytest.mark.parametrize("beside", [1, 3])
def test_two_points_with_one_copy_predict_the_others_and_other_numbers_of_copies(beside: int) -> None:
    filled = fill("net", POINTS, table({1: (0, 3)}), [0, 1, beside])
    rows = filled.table.where(co_runners="+".join(["net"] * beside)).rows.set_index("point")
    for point, own_us in zip(POINTS, OWN_US, strict=True):
        found, true = np.asarray(rows.loc[point.key, "samples_s"]), calls_s(own_us, beside)
        for of in (np.mean, np.median, lambda samples: np.quantile(samples, 0.99)):
            assert of(found) == pytest.approx(of(true), rel=0.12)
    own = {(r["point"], r["co_runners"]): r["predicted"] for r in filled.table.rows.to_dict("records")}
    assert not own[POINTS[0].key, "net"], "what was measured stays as it is"
    assert own[POINTS[1].key, "net"]
    assert set(filled.errors["copies"]) == {1}
    assert sum(own.values()) == filled.predicted == (2 if beside == 1 else 6)


def test_a_filled_table_is_a_profile_that_lcao_plans_with() -> None:
    filled = fill("net", POINTS, table({1: (0, 3)}), [0, 1, 2]).table
    profile = LatencyProfile.of_table("net", POINTS, filled, quantile=0.99)
    assert profile.with_co_runners(2)[POINTS[0]] < 10, "of few calls of 5 µs a rival takes its slice"
    assert profile.with_co_runners(2)[POINTS[2]] == pytest.approx(8_000, rel=0.1), (
        "of more than 1 % of those of 120 µs two do"
    )
    assert Lcao(profile).choose(200.0, co_runners=2) == POINTS[1]
    estimator = CoRunnerEstimator(profile.mean_us)
    for took_s in calls_s(20.0, 2, seed=1):
        estimator.observe(POINTS[1], 1e6 * took_s)
    assert estimator.co_runners == 2


@settings(max_examples=20, deadline=None)
@given(own_us=st.floats(1.0, 5e4), beside=st.integers(1, 4), seed=st.integers(0, 99))
def test_co_runners_make_no_call_faster_and_its_interval_holds_most(own_us: float, beside: int, seed: int) -> None:
    alone = LatencyTable.of([{**row(POINTS[0], own_us, 0)}, {**row(FULL, 50.0, 0)}, row(FULL, 50.0, 1)])
    filled = fill("net", (POINTS[0], FULL), alone, [beside], seed=seed).table
    (found,) = filled.where(point=POINTS[0].key).rows.to_dict("records")
    before, after = (np.sort(samples) for samples in (calls_s(own_us, 0), found["samples_s"]))
    assert (after >= before * 0.999).all()
    assert found["low_s"] <= np.median(after) <= found["high_s"]
    within = (after >= found["low_s"]) & (after <= found["high_s"])
    assert within.mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (table({}), "no row of net co-located with copies of itself"),
        (LatencyTable.of([row(FULL, 50.0, 0), row(FULL, 50.0, 1)]), "no solo latency of net at k=0.1, k=0.2, k=0.5"),
    ],
)
def test_a_table_that_does_not_tell_is_refused(rows: LatencyTable, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fill("net", POINTS, rows, [1])


def test_the_command_fills_a_table(slotool: Callable[..., Any], tmp_path: Path) -> None:
    artifact = shipped_artifact("slo-nn")
    whole = SloNN.load(artifact).points
    rows = [row(point, 10.0, 0, artifact.name) for point in whole] + [row(FULL, 10.0, 1, artifact.name)]
    LatencyTable.of(rows).save(tmp_path / "few.parquet")
    command = ["predict", "--points", artifact.path, "--latency", tmp_path / "few.parquet", "--co-runners", "0:2"]
    done = slotool(*command, "-o", tmp_path / "all.parquet", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.document["schema"] == "slotool/predict-points"
    assert done.document["predicted_rows"] == 2 * len(whole) - 1
    assert done.document["learnt"][0]["mean_pause_s"] == pytest.approx(SLICE_S, rel=0.01)
    filled = LatencyTable.load(tmp_path / "all.parquet")
    assert len(filled) == 3 * len(whole)
    for wrong, says in (("-1", "at least 0"), ("0.5", "whole number")):
        refused = slotool(*command[:-1], wrong, "-o", tmp_path / "other.parquet")
        assert (refused.exit_code, says in refused.stderr) == (2, True)
