"""Conformance of latency predictors: subclass ``PredictorConformance`` with ``make`` and every test applies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect
from slotool.predictors.base import Predictor
from slotool.predictors.registry import PREDICTORS


def random_networks(n: int, seed: int, kind: str = "mlp") -> list[OperatorGraph]:
    """``n`` different small MLPs, or CNNs for kind ``cnn``, of 3 to 6 operators."""
    rng = np.random.default_rng(seed)
    found: dict[str, OperatorGraph] = {}
    while len(found) < n:
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
        found[graph.id] = graph
    return list(found.values())


def synthetic_latency_s(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """A made-up latency that is linear in the weights: 2 µs per operator and 1 ns per weight. float64 seconds [n]."""
    return np.array([2e-6 * len(graph.operators) + 1e-9 * graph.weights for graph in graphs])


def strange_network() -> OperatorGraph:
    """Three operators, one of a type that no training set has."""
    builder = GraphBuilder("mlp")
    last = builder.add("Dense", builder.add("InputLayer", shape=[16]), units=16)
    builder.add("NeverSeen", last, stated=Effect((16,), weights=10, flops=10))
    return builder.graph()


class PredictorConformance:
    """What any ``Predictor`` must do. ``make`` returns a new one, small enough to fit in a second or two."""

    make: Callable[[], Predictor]
    _fitted: ClassVar[dict[type, Predictor]] = {}

    graphs: ClassVar[list[OperatorGraph]] = random_networks(160, seed=0)
    latency_s: ClassVar[np.ndarray] = synthetic_latency_s(graphs)

    def fit(self, **changes: object) -> Predictor:
        """A predictor fitted to the first 100 graphs with the next 30 as dev set."""
        predictor = self.make()
        sets = (self.graphs[:100], self.latency_s[:100], self.graphs[100:130], self.latency_s[100:130])
        predictor.fit(*sets, **{"seed": 0, **changes})  # type: ignore[arg-type]
        return predictor

    def fitted(self) -> Predictor:
        """One fitted predictor, shared by the tests that only ask it."""
        if type(self) not in self._fitted:
            self._fitted[type(self)] = self.fit()
        return self._fitted[type(self)]

    def test_it_is_registered_under_its_name(self) -> None:
        assert PREDICTORS[self.make().name] is type(self.make())

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

    def test_a_graph_is_answered_alike_alone_and_in_any_company(self) -> None:
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

    def test_progress_is_told_as_often_as_announced(self) -> None:
        told: list[str] = []
        predictor = self.fit(progress=told.append)
        assert len(told) == predictor.fit_steps
        assert all(told)

    def test_an_operator_type_never_seen_is_answered(self) -> None:
        assert self.fitted().predict([strange_network()])[0] > 0

    def test_labels_that_are_no_latency_are_refused(self) -> None:
        for wrong in (np.nan, 0.0, -1.0, np.inf):
            labels = self.latency_s[:100].copy()
            labels[3] = wrong
            _refuses(self.make(), self.graphs[:100], labels, self.graphs[100:], self.latency_s[100:])
        _refuses(self.make(), self.graphs[:100], self.latency_s[:99], self.graphs[100:], self.latency_s[100:])
        _refuses(self.make(), [], np.empty(0), self.graphs[100:], self.latency_s[100:])


def _refuses(predictor: Predictor, *sets: object) -> None:
    try:
        predictor.fit(*sets, seed=0)  # type: ignore[arg-type]
    except InputError:
        return
    raise AssertionError("labels that are no latency were taken")
