"""Conformance of latency predictors.

Subclass ``PredictorConformance``, or ``ColocatedPredictorConformance`` for co-located latencies, and define ``make``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect
from slotool.predictors.base import NO_EXAMPLES, Examples, Predictor
from slotool.predictors.colocations import Colocation


def random_networks(n: int, seed: int, kind: str = "mlp") -> list[OperatorGraph]:
    """Return ``n`` different small MLPs, or CNNs for kind ``cnn``, of 3 to 6 operators."""
    rng = np.random.default_rng(seed)
    unique: dict[str, OperatorGraph] = {}
    while len(unique) < n:
        builder = GraphBuilder(kind)
        shape = [8, 8, 8] if kind == "cnn" else [int(2 ** rng.uniform(0, 8))]
        last = builder.add("InputLayer", shape=shape)
        for _ in range(int(rng.integers(2, 6))):
            size = int(2 ** rng.uniform(0, 8))
            if kind == "cnn":
                last = builder.add("Conv2D", last, filters=size, kernel=3, padding="same")
            else:
                last = builder.add("Dense", last, units=size)
        graph = builder.graph()
        unique[graph.id] = graph
    return list(unique.values())


def synthetic_latency_s(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Return a synthetic latency, 2 µs per operator and 1 ns per weight: float64 seconds [n]."""
    return np.array([2e-6 * len(graph.operators) + 1e-9 * graph.weights for graph in graphs])


def strange_network() -> OperatorGraph:
    """Return a graph of three operators, one of a type that no training set has."""
    builder = GraphBuilder("mlp")
    last = builder.add("Dense", builder.add("InputLayer", shape=[16]), units=16)
    builder.add("NeverSeen", last, stated=Effect((16,), weights=10, flops=10))
    return builder.graph()


def synthetic_colocations(n: int, seed: int = 0) -> list[Colocation]:
    """Return ``n`` different co-locations, mostly pairs, else trios, of 16 small networks.

    Two threads each on two cores; solo latencies are made up.
    """
    rng = np.random.default_rng(seed)
    graphs = random_networks(8, seed) + random_networks(8, seed, kind="cnn")
    solo_s = dict(zip([graph.id for graph in graphs], synthetic_latency_s(graphs).tolist(), strict=True))
    unique: dict[str, Colocation] = {}
    while len(unique) < n:
        chosen = [graphs[i] for i in rng.choice(len(graphs), 2 if rng.random() < 0.75 else 3, replace=False)]
        colocation = Colocation.of(chosen[0], chosen[1:], solo_s, oversubscription=float(len(chosen)))
        unique[colocation.id] = colocation
    return list(unique.values())


def synthetic_colocated_latency_s(colocations: Sequence[Colocation]) -> np.ndarray:
    """Return a synthetic latency, float64 seconds [n]: shares are fair, less so for few FLOPs per weight."""
    missed = [0.7 + 0.3 * min(1.0, c.subject.flops / max(c.subject.weights, 1) / 130) for c in colocations]
    return np.array([c.solo_s[0] * c.oversubscription * part for c, part in zip(colocations, missed, strict=True)])


class Conformance:
    """Tests of any ``Predictor``. ``make`` returns a new one that fits within a second or two.

    The 160 ``graphs`` (networks or co-locations) have synthetic labels ``latency_s``.
    """

    make: Callable[[], Predictor[Any]]
    _fitted: ClassVar[dict[type, Predictor[Any]]] = {}
    graphs: ClassVar[list[Any]]
    latency_s: ClassVar[np.ndarray]

    def fit(self, **changes: object) -> Predictor[Any]:
        """Return a predictor fitted to the first 100 graphs with the next 30 as dev set."""
        predictor = self.make()
        train = Examples(self.graphs[:100], self.latency_s[:100])
        dev = Examples(self.graphs[100:130], self.latency_s[100:130])
        predictor.fit(train, dev, **{"seed": 0, **changes})  # type: ignore[arg-type]
        return predictor

    def fitted(self) -> Predictor[Any]:
        """Return one fitted predictor, shared by the tests that only read it."""
        if type(self) not in self._fitted:
            self._fitted[type(self)] = self.fit()
        return self._fitted[type(self)]

    def test_answers_are_positive_seconds_one_per_graph(self) -> None:
        predicted = self.fitted().predict(self.graphs)
        assert predicted.dtype == np.float64
        assert predicted.shape == (len(self.graphs),)
        assert np.all(np.isfinite(predicted))
        assert np.all(predicted > 0)
        assert self.fitted().predict([]).shape == (0,)

    def test_it_learns_more_than_the_mean(self) -> None:
        test, truth = self.graphs[130:], self.latency_s[130:]
        error = np.abs(self.fitted().predict(test) - truth).mean()
        assert error < 0.5 * np.abs(truth - self.latency_s[:100].mean()).mean()

    def test_a_graph_has_the_same_prediction_alone_and_among_others(self) -> None:
        together = self.fitted().predict(self.graphs)
        np.testing.assert_allclose(self.fitted().predict(self.graphs[::-1])[::-1], together, rtol=1e-4)
        np.testing.assert_allclose(self.fitted().predict(self.graphs[7:8]), together[7:8], rtol=1e-4)

    def test_same_seed_same_predictions(self) -> None:
        np.testing.assert_array_equal(self.fit().predict(self.graphs), self.fitted().predict(self.graphs))

    def test_state_is_tensors_and_json_and_predicts_the_very_same(self) -> None:
        from safetensors.numpy import load, save

        tensors, document = self.fitted().state()
        again = type(self.fitted()).from_state(
            load(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})),
            json.loads(json.dumps(document, allow_nan=False)),
        )
        np.testing.assert_array_equal(again.predict(self.graphs), self.fitted().predict(self.graphs))
        assert again.state()[1] == document

    def test_progress_is_reported_as_often_as_announced(self) -> None:
        reported: list[str] = []
        predictor = self.fit(progress=reported.append)
        assert len(reported) == predictor.fit_steps
        assert all(reported)

    def test_labels_that_are_no_latency_are_refused(self) -> None:
        dev = Examples(self.graphs[100:], self.latency_s[100:])
        for wrong in (np.nan, 0.0, -1.0, np.inf):
            labels = self.latency_s[:100].copy()
            labels[3] = wrong
            _refuses(self.make(), Examples(self.graphs[:100], labels), dev)
        _refuses(self.make(), Examples(self.graphs[:100], self.latency_s[:99]), dev)
        _refuses(self.make(), NO_EXAMPLES, dev)


class PredictorConformance(Conformance):
    """``Conformance`` of a predictor of solo latencies."""

    graphs = random_networks(160, seed=0)
    latency_s = synthetic_latency_s(graphs)

    def test_an_operator_type_never_seen_is_answered(self) -> None:
        assert self.fitted().predict([strange_network()])[0] > 0


class ColocatedPredictorConformance(Conformance):
    """``Conformance`` of a predictor of co-located latencies."""

    graphs = synthetic_colocations(160)
    latency_s = synthetic_colocated_latency_s(graphs)

    def test_the_order_of_the_others_plays_no_part(self) -> None:
        trio = next(colocation for colocation in self.graphs if len(colocation) == 3)
        solo_s = dict(zip([graph.id for graph in trio.members], trio.solo_s, strict=True))
        turned = Colocation.of(trio.subject, trio.co_runners[::-1], solo_s, trio.oversubscription)
        assert self.fitted().predict([turned])[0] == self.fitted().predict([trio])[0]

    def test_a_slower_solo_latency_makes_a_slower_co_located_one(self) -> None:
        pair = next(colocation for colocation in self.graphs if len(colocation) == 2)
        slower = replace(pair, solo_s=(3 * pair.solo_s[0], pair.solo_s[1]))
        assert self.fitted().predict([slower])[0] > self.fitted().predict([pair])[0]

    def test_an_operator_type_never_seen_is_answered(self) -> None:
        colocation = Colocation((strange_network(), self.graphs[0].subject), (1e-5, self.graphs[0].solo_s[0]), 2.0)
        assert self.fitted().predict([colocation])[0] > 0


def _refuses(predictor: Predictor[Any], train: Examples[Any], dev: Examples[Any]) -> None:
    try:
        predictor.fit(train, dev, seed=0)
    except InputError:
        return
    raise AssertionError("labels that are no latency were taken")
