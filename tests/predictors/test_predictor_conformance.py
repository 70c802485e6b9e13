"""Every predictor keeps the contract; then what each is meant to be good at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from slotool.errors import GraphError, InputError
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.base import COLOCATED, Examples
from slotool.predictors.colocated.sharing import SharingPredictor
from slotool.predictors.registry import PREDICTORS, predictor_class
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.dnn import DnnPredictor
from slotool.predictors.solo.graph_network import GraphNetworkPredictor
from slotool.predictors.solo.linear import LinearPredictor
from slotool.predictors.solo.operator_costs import OperatorCostPredictor
from slotool.testing.predictors import (
    ColocatedPredictorConformance,
    PredictorConformance,
    random_networks,
    synthetic_latency_s,
)


class TestLinear(PredictorConformance):
    make = staticmethod(LinearPredictor)


class TestAdditive(PredictorConformance):
    make = staticmethod(AdditivePredictor)


class TestOperatorCosts(PredictorConformance):
    make = staticmethod(OperatorCostPredictor)


@pytest.fixture(scope="class")
def few_epochs() -> Iterator[None]:
    """Train a DNN for as long as the contract needs, not until it is good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotool.predictors.solo.dnn.MAX_EPOCHS", 60)
        yield


@pytest.mark.usefixtures("few_epochs")
class TestDnn(PredictorConformance):
    make = staticmethod(lambda: DnnPredictor([2]))


class TestGraphNetwork(PredictorConformance):
    make = staticmethod(lambda: GraphNetworkPredictor(members=1, epochs=15))


class TestLinearTogether(ColocatedPredictorConformance):
    make = staticmethod(LinearPredictor)


@pytest.mark.usefixtures("few_epochs")
class TestDnnTogether(ColocatedPredictorConformance):
    make = staticmethod(lambda: DnnPredictor([2]))


class TestSharing(ColocatedPredictorConformance):
    make = staticmethod(SharingPredictor)


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_registry_says_what_the_class_says(name: str) -> None:
    fitted_to = PREDICTORS[name][1]
    found = predictor_class(name, colocated=COLOCATED in fitted_to)
    assert (found.name, found.fitted_to) == (name, fitted_to)


GRAPHS = random_networks(300, seed=1)
PARTS = (slice(0, 220), slice(220, 260), slice(260, 300))


def fitted(predictor, latency_s):
    train, dev, _ = PARTS
    predictor.fit(Examples(GRAPHS[train], latency_s[train]), Examples(GRAPHS[dev], latency_s[dev]), seed=0)
    return predictor


def test_linear_recovers_a_latency_linear_in_the_weights() -> None:
    truth = synthetic_latency_s(GRAPHS)
    predicted = fitted(LinearPredictor(), truth).predict(GRAPHS[PARTS[2]])
    # float32 encodings carry 24 bits of a weight count.
    np.testing.assert_allclose(predicted, truth[PARTS[2]], rtol=1e-3)


def test_linear_agrees_with_scikit_learn() -> None:
    noisy = synthetic_latency_s(GRAPHS) * np.random.default_rng(0).lognormal(0, 0.3, len(GRAPHS))
    ours = fitted(LinearPredictor(), noisy).predict(GRAPHS[PARTS[2]])
    x = FlatEncoding.fit(GRAPHS).transform(GRAPHS).astype(np.float64)
    deviation = x[PARTS[0]].std(axis=0)
    x = x[:, deviation > 0] / deviation[deviation > 0]
    reference = LinearRegression(tol=1e-6).fit(x[PARTS[0]], noisy[PARTS[0]]).predict(x[PARTS[2]])
    np.testing.assert_allclose(ours, np.maximum(reference, noisy[PARTS[0]].min()), rtol=1e-6)


def test_linear_is_floored_at_the_shortest_latency_it_was_shown() -> None:
    # A convex label (made up): the line through it goes below zero for small networks.
    convex = 1e-6 + synthetic_latency_s(GRAPHS) ** 2
    predicted = fitted(LinearPredictor(), convex).predict(GRAPHS)
    assert predicted.min() == convex[PARTS[0]].min()


def test_dnn_beats_linear_on_a_nonlinear_made_up_label() -> None:
    weights = np.array([graph.weights for graph in GRAPHS])
    made_up = 1e-6 + 1e-9 * np.where(weights > 20_000, 4 * (weights - 20_000), 100 * np.sqrt(weights))
    test = PARTS[2]
    linear = np.abs(fitted(LinearPredictor(), made_up).predict(GRAPHS[test]) - made_up[test]).mean()
    dnn = np.abs(fitted(DnnPredictor([2]), made_up).predict(GRAPHS[test]) - made_up[test]).mean()
    assert dnn < 0.8 * linear


@pytest.mark.usefixtures("few_epochs")
def test_dnn_keeps_the_depth_of_lowest_dev_error_and_searches_each_as_alone() -> None:
    truth, dev = synthetic_latency_s(GRAPHS), PARTS[1]

    def predicted(depths: list[int]) -> np.ndarray:
        return fitted(DnnPredictor(depths), truth).predict(GRAPHS[dev])

    alone = [predicted([depth]) for depth in (1, 3)]
    best = min(alone, key=lambda answers: np.abs(answers - truth[dev]).mean())
    assert np.array_equal(predicted([1, 3]), best)


def test_a_graph_larger_than_any_shown_is_a_sentence() -> None:
    small = [graph for graph in GRAPHS if len(graph.operators) < 6]
    predictor = LinearPredictor()
    train, dev = (Examples(part, synthetic_latency_s(part)) for part in (small[20:], small[:20]))
    predictor.fit(train, dev, seed=0)
    large = next(graph for graph in GRAPHS if len(graph.operators) == 6)
    with pytest.raises(GraphError, match=f"{large.id} has 6 operators, but the encoding holds 5"):
        predictor.predict([large])


def test_weights_in_another_scale_are_refused() -> None:
    tensors, document = fitted(LinearPredictor(), synthetic_latency_s(GRAPHS)).state()
    LinearPredictor.from_state(tensors, {**document, "weight_scale": "counts"})
    with pytest.raises(InputError, match="another scale"):
        LinearPredictor.from_state(tensors, {**document, "weight_scale": "sqrt"})


def test_depths_that_are_none_are_refused() -> None:
    for depths in ([], [0], [3, -1]):
        with pytest.raises(InputError, match="at least"):
            DnnPredictor(depths)
