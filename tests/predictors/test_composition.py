"""A few labels where kinds of networks differ: a label corrects the networks that spend their cost alike."""

from __future__ import annotations

import numpy as np

from slotool.graphs.generators import CNN_SPACE, RandomGraphs
from slotool.predictors.base import Examples
from slotool.predictors.composition import CompositionPredictor
from slotool.predictors.three_term import ThreeTermPredictor
from slotool.testing.predictors import PredictorConformance, random_networks, synthetic_latency_s

CNNS = [*RandomGraphs("cnn", 8, 0, CNN_SPACE, 10**9, 1)]
BASE = ThreeTermPredictor()
BASE.fit(Examples(random_networks(40, seed=5), synthetic_latency_s(random_networks(40, seed=5))))


class TestComposition(PredictorConformance):
    make = staticmethod(lambda: CompositionPredictor(BASE))


def test_a_label_of_a_kind_corrects_the_others_of_that_kind_alone() -> None:
    mlps = random_networks(12, seed=3)
    graphs, truth = [*CNNS, *mlps], BASE.predict([*CNNS, *mlps])
    truth[: len(CNNS)] *= 1.5
    known = [0, 1, 2, 3, *range(8, 14)]
    asked = [i for i in range(len(graphs)) if i not in known]
    errors = {}
    for predictor in (ThreeTermPredictor(), CompositionPredictor(BASE)):
        predictor.fit(Examples([graphs[i] for i in known], truth[known]))
        errors[predictor.name] = np.mean(np.abs(predictor.predict([graphs[i] for i in asked]) / truth[asked] - 1))
    assert errors["composition"] < 0.6 * errors["three-term"]
