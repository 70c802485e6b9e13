"""The loss that an SLO-NN promises is kept by further examples as often as is stated."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from slotool.commands.elastic.tables_built import guessing
from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.slo_nn import build
from slotool.elastic.slo_nn.build import Learnt, TableSettings, TableSubject, learn
from slotool.elastic.slo_nn.calibration import CONFIDENCE, DiscordantPairs, ThresholdCalibration, min_share
from slotool.elastic.slo_nn.confidence import CalibrationExamples
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.promises import Promise
from slotool.errors import InputError
from slotool.tables.paired import examples_needed, further_losses
from tests.elastic.activator_subjects import digits, digits_model, mlp_of, trained

RESPLITS = 60


def exceeded_at_most(share: float, of: int) -> float:
    """What a share of no more than ``share`` shows at most, of so many tries, in 999 of 1,000 cases."""
    from scipy.stats import binom

    return float(binom.ppf(0.999, of, share)) / of


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.99])
def test_a_bound_is_exceeded_no_more_often_than_stated(confidence: float) -> None:
    rng, n, tries = np.random.default_rng(0), 2_000, 20_000
    for lost, gained in ((0.001, 0.0), (0.002, 0.002), (0.005, 0.002), (0.03, 0.02), (0.2, 0.1)):
        (b, more_b), (c, more_c) = (rng.binomial(n, rate, (2, tries)) for rate in (lost, gained))
        bounds = further_losses(b, c, confidence)
        assert (more_b - more_c > bounds).mean() <= exceeded_at_most(1 - confidence, tries)
        assert (bounds >= b - c).all()


def test_a_bound_grows_with_what_was_lost_and_with_confidence_and_shrinks_with_examples() -> None:
    b, c = (grid.ravel() for grid in np.meshgrid(np.arange(40), np.arange(40)))
    bounds = further_losses(b, c, 0.9)
    assert (further_losses(b + 1, c, 0.9) >= bounds + 1).all()
    assert (further_losses(b, c, 0.99) >= bounds).all()
    assert (further_losses(10 * b, 10 * c, 0.9) <= 10 * bounds).all()


def test_how_many_examples_are_needed_is_where_the_bound_is_met() -> None:
    for lost, gained, n, loss in ((0, 0, 360, 0.002), (10, 8, 5_000, 0.002), (5, 0, 360, 0.02)):
        needed = examples_needed(lost, gained, n, loss, 0.9)
        assert needed is not None
        for factor, kept in ((0.7, False), (1.4, True)):
            b, c = (np.array([round(factor * needed * count / n)]) for count in (lost, gained))
            assert bool(further_losses(b, c, 0.9)[0] <= loss * factor * needed) == kept
    assert examples_needed(10, 0, 1_000, 0.01, 0.9) is None


def test_a_lucky_small_k_behind_one_that_fails_is_not_taken() -> None:
    evidence = DiscordantPairs(5_000, np.array([2, 60, 3, 0]), np.array([2, 0, 1, 0]))
    bounds = evidence.bounds()
    assert bounds[0] == bounds[1] > bounds[2] > bounds[3] == 0
    assert DiscordantPairs(5_000, evidence.lost[[0, 2, 3]], evidence.gained[[0, 2, 3]]).bounds()[0] < bounds[0]


@lru_cache(maxsize=1)
def halves() -> tuple[Dataset, SloNN, Learnt]:
    """Digits with validation and test as halves of one pool of 720, and lists of a coarse grid."""
    data = digits()
    pool = Split(*(np.concatenate([getattr(data.validation, of), getattr(data.test, of)]) for of in ("x", "y")))
    pooled = replace(data, validation=pool, test=pool)
    subject = TableSubject(mlp_of(trained()), data)
    return (
        pooled,
        digits_model(),
        learn(subject, "clusters", TableSettings((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))),
    )


@lru_cache(maxsize=1)
def examples_of_training() -> CalibrationExamples:
    """The same for all resplits, which divide other examples."""
    pooled, _, learnt = halves()
    return build.calibration_examples(
        TableSubject(mlp_of(trained()), pooled), learnt.activators, learnt.shares, "train"
    )


@lru_cache(maxsize=RESPLITS)
def resplit(seed: int) -> tuple[SloNN, np.ndarray, np.ndarray]:
    """A model calibrated on one half; of the other bool [n, points], which answers are right, and the estimates."""
    pooled, _, learnt = halves()
    n, trained_examples, plain = len(pooled.validation), examples_of_training(), build.calibration_examples

    def calibration_examples(
        subject: TableSubject, activators: Any, shares: Any, split: str, *others: Any
    ) -> CalibrationExamples:
        return trained_examples if split == "train" else plain(subject, activators, shares, split, *others)

    order = np.random.default_rng(seed).permutation(n)
    mine, others = (pooled.validation.take(half) for half in (order[: n // 2], order[n // 2 :]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "calibration_examples", calibration_examples)
        subject = TableSubject(mlp_of(trained()), replace(pooled, validation=mine))
        model = build.with_confidence("m", subject, learnt, 0)
    answers = np.stack([model.forward(others.x, point).argmax(axis=1) for point in model.points], axis=1)
    return model, build.right(answers, others.y), model.estimates(others.x)


@pytest.mark.parametrize("loss", [pytest.param(0.02, marks=pytest.mark.long), 0.04])
def test_an_allowed_loss_is_exceeded_by_no_more_than_a_tenth_of_resplits(loss: float) -> None:
    """k is chosen on the one half, fixed and per input, and scored on the other."""
    exceeded, k = {"fixed": 0, "per input": 0}, []
    for seed in range(RESPLITS):
        model, right, estimates = resplit(seed)
        correct = right.astype(float)
        threshold = model.threshold(model.target(loss))
        assert threshold is not None
        ways = {
            "fixed": np.full(len(correct), model.points.index(model.fixed_for(loss))),
            "per input": min_share(estimates, threshold),
        }
        for way, chosen in ways.items():
            lost = correct[:, -1].mean() - correct[np.arange(len(correct)), chosen].mean()
            exceeded[way] += bool(lost > loss + 1e-12)
            k.append(np.mean(chosen < len(model.shares)))
    for way, times in exceeded.items():
        assert times / RESPLITS <= exceeded_at_most(1 - CONFIDENCE, RESPLITS), way
    assert np.mean(k) > 0.5, "not merely the full network"


def test_more_confidence_takes_more_nodes_and_targets_lead_to_the_levels_promised() -> None:
    model = digits_model()
    for loss in (0.01, 0.03, 0.1, 0.3, 1.0):
        fixed = [model.points.index(model.fixed_for(loss, confidence)) for confidence in (0.5, 0.9, 0.999)]
        assert fixed == sorted(fixed)
        for confidence in (0.5, 0.9, 0.999):
            level = int((model.calibration.bounds(confidence) <= loss).argmax())
            threshold = model.threshold(model.target(loss, confidence))
            assert threshold == model.calibration.thresholds[level]
    for wrong in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(InputError, match="confidence"):
            model.target(0.02, wrong)


def test_too_few_examples_promise_all_nodes_and_say_how_many_are_needed() -> None:
    model = digits_model()
    assert model.fixed_for(0.002) == model.full
    assert model.threshold(model.target(0.002)) == np.inf
    evidence = model.calibration.evidence_by_point
    assert evidence is not None
    needed = evidence.examples_needed(0.002)
    assert needed is None or needed > len(digits().validation)


def test_a_small_k_that_is_better_by_chance_does_not_make_few_examples_enough() -> None:
    """Of an untrained network small k gain as often as they lose; the one just below all nodes is tested first."""
    for lost, gained in (([3, 4, 2, 0], [20, 9, 1, 0]), ([30, 4, 0], [70, 6, 0])):
        evidence = DiscordantPairs(359, np.array(lost), np.array(gained))
        assert (evidence.bounds()[:-1] > 0.002).all()
        needed = evidence.examples_needed(0.002)
        assert needed is None or needed > 359


def test_where_no_number_of_examples_would_do_for_one_way_of_choosing_k_it_is_said_of_that_way() -> None:
    model = copy(digits_model())
    few = DiscordantPairs(359, np.zeros(2, dtype=int), np.zeros(2, dtype=int))
    # A fixed k loses half of all answers; k chosen per input has lost none yet.
    much = replace(few, lost=np.array([180, 0]))
    for fixed, sentence in (
        (much, "for a fixed k no number would do, for k chosen per input about"),
        (few, "points by 359 validation examples; about "),
    ):
        ways = {"evidence": few, "evidence_by_point": fixed}
        evidence = {name: DiscordantPairs(359, *_widened(own, name)) for name, own in ways.items()}
        model.calibration = replace(digits_model().calibration, **evidence)
        assert sentence in Promise.of(model, 0.002).sentences[0]


def _widened(pairs: DiscordantPairs, name: str) -> list[np.ndarray]:
    """Lost and gained of as many ways as the model has, its last two those given."""
    ways = len(getattr(digits_model().calibration, name).lost)
    return [np.concatenate([np.full(ways - 2, own[0]), own]) for own in (pairs.lost, pairs.gained)]


def test_evidence_is_stored_and_tables_without_it_promise_no_k_but_all_nodes() -> None:
    found = digits_model().calibration
    again = ThresholdCalibration.from_tensors(found.tensors())
    np.testing.assert_array_equal(again.bounds(), found.bounds())
    np.testing.assert_array_equal(again.bounds_by_point(0.99), found.bounds_by_point(0.99))
    old = ThresholdCalibration.from_tensors(
        {name: found.tensors()[name] for name in ("thresholds", "accuracy", "by_point")}
    )
    assert (old.bounds()[:-1] == 1).all()
    assert old.bounds()[-1] == 0
    np.testing.assert_array_equal(old.accuracy, found.accuracy)
    for name, wrong in (("evidence", -1), ("evidence_by_point", 10_000)):
        bad = {**found.tensors(), name: np.full_like(found.tensors()[name], wrong)}
        with pytest.raises(ValueError, match="cannot be"):
            ThresholdCalibration.from_tensors(bad)


def test_a_network_that_only_guesses_is_named() -> None:
    for accuracy, warned in ((0.05, True), (0.9, False)):
        warnings = guessing({"points": [{"accuracy": accuracy}], "data": "digits"}, classes=10)
        assert bool(warnings) == warned
        assert all("digits" in warning for warning in warnings)
