"""A few labels of a base that is good already: they correct what is like them, and leave the rest as it is."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.graphs.generators import CNN_SPACE, RandomGraphs
from slotool.predictors.base import Examples
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.transfer.residual import ResidualPredictor
from slotool.testing.predictors import PredictorConformance, random_networks, synthetic_latency_s

CNNS = [*RandomGraphs("cnn", 8, 0, CNN_SPACE, 10**9, 1)]
MLPS = random_networks(12, seed=3)
BASE = ThreeTermPredictor()
BASE.fit(Examples(random_networks(40, seed=5), synthetic_latency_s(random_networks(40, seed=5))))


class TestResidual(PredictorConformance):
    make = staticmethod(lambda: ResidualPredictor(BASE))


def ratios(factor_of_cnns: float, factor_of_all: float) -> tuple[np.ndarray, np.ndarray]:
    """Prediction ÷ base of CNNs and MLPs without a label, after ten labels."""
    known = [*CNNS[:4], *MLPS[:6]]
    labels_s = BASE.predict(known) * factor_of_all * np.array([factor_of_cnns] * 4 + [1.0] * 6)
    predictor = ResidualPredictor(BASE)
    predictor.fit(Examples(known, labels_s))
    asked = [*CNNS[4:], *MLPS[6:]]
    found = predictor.predict(asked) / BASE.predict(asked)
    return found[: len(CNNS) - 4], found[len(CNNS) - 4 :]


def test_labels_that_agree_with_the_base_leave_it_as_it_is() -> None:
    cnns, mlps = ratios(1.0, 1.0)
    assert np.allclose([*cnns, *mlps], 1.0)


def test_a_label_corrects_the_networks_that_spend_their_cost_alike() -> None:
    cnns, mlps = ratios(1.3, 1.0)
    assert np.all(cnns > 1.2)
    assert np.all(np.abs(mlps - 1) < 0.05)


def test_another_machine_shifts_all() -> None:
    assert np.all(np.abs(np.concatenate(ratios(1.0, 3.0)) / 3 - 1) < 0.02)


def test_without_a_base_there_is_nothing_to_correct() -> None:
    with pytest.raises(InputError, match="no predictor to adapt"):
        ResidualPredictor().fit(Examples(MLPS, BASE.predict(MLPS)))
