"""Choosing k per input: what confidence is learnt from, what an entry of its tables means, and its calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.elastic.slo_nn.calibration import ThresholdCalibration, mean_share, min_share
from slotool.elastic.slo_nn.confidence import (
    MEASURES,
    CalibrationExamples,
    ConfidenceTables,
    Expectation,
    GridResults,
    Measure,
    rates,
)

SHARES = (0.05, 0.1, 0.3, 0.6)
ROWS, TABLES = 6, 2
seeds = st.integers(0, 2**32 - 1)
measures = pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)


def calibration_examples(n: int, seed: int) -> CalibrationExamples:
    """Inputs of easy and hard buckets: the larger k, and the lower the bucket number, the likelier the full answer."""
    rng = np.random.default_rng(seed)
    buckets = rng.integers(ROWS, size=(n, TABLES))
    needed = rng.random(n) * (buckets.sum(axis=1) + 1) / (2 * ROWS)
    same = needed[:, None] <= np.array(SHARES)
    full = rng.integers(3, size=n)
    labels = np.column_stack([np.where(same, full[:, None], full[:, None] + 1), full]).astype(np.int32)
    truth = np.where(rng.random(n) < 0.8, full, full + 2)
    own = -rng.random(n) / 10
    likely = np.where(labels == labels[:, -1:], 0.8, 0.1)
    return CalibrationExamples(
        buckets, GridResults(labels, same - 1.0 + own[:, None], own, likely), labels == truth[:, None]
    )


def tried(measure: Measure, seed: int = 0, n: int = 400) -> tuple[ConfidenceTables, np.ndarray, CalibrationExamples]:
    held_out = calibration_examples(n, seed)
    rng = np.random.default_rng(seed)
    return *measure.fit(calibration_examples(900, seed + 1), held_out, ROWS, SHARES, rng), held_out


@measures
def test_a_higher_target_never_lowers_accuracy_or_k(measure: Measure) -> None:
    for seed in range(5):
        _, estimates, held_out = tried(measure, seed)
        calibration = ThresholdCalibration.measure(estimates, held_out.correct)
        assert (np.diff(calibration.thresholds) > 0).all()
        assert (np.diff(calibration.accuracy) >= 0).all()
        chosen = []
        for target in np.linspace(0, calibration.by_point[-1], 20):
            threshold = calibration.threshold(float(target))
            assert threshold is not None
            chosen.append(min_share(estimates, threshold))
            reached = held_out.correct[np.arange(len(estimates)), chosen[-1]].mean()
            assert reached >= target - 1e-12, "the threshold keeps its promise where it was calibrated"
        assert (np.diff(np.stack(chosen), axis=0) >= 0).all()
        assert calibration.threshold(float(calibration.by_point[-1]) + 1e-9) is None


@measures
def test_the_same_seed_gives_the_same_tables(measure: Measure) -> None:
    (mine, estimates, _), (again, repeated, _) = tried(measure), tried(measure)
    np.testing.assert_array_equal(mine.means, again.means)
    np.testing.assert_array_equal(estimates, repeated)


@pytest.mark.parametrize("measure", [m for m in MEASURES if m.held_out], ids=lambda measure: measure.name)
def test_no_input_has_a_part_in_its_own_estimate(measure: Measure) -> None:
    _, estimates, held_out = tried(measure)
    for one in (0, 17, 200):
        labels, close = held_out.results.labels.copy(), held_out.results.closeness.copy()
        labels[one, :-1], close[one] = labels[one, -1] + 1, -50.0
        other = CalibrationExamples(
            held_out.buckets, replace(held_out.results, labels=labels, closeness=close), held_out.correct
        )
        _, changed = measure.fit(calibration_examples(900, 1), other, ROWS, SHARES, np.random.default_rng(0))
        np.testing.assert_array_equal(changed[one], estimates[one])


def test_k_chosen_per_input_spares_nodes_at_the_accuracy_of_a_fixed_k() -> None:
    """On inputs that had no part in tables or calibration."""
    fresh = calibration_examples(20_000, 99)
    every = np.arange(len(fresh.buckets))
    spared = {}
    for measure in MEASURES:
        tables, estimates, held_out = tried(measure, n=8_000)
        calibration = ThresholdCalibration.measure(estimates, held_out.correct, 256)
        threshold = calibration.threshold(float(calibration.by_point[-1]) - 0.02)
        assert threshold is not None
        chosen = min_share(tables.estimate(fresh.buckets), threshold)
        assert fresh.correct[every, chosen].mean() >= fresh.correct[:, -1].mean() - 0.035
        spared[measure.name] = mean_share(SHARES, chosen)
    assert spared["cross-entropy"] < spared["none"]
    assert spared["rate of errors, held out"] < spared["none"]
    assert spared["rate of divergence, held out"] < spared["none"]


@given(seed=seeds, allowed=st.floats(0.001, 2.0))
def test_rates_spend_nodes_where_they_spare_most(seed: int, allowed: float) -> None:
    """No other choice of one k per bucket costs less of nodes + loss ÷ λ; every choice is tried."""
    rng = np.random.default_rng(seed)
    lost = np.sort(rng.random((3, len(SHARES))), axis=1)[:, ::-1]
    lost = np.where(rng.random(lost.shape) < 0.2, rng.random(lost.shape), lost)
    costs, all_lost = np.append(SHARES, 1.0), np.column_stack([lost, np.zeros(3)])
    price = costs + all_lost / allowed
    chosen = min_share(rates(lost, SHARES), -allowed)
    np.testing.assert_allclose(price[np.arange(3), chosen], price.min(axis=1), rtol=1e-9)


@given(seed=seeds)
def test_rates_never_fall_with_k(seed: int) -> None:
    found = rates(np.random.default_rng(seed).normal(size=(5, len(SHARES))), SHARES)
    assert (found <= 0).all()
    lost = np.sort(np.random.default_rng(seed).random((5, len(SHARES))), axis=1)[:, ::-1]
    found = rates(lost, SHARES)
    chosen = [min_share(found, -rate) for rate in np.linspace(20, 0, 30)]
    assert (np.diff(np.stack(chosen), axis=0) >= 0).all()


def test_a_thin_bucket_promises_little_more_than_the_average() -> None:
    buckets = np.array([[1]] * 50 + [[2]])
    confidences = np.concatenate([np.full((50, 1), -1.0), [[0.0]]])
    means = ConfidenceTables.learn(buckets, 4, confidences).means[:, 0]
    mean = confidences.mean()
    assert means[0] == pytest.approx(mean)
    assert means[3] == pytest.approx(mean), "a bucket that nobody fell into"
    assert mean < means[2] < mean / 2
    assert means[1] == pytest.approx(-1.0, abs=0.01)


def test_a_backed_bucket_starts_from_what_its_training_inputs_say() -> None:
    """Scaled to the held-out average; its own held-out inputs then pull it their way."""
    buckets, confidences = np.array([[1]] * 30 + [[2]] * 30), np.full((60, 1), 2.0)
    backing = np.array([[1.0], [0.5], [1.5], [4.0]])
    means = ConfidenceTables.learn(buckets, 4, confidences, 10.0, backing).means[:, 0]
    np.testing.assert_allclose(means, [2.0, (60 + 10 * 1.0) / 40, (60 + 10 * 3.0) / 40, 8.0])


def unlike(n: int, rng: np.random.Generator) -> tuple[GridResults, np.ndarray]:
    """Inputs of which one k answers a tenth otherwise, by labels hardly less probable; probabilities are true."""
    probability = np.column_stack([np.zeros(n), rng.uniform(0.2, 1.0, n)])
    other = rng.random(n) < 0.1
    probability[:, 0] = np.where(other, 0.9 * np.minimum(probability[:, 1], 1 - probability[:, 1]), probability[:, 1])
    drawn = rng.random(n)
    correct = np.column_stack([drawn < probability[:, 1]] * 2)
    correct[other, 0] = drawn[other] > 1 - probability[other, 0]
    labels = np.column_stack([other.astype(np.int32), np.zeros(n, np.int32)])
    return GridResults(labels, np.zeros((n, 1)), np.zeros(n), probability), correct


def test_the_loss_expected_is_the_loss_with_less_chance_in_it() -> None:
    rng = np.random.default_rng(0)
    results, correct = unlike(400_000, rng)
    true = float((results.probability[:, 1] - results.probability[:, 0]).mean())
    counted, expected = [], []
    for _ in range(200):
        results, correct = unlike(1_000, rng)
        found = Expectation.learn(results, correct).of(results)
        assert found[:, 1].mean() == pytest.approx(correct[:, 1].mean()), "of the full network it is the accuracy"
        counted.append(float(correct[:, 1].mean() - correct[:, 0].mean()))
        expected.append(float(found[:, 1].mean() - found[:, 0].mean()))
    assert np.mean(expected) == pytest.approx(true, abs=3 * np.std(counted) / np.sqrt(200))
    assert np.std(expected) < 0.75 * np.std(counted)


def test_where_every_k_answers_alike_nothing_is_lost() -> None:
    results, correct = unlike(500, np.random.default_rng(1))
    alike = replace(results, labels=np.zeros_like(results.labels), probability=results.probability[:, [1, 1]])
    found = Expectation.learn(alike, correct[:, [1, 1]]).of(alike)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])


def test_of_what_is_counted_and_what_is_expected_the_lower_is_promised() -> None:
    for seed in range(4):
        results, correct = unlike(600, np.random.default_rng(seed))
        estimates = np.random.default_rng(seed + 10).random((600, 1))
        expected = Expectation.learn(results, correct).of(results)
        counted = ThresholdCalibration.measure(estimates, correct, 16)
        both = ThresholdCalibration.measure(estimates, correct, 16, expected)
        assert (both.accuracy <= counted.accuracy).all()
        assert (both.accuracy[:-1] <= ThresholdCalibration.measure(estimates, expected, 16).accuracy[:-1] + 1e-12).all()
        assert both.by_point[-1] == both.accuracy[-1] == counted.by_point[-1]
        assert both.by_point[0] == pytest.approx(min(correct[:, 0].mean(), expected[:, 0].mean()))
