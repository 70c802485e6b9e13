"""A few labels where kinds of networks differ: a label corrects the networks that spend their cost alike."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.graphs.generators import CNN_SPACE, RandomGraphs
from slotool.predictors.base import Examples
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.transfer.composition import CompositionPredictor
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


def test_where_the_adapted_base_is_unsure_three_terms_stand_in() -> None:
    """On a device where calls cost all, labels of small networks tell nothing of what FLOPs cost in large ones, only
    that three prices are near the labels."""
    known = random_networks(10, seed=4, kind="cnn")

    def there_s(graphs):
        return np.array([2e-5 * len(graph.operators) + graph.flops / 1e13 for graph in graphs])

    noise = np.random.default_rng(0).lognormal(0, 0.05, len(known))
    predictor = CompositionPredictor(BASE)
    predictor.fit(Examples(known, there_s(known) * noise))
    tensors, document = predictor.state()
    again = CompositionPredictor.from_state(tensors, document)
    assert again.predict(CNNS) == pytest.approx(predictor.predict(CNNS), rel=1e-9)

    # One that was written before weighs both parts alike, as it did.
    assert document.pop("three_term_variance") > 0
    before = CompositionPredictor.from_state(tensors, document)
    errors = [np.mean(np.abs(own.predict(CNNS) / there_s(CNNS) - 1)) for own in (predictor, before)]
    assert errors[0] < 0.75 * errors[1]
