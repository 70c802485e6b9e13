"""A simulation over time: what it counts is what was simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.errors import InputError, TableError
from slotool.reports.plots import save_png
from slotool.reports.series.load_test import dynamics_figures
from slotool.scheduling.batching import ControlGrid, MaxAccuracy, ValueIteration
from slotool.simulation import Scenario, SimulationResult, simulate
from slotool.simulation.query_log import Dynamics, QueryLog, dynamics
from slotool.testing.policies import three_versions

GRID = ControlGrid(three_versions())


def outcome(policy: type = ValueIteration, count: int = 400) -> SimulationResult:
    times_s = np.cumsum(np.random.default_rng(0).exponential(3e-4, count))
    return simulate(policy(GRID), Scenario.of(times_s, 0.003))


def over_time(run: SimulationResult, bins: int) -> Dynamics:
    return dynamics(QueryLog.of_results({"this": run}), "this", bins)


@pytest.mark.parametrize("policy", [ValueIteration, MaxAccuracy])
def test_sums_over_time_are_those_of_the_summary(policy: type) -> None:
    run = outcome(policy)
    seen, figures = over_time(run, 37), run.summary()
    assert (seen.arrived_per_s * seen.width_s).sum() == pytest.approx(figures["queries"])
    in_time = (seen.in_time_per_s * seen.width_s).sum()
    assert in_time == pytest.approx(figures["attainment"] * figures["queries"])
    assert (seen.waiting >= 0).all()
    one = over_time(run, 1)
    assert one.batch[0] == pytest.approx(figures["mean_batch"])
    assert one.accuracy[0] == pytest.approx(GRID.accuracy[run.row[run.row >= 0]].mean())


def test_who_waits_is_counted_as_one_would_by_hand() -> None:
    run = outcome()
    seen = over_time(run, 11)
    arrival_us, left_us = run.scenario.arrival_us, run.started_us
    assert not np.isnan(left_us).any(), "everybody was served, so nobody's end has to be guessed"
    for begin_s, waiting in zip(seen.begin_s, seen.waiting, strict=True):
        assert waiting == ((arrival_us <= 1e6 * begin_s) & (left_us > 1e6 * begin_s)).sum()


@pytest.mark.parametrize("policy", [ValueIteration, MaxAccuracy])
def test_queries_read_from_a_file_give_the_same_course(policy: type, tmp_path: Path) -> None:
    run = outcome(policy)
    QueryLog.of_results({"other": outcome(), "this": run}).save(tmp_path / "queries.parquet")
    log = QueryLog.load(tmp_path / "queries.parquet")
    rows, figures = log.of_policy("this"), run.summary()
    assert (rows["status"] == "in-time").mean() == pytest.approx(figures["attainment"])
    assert rows["started_s"].isna().sum() == figures["drops"] == (rows["batch_size"] == 0).sum()
    seen, direct = dynamics(log, "this", 37), over_time(run, 37)
    # An instant on the edge of a bin may be counted in its neighbour: seconds are rounded.
    assert np.abs(np.cumsum(seen.arrived_per_s - direct.arrived_per_s) * seen.width_s).max() <= 1
    np.testing.assert_allclose(np.nansum(seen.batch), np.nansum(direct.batch), rtol=0.05)
    with pytest.raises(TableError, match="no rows of policy 'slackfit'"):
        log.of_policy("slackfit")


def test_four_plots_have_a_curve_per_policy(tmp_path: Path) -> None:
    runs = {"value-iteration": outcome(), "maxacc": outcome(MaxAccuracy)}
    figures = dynamics_figures("net", QueryLog.of_results(runs), "queries.parquet")
    assert [figure.id for figure in figures] == [f"dynamics-{what}" for what in ("rate", "accuracy", "batch", "queue")]
    for figure in figures:
        assert set(runs) <= {curve.name for curve in figure.curves}
    save_png(figures[0], tmp_path / "rate.png")
    assert (tmp_path / "rate.png").read_bytes().startswith(b"\x89PNG")


def test_no_bins_are_rejected() -> None:
    with pytest.raises(InputError, match="need bins"):
        over_time(outcome(), 0)
