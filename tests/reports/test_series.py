"""Plots as data: each figure says what its table says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from slotool.errors import InputError
from slotool.reports.figure import Axis, Curve, Figure, Rows, Unit, error_axis, share_axis
from slotool.reports.plots import draw
from slotool.reports.series.accuracy import accuracy_against_k, accuracy_against_latency, has_k, pareto
from slotool.reports.series.latency import latency_figures
from slotool.reports.series.load_test import MAX_POINTS, served_latency
from slotool.reports.series.predictions import predicted_against_measured
from slotool.reports.series.switching import plan_figures
from slotool.reports.series.tiers import tolerance_tiers
from slotool.rules.evidence.losses import PERCENT
from slotool.tables import LatencyTable
from tests.reports.made_tables import (
    family_outcomes,
    latency_table,
    outcomes,
    predictions,
    request_log,
    rule_set,
    slo_nn_outcomes,
    switching_plan,
)


def curve(figure: Figure, name: str) -> Curve:
    return next(curve for curve in figure.curves if curve.name == name)


def drawn(line: Curve, x: Axis, y: Axis) -> Axes:
    (axes,) = draw(Figure("id", "title", "caption", "source", x, y, (line,), Rows((), ()))).axes
    return axes


def written(line: Curve) -> list[str]:
    """Labels that are written."""
    return [text.get_text() for text in drawn(line, Axis("x"), Axis("y")).texts]


def test_predicted_against_measured() -> None:
    figure = predicted_against_measured("dnn", predictions(40), "p")
    assert len(curve(figure, "mlp").x) == len(curve(figure, "cnn").x) == 20
    ratio = curve(figure, "mlp").y / curve(figure, "mlp").x
    assert ratio == pytest.approx([1.0, 1.3] * 10)
    (band,) = figure.bands
    assert band.low == pytest.approx(0.9 * band.x)
    assert band.high == pytest.approx(1.1 * band.x)
    assert "50.0 % of the predictions" in figure.caption
    assert "15.0 %" in figure.caption, "half of them 30 % off"
    assert figure.square, "a diagonal must look like one"


def test_accuracy_against_k_is_in_order_and_finds_the_least_k_that_suffices() -> None:
    figure = accuracy_against_k("slo-nn", slo_nn_outcomes(), "o")
    line = curve(figure, "slo-nn")
    assert line.x.tolist() == [0.25, 0.5, 1.0]
    assert line.y == pytest.approx([0.80, 0.97, 0.98])
    assert line.error is not None
    assert line.error[0] == pytest.approx(np.sqrt(0.8 * 0.2 / 99), rel=1e-6)
    assert "50 % of the nodes suffice" in figure.caption
    assert dict(figure.headlines)["slo-nn: smallest k within one point of the full network"].startswith("k=0.5: 97.0 %")


def test_when_only_the_full_network_will_do_the_caption_says_so() -> None:
    table = outcomes({"k=0.5": (40, 1e-5), "full": (1, 2e-5)}, {})
    assert accuracy_against_k("s", table, "o").caption.startswith(
        "No k below full comes within one point of its 99.0 %"
    )


def test_a_family_has_no_k() -> None:
    assert has_k(slo_nn_outcomes())
    assert not has_k(family_outcomes())


def test_accuracy_against_latency_draws_the_front_over_all_subjects() -> None:
    tables = [("slo-nn", slo_nn_outcomes()), ("family", family_outcomes())]
    figure = accuracy_against_latency("digits (test)", tables, "o")
    front = curve(figure, "Pareto front")
    assert front.x == pytest.approx([10, 15, 30, 80])
    assert front.y == pytest.approx([0.80, 0.97, 0.98, 0.99])
    assert "4 of 6 operating points lie on the front, the other 2 are" in figure.caption
    assert curve(figure, "family").x == pytest.approx([20, 25, 80])
    on_front = {row[1]: row[-1] for row in figure.table.rows}
    assert on_front == {"k=0.25": "yes", "k=0.5": "yes", "full": "yes", "large": "yes", "small": "", "clumsy": ""}


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=25))
@settings(max_examples=100, deadline=None)
def test_the_front_is_exactly_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    latency_s, accuracy = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    front = pareto(latency_s, accuracy)
    assert (np.diff(latency_s[front]) > 0).all()
    assert (np.diff(accuracy[front]) > 0).all()
    for mine in points:
        assert any(latency_s[f] <= mine[0] and accuracy[f] >= mine[1] for f in front)
    for f in front:
        beaten = (latency_s <= latency_s[f]) & (accuracy >= accuracy[f])
        assert (beaten <= ((latency_s == latency_s[f]) & (accuracy == accuracy[f]))).all()


def test_served_latency_is_the_share_still_waiting() -> None:
    figure = served_latency("slo-nn", request_log(1000), "r")
    line = curve(figure, "slo-nn")
    assert line.y[0] == 1.0
    assert line.y[-1] == pytest.approx(1 / 1000), "the very last request is on the curve"
    assert line.y[np.flatnonzero(line.x >= 5.5)[0]] == pytest.approx(0.5)
    assert [limit.x for limit in figure.limits] == pytest.approx([20])
    marks = curve(figure, "quantiles")
    assert marks.labels == ("p50 5.5 ms", "p99 10 ms")
    assert figure.caption == "All of 1,000 requests, arriving at 100/s, were answered before the deadline."


def test_requests_that_failed_never_leave_the_curve() -> None:
    figure = served_latency("slo-nn", request_log(1000, failed=200), "r")
    line = curve(figure, "slo-nn")
    assert line.y[-1] == pytest.approx(0.201)
    assert "20.00 %; 200 were never answered" in figure.caption
    marks = curve(figure, "quantiles")
    assert marks.y[0] == pytest.approx(0.2 + 0.8 * 0.5), "the mark lies on the curve"


def test_without_deadline_or_tail_the_figure_says_what_it_can() -> None:
    figure = served_latency("m", request_log(50, deadline_s=None), "r")
    assert not figure.limits
    assert "Half of 50 requests" in figure.caption
    assert curve(figure, "quantiles").labels == ("p50 5.5 ms",), "50 requests have no p99"


def test_a_log_without_answers_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="none of its 10 requests was answered"):
        served_latency("m", request_log(10, failed=10), "r.parquet")


def test_thinning_keeps_the_tail() -> None:
    log = request_log(20_000)
    line = curve(served_latency("m", log, "r"), "m")
    assert len(line.x) <= MAX_POINTS + 1
    assert line.y[-1] == pytest.approx(1 / 20_000)
    assert line.y[-20:] == pytest.approx(np.arange(20, 0, -1) / 20_000), "each of the slowest is there"


def test_tolerance_tiers() -> None:
    by_time, by_cost = tolerance_tiers("rules", rule_set(), "rules.json")
    assert curve(by_time, "response time").y == pytest.approx([100, 100, 40])
    assert curve(by_time, "cost").y == pytest.approx([100, 100, 25])
    assert "saves 60.0 % of the response time, certified at 99.0 % confidence" in by_time.caption
    assert "saves 75.0 % of the cost" in by_cost.caption
    assert [row[0] for row in by_cost.table.rows] == ["0 – 1 points", "2 points"], "tiers served alike are one row"
    assert [row[-1] for row in by_cost.table.rows] == ["not needed", "yes"]


def test_without_a_certificate_none_is_claimed() -> None:
    rules = rule_set()
    bare = replace(rules, rules=tuple(replace(rule, certified=False) for rule in rules.rules))
    assert "without a certificate" in tolerance_tiers("rules", bare, "r")[0].caption


def test_the_tail_by_load_shows_what_was_measured_on_the_configuration_kept() -> None:
    _, figure = plan_figures(switching_plan(), "plan.json")
    assert [curve.name for curve in figure.curves] == ["deadline, 20 ms", "small"]
    assert curve(figure, "small").x.tolist() == [100.0, 900.0]
    assert curve(figure, "small").y.tolist() == pytest.approx([4.0, 19.0])
    assert figure.table.rows == (("large", "300/s", "90.00 %"), ("small", "900/s", "80.00 %"))


def test_a_plan_is_drawn_as_the_accuracy_that_each_load_gets() -> None:
    figure, _ = plan_figures(switching_plan(), "plan.json")
    (steps,) = figure.curves
    assert (steps.x.tolist(), steps.y.tolist(), steps.style) == ([0, 300, 900], [0.9, 0.8, 0.8], "dots and steps")
    assert figure.table.rows[1] == ("clumsy", "never", "85.00 %", "100/s"), "large serves all that it could"
    assert figure.headlines == (("family: rate served within 20 ms", "900 requests/s"),)


def test_a_plan_by_effective_accuracy_shows_it_by_load() -> None:
    plan = replace(switching_plan(), by="effective-accuracy")
    steps, _, figure = plan_figures(plan, "plan.json")
    assert "answered correctly within 20 ms" in steps.caption
    assert [curve.name for curve in figure.curves] == ["small", "large", "the plan"]
    assert curve(figure, "small").y.tolist() == [0.8, 0.8]
    assert figure.table.rows[2] == ("large", "100/s", "50.0 %", "45.0 %")
    assert curve(figure, "the plan").y[-1] == pytest.approx(0.8)


def test_a_plan_without_load_tests_still_shows_its_thresholds() -> None:
    (figure,) = plan_figures(replace(switching_plan(), loads=()), "plan.json")
    assert figure.id == "switching-plan"


def test_latency_of_one_batch_size_is_ranked_and_of_several_a_curve_each() -> None:
    ranked, _ = latency_figures("t", latency_table(), "t.parquet")
    (dots,) = ranked.curves
    assert dots.y.tolist() == pytest.approx([1.0, 2.0])
    assert [row[:2] for row in ranked.table.rows] == [("b", "2 ms"), ("a", "1 ms")]
    batched, _ = latency_figures("t", latency_table((1, 4)), "t.parquet")
    assert [curve.name for curve in batched.curves] == ["a", "b"], "the fastest first"
    assert curve(batched, "b").y.tolist() == pytest.approx([2.0, 8.0])
    assert batched.table.rows[1] == ("b", "2 ms", "8 ms")


def test_degradation_is_the_latency_beside_the_solo_samples_of_the_same_row() -> None:
    figure = list(latency_figures("t", latency_table(), "t.parquet"))[-1]
    dots = curve(figure, "1 co-runner")
    assert (dots.x.tolist(), dots.y.tolist()) == (pytest.approx([1.0]), pytest.approx([3.0]))
    assert figure.table.rows == (("a", "b", "1 ms", "3.00 ×"),)


def test_of_many_points_as_many_are_drawn_as_there_are_colours() -> None:
    rows = [{"subject": f"net-{i}", "batch_size": size, "samples_s": [1e-3 * (i + 1) * size]}
            for i in range(20) for size in (1, 2)]  # fmt: skip
    (figure,) = latency_figures("t", LatencyTable.of(rows), "t.parquet")
    names = [curve.name for curve in figure.curves]
    assert (len(names), names[0], names[-1]) == (8, "net-0", "net-19")
    assert "8 of 20" in figure.caption


def test_the_unit_is_the_one_a_person_would_choose() -> None:
    assert Unit.best_for(np.array([20e-6, 50e-6])).name == "µs"
    assert Unit.best_for(np.array([0.9e-3, 0.5])).name == "ms"
    assert Unit.best_for(np.array([3.0, 4.0])).of(np.array([2.0])).tolist() == [2.0]


def test_ticks_are_written_as_a_reader_wants_them() -> None:
    assert share_axis("accuracy").written(0.975) == "97.5 %"
    assert error_axis("error", PERCENT).written(0.02) == "2 %"
    assert Axis("latency, µs", log=True).written(1e4) == "10,000"
    assert Axis("latency, ms").written(0.3) == "0.3"


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e8))
@example(115.0, 1.0)  # between two round values
@settings(max_examples=20, deadline=None)
def test_axes_hold_their_data_and_have_few_ticks(low: float, ratio: float) -> None:
    values = np.array([low, low * ratio])
    axes = drawn(Curve("", values, values, "dots"), Axis("x", log=True), Axis("y"))
    for axis in (axes.xaxis, axes.yaxis):
        least, most = axis.get_view_interval()
        assert least <= low <= low * ratio <= most
        shown = [tick for tick in axis.get_majorticklocs() if least <= tick <= most]
        assert 1 <= len(shown) <= 12


def test_labels_that_would_overlap_are_left_out() -> None:
    same = np.array([10.0, 10.0, 90.0])
    assert written(Curve("", same, same, "dots", labels=("a", "b", "c"))) == ["a", "c"]


def test_labels_are_written_where_there_is_room_for_them() -> None:
    x, texts = np.array([0.1, 0.9, 0.93]), ("a" * 30, "b" * 30, "c")
    # The one on the left of its point ends where the next begins.
    assert written(Curve("", x, np.full(3, 0.5), "dots", labels=texts)) == [*texts]
    assert written(Curve("", np.array([0.1, 0.3, 0.9]), np.full(3, 0.5), "dots", labels=texts)) == [texts[0], "c"]


def test_of_very_many_networks_a_thousand_are_drawn_and_all_are_counted() -> None:
    many = [{"subject": f"n{i}", "samples_s": [1e-3 * (i + 1)]} for i in range(2_500)]
    (figure,) = latency_figures("many", LatencyTable.of(many), "m")
    (dots,) = figure.curves
    assert len(dots.x) == 1_000
    assert (dots.x[0], dots.x[-1]) == (1, 2_500)
    assert dots.y == pytest.approx(dots.x / dots.x[0] * dots.y[0])
    assert "one of 2,500 medians" in figure.caption
    assert figure.caption.endswith("1,500 of them are not drawn.")
