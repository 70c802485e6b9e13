"""What another backend takes is known before any label of it: prices by type, of networks measured in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.backend_prices import fitted, pairs
from benchmarks.calibrate_shipped import DATASETS, MODELS, applications
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.labels import Setting
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.predictors.transfer.backend_change import BACKEND_LOG_PRICES, BackendChange, prices_in
from slotool.testing.predictors import random_networks, synthetic_latency_s

TORCH = Setting(machine="here", device="cpu", backend="torch", threads=2, batch_size=1)
KERAS = replace(TORCH, backend="keras")
NETWORKS = random_networks(12, seed=4)


def block(depthwise: bool, filters: int = 32, plain: int = 1) -> OperatorGraph:
    """The same values, by a depthwise convolution or by one of as many groups as channels, after so many others."""
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=[3, 32, 32])
    for _ in range(plain):
        last = builder.add("Conv2D", last, filters=filters, kernel=3, padding="same")
    if depthwise:
        builder.add("DepthwiseConv2D", last, kernel=7, padding="same")
    else:
        builder.add("Conv2D", last, filters=filters, kernel=7, padding="same", groups=filters)
    return builder.graph()


def error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Mean of |log| apart from one factor."""
    apart = np.log(predicted / measured)
    return float(np.mean(np.abs(apart - np.median(apart))))


def test_networks_of_people_take_in_keras_what_random_ones_make_likely() -> None:
    torch, keras = applications("torch"), applications("keras")
    times = BackendChange.of(torch.setting, keras.setting).times(torch.items)
    assert [graph.id for graph in torch.items] == [graph.id for graph in keras.items]
    assert error(torch.latency_s * times, keras.latency_s) < 0.85 * error(torch.latency_s, keras.latency_s)
    convnext = np.array(["ConvNeXt" in str(graph.name) for graph in torch.items])
    measured, known = np.log(keras.latency_s / torch.latency_s), np.log(times)
    excess = [float(np.median(own[convnext]) - np.median(own[~convnext])) for own in (measured, known)]
    assert excess[0] > 1.0
    assert excess[0] / 2 < excess[1] < 1.5 * excess[0]


def test_convolutions_of_groups_are_many_times_dearer_in_keras() -> None:
    depthwise, grouped = BackendChange.of(TORCH, KERAS).times([block(depthwise=True), block(depthwise=False)])
    assert grouped > 5 * depthwise


def test_what_each_operator_takes_there_goes_by_its_own_prices() -> None:
    graph = block(depthwise=False)
    base = TrainedPredictor[OperatorGraph].load(str(MODELS / "predictor-torch")).predictor
    there = AdaptedPredictor(base, BackendChange.of(TORCH, KERAS))
    there.fit(Examples(NETWORKS, base.predict(NETWORKS) * there.change.times(NETWORKS)))
    before, after = base.operator_seconds(graph), there.operator_seconds(graph)
    assert before is not None
    assert after is not None
    assert after.sum() <= there.predict([graph])[0] * (1 + 1e-9)
    assert after[-1] / after[-2] > 5 * before[-1] / before[-2]


def test_there_and_back_is_where_one_was() -> None:
    there, back = BackendChange.of(TORCH, KERAS), BackendChange.of(KERAS, TORCH)
    assert there.times(NETWORKS) * back.times(NETWORKS) == pytest.approx(1.0)
    assert np.ptp(np.log(there.times(NETWORKS))) > 0


@pytest.mark.parametrize(
    "wanted",
    [TORCH, replace(TORCH, backend="onnx"), replace(KERAS, device="cuda:0"), replace(KERAS, precision="int8")],
)
def test_where_nothing_is_known_nothing_changes(wanted: Setting) -> None:
    change = BackendChange.of(TORCH, wanted)
    assert not change
    assert np.array_equal(change.times(NETWORKS), np.ones(len(NETWORKS)))


def test_a_label_speaks_for_what_a_network_spends_its_time_on_there() -> None:
    """Convolutions of groups are a small part of a neutral roofline, and most of what Keras takes. Where they are twice
    as dear as known, one label with some tells of networks with more and with less of them."""
    prices = prices_in(KERAS)
    dearer = {
        kind: (own[0], own[1] + np.log(2), own[2] + np.log(2)) for kind, own in prices.items() if "groups" in kind
    }
    base, times = ThreeTermPredictor(), BackendChange(prices, prices | dearer).times
    base.fit(Examples(NETWORKS, synthetic_latency_s(NETWORKS)))
    labelled = [*NETWORKS[:9], block(depthwise=False)]
    asked = [block(depthwise=False, filters=16, plain=6), block(depthwise=False, filters=64), block(depthwise=True)]
    errors = []
    for known in (prices, {}):
        adapted = AdaptedPredictor(base, BackendChange(prices=known))
        adapted.fit(Examples(labelled, base.predict(labelled) * times(labelled)))
        predicted = adapted.predict(asked)
        errors.append(np.mean(np.abs(np.log(predicted / (base.predict(asked) * times(asked))))))
        again = AdaptedPredictor.from_state(*adapted.state())
        assert again.change.document() == adapted.change.document()
        assert again.predict(asked) == pytest.approx(predicted)
    assert errors[0] < errors[1]


def test_ten_labels_of_keras_leave_less_than_without_what_is_known(slotool, tmp_path: Path) -> None:
    command = ["adapt-predictor", MODELS / "predictor-torch", DATASETS / "keras-applications-latency.parquet"]
    graphs = DATASETS / "keras-applications-graphs.parquet"
    done = slotool(*command, "--graphs", graphs, "--samples", 10, "-o", tmp_path / "adapted", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.document["taken_to_backend"] == "keras"
    left = {name: each["others_mape"] for name, each in done.document["predictors"].items()}
    # By labels of torch's time three terms do half as well again.
    assert left["adapted"] < 0.10
    assert left["three-term"] < 0.14
    here = applications("keras")
    saved: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(tmp_path / "adapted"))
    assert isinstance(saved.predictor, AdaptedPredictor)
    others = [i for i, graph in enumerate(here.items) if graph.id not in done.document["adapted_to"]]
    asked, measured_s = here.take(np.array(others))
    predicted_s = saved.predict(asked).latency_s
    assert np.mean(np.abs(predicted_s / measured_s - 1)) == pytest.approx(left["adapted"])


def test_the_shipped_prices_are_those_of_the_shipped_labels() -> None:
    found, shipped = fitted(pairs("keras"), ["Conv2D of groups"]), BACKEND_LOG_PRICES["keras"]
    for kind, prices in found.items():
        assert shipped.get(kind, shipped[""]) == pytest.approx(prices, abs=0.16), kind
