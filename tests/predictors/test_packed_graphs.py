"""Packed graphs, and what training computes faster, against the plain way."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.encodings import OperatorArrays
from slotool.predictors.base import Examples
from slotool.predictors.features.packed_graphs import Packed, Picker
from slotool.predictors.solo import graph_network
from slotool.predictors.solo.graph_network import GraphNetwork, GraphNetworkPredictor, GraphScaling
from slotool.testing.predictors import random_networks, synthetic_latency_s


def residual_network(blocks: int) -> OperatorGraph:
    """Of equal residual blocks, the first and the last beside other neighbours than those between."""
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=[8, 16, 16])
    for _ in range(blocks):
        first = builder.add("Conv2D", last, filters=8, kernel=3, padding="same")
        second = builder.add("Conv2D", first, filters=8, kernel=3, padding="same")
        last = builder.add("Add", [last, second])
    builder.add("Dense", builder.add("GlobalAveragePooling2D", last), units=10)
    return builder.graph()


GRAPHS = [
    *random_networks(6, seed=1),
    residual_network(12),
    *random_networks(6, seed=1, kind="cnn"),
    residual_network(3),
]
ARRAYS = OperatorArrays.of(GRAPHS)
SCALING = GraphScaling.fit(GRAPHS, synthetic_latency_s(GRAPHS))


def network() -> GraphNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GraphNetwork(SCALING.width)


def learnt(packed: Packed) -> list[torch.Tensor]:
    """What a network says of these graphs, and its gradients."""
    untrained = network()
    answer = untrained(packed)
    answer.square().sum().backward()
    return [answer.detach(), *(weight.grad for weight in untrained.parameters())]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


def test_an_operator_gathers_itself_and_the_means_of_its_inputs_and_users() -> None:
    packed = SCALING.pack(ARRAYS)
    state = torch.randn(len(packed.known), 5, dtype=torch.float32, requires_grad=True)
    source, target = ARRAYS.edges
    expected = []
    for i in range(len(state)):
        neighbours = [source[target == i], target[source == i]]
        means = [state[torch.from_numpy(own)].mean(dim=0) if len(own) else torch.zeros(5) for own in neighbours]
        expected.append(torch.cat([state[i], *means]))
    weights = torch.randn(len(state), 15)
    wanted = torch.autograd.grad((torch.stack(expected) * weights).sum(), state)[0]
    gathered = packed.neighbourhoods(state)
    torch.testing.assert_close(gathered, torch.stack(expected))
    torch.testing.assert_close(torch.autograd.grad((gathered * weights).sum(), state)[0], wanted)


def test_operators_alike_are_computed_once_and_nothing_else_changes() -> None:
    plain, merged = SCALING.pack(ARRAYS), SCALING.pack(ARRAYS, merge=True)
    of_twelve = [int((packed.graph == 6).sum()) for packed in (plain, merged)]
    # Of twelve equal blocks the first two and the last two differ from those between by what is two steps away.
    assert of_twelve[0] == 39
    assert of_twelve[1] < 20
    assert_close(learnt(merged), learnt(plain))


def test_picked_graphs_are_those_packed_alone() -> None:
    for merge in (False, True):
        pick, rows = Picker(SCALING.pack(ARRAYS, merge=merge)), [6, 0, 13, 7]
        alone = SCALING.pack(OperatorArrays.of([GRAPHS[row] for row in rows]), merge=merge)
        assert_close(learnt(pick(torch.tensor(rows))), learnt(alone), 1e-5)


def test_the_number_of_threads_changes_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Examples(GRAPHS, synthetic_latency_s(GRAPHS))
    predicted, before = [], torch.get_num_threads()
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        predictor = GraphNetworkPredictor(members=3, epochs=3)
        predictor.fit(examples, examples, seed=0)
        predicted.append(predictor.predict(GRAPHS))
    monkeypatch.undo()
    torch.set_num_threads(before)
    np.testing.assert_array_equal(*predicted)


def test_an_interrupted_training_ends_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_network, "MAX_STEPS", 10**9)
    monkeypatch.setattr(graph_network, "PATIENCE_TO_STOP", 10**9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    train, started = graph_network._train, threading.Event()

    def one_fails(network: GraphNetwork, fitting: object, choosing: object, seed: int, *rest: object) -> float:
        if seed == 0:
            started.wait()
            raise KeyboardInterrupt
        started.set()
        return train(network, fitting, choosing, seed, *rest)

    monkeypatch.setattr(graph_network, "_train", one_fails)
    examples = Examples(GRAPHS, synthetic_latency_s(GRAPHS))
    with pytest.raises(KeyboardInterrupt):
        GraphNetworkPredictor(members=2, epochs=10**8).fit(examples, examples, seed=0)
