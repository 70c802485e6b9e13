"""What the graph network is meant to be good at, on made-up latencies whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect
from slotool.predictors.base import Examples
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.graph_network import GraphNetworkPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.testing.predictors import random_networks, synthetic_latency_s

MLPS, CNNS = random_networks(240, seed=2), random_networks(60, seed=2, kind="cnn")
CACHE_BYTES = 10_000


def cached_latency_s(graphs: list[OperatorGraph]) -> np.ndarray:
    """Weights of a network beyond a cache come five times slower, all of them: no sum over operators can say that."""
    slowness = np.array([5.0 if 4 * graph.weights > CACHE_BYTES else 1.0 for graph in graphs])
    return 2e-6 + 1e-9 * slowness * np.array([graph.weights for graph in graphs])


def fitted(predictor, graphs, latency_s, *, held: int = 40, seed: int = 0):
    """Fitted to all but the first ``held``, whose labels are the dev set."""
    predictor.fit(Examples(graphs[held:], latency_s[held:]), Examples(graphs[:held], latency_s[:held]), seed=seed)
    return predictor


@pytest.fixture(scope="module")
def linear_in_weights() -> GraphNetworkPredictor:
    graphs = MLPS + CNNS
    return fitted(GraphNetworkPredictor(members=1, epochs=40), graphs, synthetic_latency_s(graphs))


def mape(predicted: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted / truth - 1)))


def dense_chain(depth: int, op: str = "Dense", prefix: str = "") -> OperatorGraph:
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", name=f"{prefix}in", shape=[32])
    for i in range(depth):
        stated = None if op == "Dense" else Effect((32,), weights=32 * 33, flops=2 * 32 * 32)
        attributes = {"units": 32} if op == "Dense" else {}
        last = builder.add(op, last, name=f"{prefix}{depth - i}", stated=stated, **attributes)
    return builder.graph()


def test_it_learns_what_no_sum_over_operators_can_say() -> None:
    train, test = MLPS[:200], MLPS[200:]
    truth = cached_latency_s(train)
    ours = fitted(GraphNetworkPredictor(members=1, epochs=60), train, truth).predict(test)
    rival = fitted(AdditivePredictor(), train, truth).predict(test)
    # The median, for nobody can tell on which side of the cache's edge a network just beside it lies.
    ours_error, rival_error = (np.median(np.abs(each / cached_latency_s(test) - 1)) for each in (ours, rival))
    assert ours_error < 0.5 * rival_error


def test_deeper_networks_than_any_shown_cost_in_proportion(linear_in_weights) -> None:
    deeper = [dense_chain(depth) for depth in (10, 20, 40)]
    assert mape(linear_in_weights.predict(deeper), synthetic_latency_s(deeper)) < 0.25


def test_names_of_operators_play_no_part(linear_in_weights) -> None:
    graphs = [dense_chain(4), dense_chain(4, prefix="z")]
    first, second = linear_in_weights.predict(graphs)
    assert first == second


def test_a_type_never_seen_pays_for_the_work_it_does(linear_in_weights) -> None:
    known, unknown = dense_chain(5), dense_chain(5, op="NeverSeen")
    first, second = linear_in_weights.predict([known, unknown])
    assert first / 4 < second < first * 4
    more = linear_in_weights.predict([dense_chain(10, op="NeverSeen")])[0]
    assert more > 1.5 * second


def test_a_recurrent_layer_never_shown_pays_for_each_of_its_steps() -> None:
    def layer(op: str, steps: int) -> OperatorGraph:
        builder = GraphBuilder("recurrent")
        builder.add(op, builder.add("InputLayer", shape=[steps, 32]), units=32)
        return builder.graph()

    shipped = TrainedPredictor.load(str(Path(__file__).parents[2] / "models" / "predictor-torch")).predictor
    short, long, fused = shipped.predict([layer("GRU", 10), layer("GRU", 100), layer("LSTM", 100)])
    assert long > 5 * short
    assert short < fused < long


def test_seed_decides_the_numbers() -> None:
    truth = synthetic_latency_s(MLPS)
    same, again, other = (
        fitted(GraphNetworkPredictor(members=1, epochs=3), MLPS, truth, seed=seed).predict(MLPS) for seed in (5, 5, 6)
    )
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


def test_members_are_averaged_in_log() -> None:
    truth = synthetic_latency_s(MLPS)
    alone = [
        fitted(GraphNetworkPredictor(members=1, epochs=3), MLPS, truth, seed=seed).predict(MLPS) for seed in (0, 1)
    ]
    both = fitted(GraphNetworkPredictor(members=2, epochs=3), MLPS, truth, seed=0)
    np.testing.assert_allclose(both.predict(MLPS), np.sqrt(alone[0] * alone[1]), rtol=1e-5)


def test_state_of_other_measures_and_options_below_one_are_refused(linear_in_weights) -> None:
    tensors, document = linear_in_weights.state()
    with pytest.raises(InputError, match="other measures"):
        GraphNetworkPredictor.from_state(tensors, json.loads(json.dumps(document)) | {"context": []})
    for options in ({"members": 0}, {"epochs": 0}):
        with pytest.raises(InputError, match="at least 1"):
            GraphNetworkPredictor(**options)


def test_weights_of_another_shape_are_refused(linear_in_weights: GraphNetworkPredictor) -> None:
    tensors, document = linear_in_weights.state()
    name = "networks.0.input_proj.weight"
    with pytest.raises(InputError, match="those of another version of slotool"):
        GraphNetworkPredictor.from_state({**tensors, name: tensors[name][:, :-1]}, document)
