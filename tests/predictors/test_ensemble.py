"""Several predictors answering as one: what they share is computed once for a call, and kept no longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slotool.artifacts.shipped import shipped_artifact
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_arrays import Batch
from slotool.predictors.base import Examples, Predictor
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.graph_network import GraphNetworkPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.contenders import ENSEMBLE, fitted, hold_out
from slotool.predictors.transfer.ensemble import EnsemblePredictor, blended
from slotool.predictors.transfer.from_base import FromBase
from slotool.testing.predictors import random_networks, synthetic_latency_s

GRAPHS = random_networks(60, seed=3)


def counted(kind: type[Predictor[Any]], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many networks each call of ``predict`` of such predictors asks about, from now on."""
    asked: list[int] = []
    plain = kind.predict

    def predict(self: Predictor[Any], graphs: Sequence[OperatorGraph]) -> np.ndarray:
        asked.append(len(graphs))
        return plain(self, graphs)

    monkeypatch.setattr(kind, "predict", predict)
    return asked


def made() -> EnsemblePredictor:
    """Of a base and twelve labels that are three times what it says."""
    base = AdditivePredictor()
    base.fit(Examples(GRAPHS, synthetic_latency_s(GRAPHS)))
    labels = Examples(GRAPHS[:12], 3 * base.predict(GRAPHS[:12]))
    found = fitted(ENSEMBLE, base, labels, hold_out(base, labels))
    assert isinstance(found, EnsemblePredictor)
    return found


def alone(member: Predictor[OperatorGraph]) -> Predictor[OperatorGraph]:
    """The same, sharing nothing with others."""
    return type(member).from_state(*member.state())


def test_a_shipped_ensemble_asks_its_base_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(shipped_artifact("predictor"))
    asked = counted(GraphNetworkPredictor, monkeypatch)
    trained.predict(GRAPHS)
    assert asked == [len(GRAPHS)]


def test_members_that_share_answer_as_alone() -> None:
    ensemble = made()
    logs = np.log([alone(member).predict(GRAPHS) for member in ensemble.members])
    expected = np.exp(blended(logs, ensemble.weights, ensemble.median_share))
    restored = EnsemblePredictor.from_state(*ensemble.state())
    for each in (ensemble, restored):
        assert each.predict(GRAPHS) == pytest.approx(expected, rel=1e-12)
        bases = [member.source for member in each.members if isinstance(member, FromBase)]
        # All but the labels' own regression, corrected by the labels.
        assert len({id(base) for base in bases if isinstance(base, AdditivePredictor)}) == 1


def test_bases_that_learnt_other_things_stay_apart() -> None:
    first, second = AdditivePredictor(), AdditivePredictor()
    latency_s = synthetic_latency_s(GRAPHS)
    first.fit(Examples(GRAPHS, latency_s))
    second.fit(Examples(GRAPHS, 2 * latency_s))
    assert len({id(member) for member in EnsemblePredictor([first, second], [0.5, 0.5]).members}) == 2
    assert len({id(member) for member in EnsemblePredictor([first, alone(first)], [0.5, 0.5]).members}) == 1


def test_nothing_holds_on_to_networks_that_were_asked_about() -> None:
    ensemble = made()
    graphs = [replace(graph) for graph in GRAPHS]
    gone = [weakref.ref(graph) for graph in graphs]
    ensemble.predict(graphs)
    ensemble.predict(Batch(graphs))
    del graphs
    gc.collect()
    assert not any(graph() for graph in gone)
