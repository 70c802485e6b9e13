"""One predictor of many settings: what it learns from them, and how a few labels take it to a new one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import slotool
from benchmarks.refit import shipped
from slotool.commands.predictors.predictor_training import worse_than_baseline
from slotool.errors import ArgumentError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.predictors.base import Examples
from slotool.predictors.features.network_features import (
    AMOUNTS,
    CATEGORIES,
    FEATURES,
    amounts,
    network_features,
    relative_prices,
)
from slotool.predictors.labels import LabelledSet, Setting, SettingsLabelled, join_labels, join_settings
from slotool.predictors.settings.predictor import SettingsPredictor, matching
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.training.many_settings import SettingsRun, hold_out_settings, of_setting, train_settings
from slotool.predictors.transfer.adaptation import ADAPTED, AS_IS, FACTOR, HeldOut, adapt_and_score
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks

DEVICES = ("a", "b", "c", "d")


def latency_on(graphs: list[OperatorGraph], calls: float, flops: float, moved: float) -> np.ndarray:
    """Made up: seconds per operator, and per FLOP or byte, whichever takes longer."""
    sizes = np.array([[len(g.operators), g.flops, g.memory_bytes()] for g in graphs], dtype=float)
    return np.asarray(calls * sizes[:, 0] + np.maximum(flops * sizes[:, 1], moved * sizes[:, 2]))


PRICES = {"a": (1e-6, 1e-10, 1e-10), "b": (5e-6, 2e-11, 3e-11), "c": (2e-6, 3e-10, 1e-11), "d": (1e-5, 1e-11, 1e-10)}
NEW = (4e-6, 5e-11, 5e-11)


@pytest.fixture(scope="module")
def networks() -> list[OperatorGraph]:
    return random_networks(60, 0) + random_networks(60, 1, kind="cnn")


def setting_of(device: str, precision: str = "float32") -> Setting:
    return Setting("far", device, "torch", 1, 1, precision=precision)


@pytest.fixture(scope="module")
def run(networks: list[OperatorGraph]) -> SettingsRun:
    latency_s = np.column_stack([latency_on(networks, *PRICES[device]) for device in DEVICES])
    latency_s[::7, 1] = np.nan
    return train_settings(SettingsLabelled(tuple(networks), tuple(map(setting_of, DEVICES)), latency_s))


def test_features_are_named_and_say_what_operators_do(networks: list[OperatorGraph]) -> None:
    features = network_features(networks[:3])
    assert features.shape == (3, len(FEATURES))
    assert np.isfinite(features).all()
    named = dict(zip(FEATURES, features[0], strict=True))
    assert named["log operators"] == pytest.approx(np.log(len(networks[0].operators)))
    assert sum(named[f"cost share {name}"] for name in CATEGORIES) == pytest.approx(1.0)
    assert named["cost share dense"] > 0


def test_work_is_what_the_features_say_and_has_a_price(networks: list[OperatorGraph]) -> None:
    features = network_features(networks)
    found = dict(zip(AMOUNTS, amounts(features).T, strict=True))
    assert np.allclose(found["flops"], [graph.flops for graph in networks])
    assert np.allclose(found["operators"], sum(found[f"calls {name}"] for name in CATEGORIES))
    assert np.allclose(found["moved_bytes"], sum(found[f"bytes {name}"] for name in CATEGORIES))
    assert np.allclose(found["cost dense"] > 0, found["calls dense"] > 0)
    # Labels that are sums of work have the prices found again, but for the ridge's share.
    work = amounts(features)[:, :6]
    paid_s = np.array([2e-11, 0.0, 1e-10, 3e-10, 0.0, 4e-6])
    latency_s = work @ paid_s
    assert np.allclose(work @ relative_prices(work, latency_s, ridge=0.001), latency_s, rtol=0.02)


def test_it_learns_every_setting_from_labels_of_all(run: SettingsRun) -> None:
    scores = run.scores()["settings"]
    assert [each["setting"]["device"] for each in scores] == list(DEVICES)
    for each in scores:
        assert each["mape"] < 0.05 < each["least_squares_mape"]
        assert 0.8 <= each["interval_coverage"] <= 0.99
    assert scores[1]["n"] == 120 - 18


def test_it_answers_for_the_setting_that_is_asked(run: SettingsRun, networks: list[OperatorGraph]) -> None:
    predictor = run.trained.predictor
    assert isinstance(predictor, SettingsPredictor)
    for number, device in enumerate(DEVICES):
        there = of_setting(run.trained, predictor, number)
        found = there.predict(networks[:40])
        truth = latency_on(networks[:40], *PRICES[device])
        assert there.setting.device == device
        assert np.median(np.abs(found.latency_s / truth - 1)) < 0.03
        assert np.mean((found.low_s <= truth) & (truth <= found.high_s)) >= 0.8  # of 40, where 90 % are meant


def test_ten_labels_take_it_to_a_new_setting(run: SettingsRun) -> None:
    others = random_networks(40, 5) + random_networks(40, 6, kind="cnn")
    labelled = LabelledSet(tuple(others), latency_on(others, *NEW), np.full(80, np.nan), setting_of("new"))
    found = adapt_and_score(run.trained, labelled, samples=10)
    assert found.mape[ADAPTED] < 0.08 < found.mape[FACTOR]
    assert found.harm is None
    assert 0 < sum(share for _, share in found.sources) <= 1 + 1e-9
    assert found.coverage is not None


def test_labels_that_do_harm_are_said_to(run: SettingsRun) -> None:
    others = random_networks(10, 8)
    labelled = LabelledSet(tuple(others), latency_on(others, *PRICES["a"]), np.full(10, np.nan), setting_of("a"))
    found = adapt_and_score(run.trained, labelled)
    better, worse = np.full(10, 0.05), np.full(10, 0.4)

    def harm(as_it_is: np.ndarray, factor: np.ndarray, adapted: np.ndarray) -> str | None:
        return replace(found, held_out=HeldOut({AS_IS: as_it_is, FACTOR: factor, ADAPTED: adapted}, worse)).harm

    assert "do harm" in (harm(better, worse, worse + 0.1) or "")
    assert "one factor" in (harm(worse, better, worse) or "")
    assert harm(worse, worse, better) is None


def test_labels_of_the_very_networks_on_other_devices_count() -> None:
    """Each network takes longer or shorter everywhere, for no reason that its features show."""
    networks = random_networks(40, 2) + random_networks(40, 3, kind="cnn")
    effects = np.random.default_rng(1).lognormal(0, 0.4, len(networks))
    latency_s = np.column_stack([effects * latency_on(networks, *PRICES[device]) for device in DEVICES])
    known = train_settings(SettingsLabelled(tuple(networks), tuple(map(setting_of, DEVICES)), latency_s))
    there_s = 3 * effects * latency_on(networks, *PRICES["b"])
    labelled = LabelledSet(tuple(networks), there_s, np.full(80, np.nan), setting_of("new"))
    found = adapt_and_score(known.trained, labelled, samples=10)
    assert found.mape[ADAPTED] < 0.03
    unknown = random_networks(40, 12) + random_networks(40, 13, kind="cnn")
    unknown_s = 3 * effects * latency_on(unknown, *PRICES["b"])
    elsewhere = LabelledSet(tuple(unknown), unknown_s, np.full(80, np.nan), setting_of("new"))
    assert adapt_and_score(known.trained, elsewhere, samples=10).mape[ADAPTED] > 0.1


def test_labels_that_are_not_chosen_play_no_part(run: SettingsRun) -> None:
    others = random_networks(40, 5) + random_networks(40, 6, kind="cnn")
    latency_s = latency_on(others, *NEW)
    first = adapt_and_score(run.trained, LabelledSet(tuple(others), latency_s, latency_s * 0, setting_of("n")), 10)
    wrong_s = latency_s * np.random.default_rng(0).lognormal(0, 3.0, len(others))
    wrong_s[first.chosen] = latency_s[first.chosen]
    second = adapt_and_score(run.trained, LabelledSet(tuple(others), wrong_s, latency_s * 0, setting_of("n")), 10)
    assert second.chosen.tolist() == first.chosen.tolist()
    np.testing.assert_array_equal(first.adapted.predict(others).latency_s, second.adapted.predict(others).latency_s)


def test_networks_of_equal_work_differ_by_their_depth() -> None:
    graphs = []
    for chained in (False, True):
        builder = GraphBuilder("mlp")
        first = builder.add("Dense", source := builder.add("InputLayer", shape=[8]), units=8)
        builder.add("Add", [first, builder.add("Dense", first if chained else source, units=8)])
        graphs.append(builder.graph())
    apart = np.diff(network_features(graphs), axis=0)[0]
    assert {name: change for name, change in zip(FEATURES, apart, strict=True) if change} == {
        "log depth": pytest.approx(np.log(4 / 3))
    }


def test_quantised_networks_have_features_of_their_own(networks: list[OperatorGraph]) -> None:
    whole = replace(networks[0], element_type="int8")
    apart = network_features([whole])[0] != network_features([networks[0]])[0]
    assert [name for name, differs in zip(FEATURES, apart, strict=True) if differs] == ["log value_bytes"]
    base = ThreeTermPredictor()
    base.fit(Examples(networks, latency_on(networks, *NEW)))
    adapted = AdaptedPredictor(base)
    both = [networks[0], whole, *networks[1:9]]
    times = np.array([1.0, 3.0, *[1.0] * 8])
    adapted.fit(Examples(both, times * latency_on(both, *NEW)))
    found = adapted.predict(both[:2])
    assert found[1] > 1.3 * found[0]


def test_a_setting_of_too_few_labels_is_left_out(networks: list[OperatorGraph]) -> None:
    latency_s = np.column_stack([latency_on(networks, *PRICES[device]) for device in ("a", "b")])
    latency_s[12:, 1] = np.nan
    labelled = SettingsLabelled(tuple(networks), (setting_of("a"), setting_of("b")), latency_s)
    trained = train_settings(labelled)
    assert [setting.device for setting in trained.labelled.settings] == ["a"]
    assert [(setting.device, count) for setting, count in trained.labelled.left_out] == [("b", 12)]
    with pytest.raises(InputError, match="while a fifth"):
        train_settings(replace(labelled, settings=labelled.settings[1:], latency_s=latency_s[:, 1:]))


def test_rows_of_two_precisions_are_two_settings(networks: list[OperatorGraph]) -> None:
    rows = [
        {"subject": graph.id, "samples_s": [seconds * times], "precision": precision}
        for precision, times in (("amp", 1.0), ("", 2.0))
        for graph, seconds in zip(networks[:12], latency_on(networks[:12], *NEW), strict=True)
    ]
    table = LatencyTable.of(rows)
    with pytest.raises(InputError, match=r"mixes precision amp, float32.*--precision"):
        join_labels(table, networks)
    picked = join_labels(table, networks, {"precision": "float32"})
    assert picked.setting.precision == "float32"
    assert picked.latency_s == pytest.approx(2 * latency_on(networks[:12], *NEW))


def test_the_setting_that_the_labels_speak_for_is_named_as_the_base(run: SettingsRun) -> None:
    others = random_networks(12, 9) + random_networks(12, 9, kind="cnn")
    labelled = LabelledSet(tuple(others), latency_on(others, *PRICES["c"]), np.full(24, np.nan), setting_of("new"))
    found = adapt_and_score(run.trained, labelled, samples=12)
    assert found.base_setting.device == found.scores()["base"]["setting"]["device"] == "c"


def test_what_is_written_answers_the_same(run: SettingsRun, networks: list[OperatorGraph], tmp_path: Path) -> None:
    run.save(tmp_path / "p", config={}, seed=0)
    opened: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(tmp_path / "p"))
    for before, after in zip(
        run.trained.predict(networks[:9]).high_s, opened.predict(networks[:9]).high_s, strict=True
    ):
        assert after == pytest.approx(before, rel=1e-6)
    taken = AdaptedPredictor(run.trained.predictor)
    taken.fit(Examples(networks[:10], latency_on(networks[:10], *NEW)))
    again = AdaptedPredictor.from_state(*taken.state())
    np.testing.assert_allclose(again.predict(networks), taken.predict(networks), rtol=1e-6)


def test_its_state_is_checked(run: SettingsRun) -> None:
    tensors, document = run.trained.predictor.state()
    with pytest.raises(InputError, match="do not fit"):
        SettingsPredictor.from_state({**tensors, "log_s": tensors["log_s"][:5]}, document)
    with pytest.raises(InputError, match="none of the predictor's 4"):
        SettingsPredictor.from_state(tensors, {**document, "chosen": 4})
    with pytest.raises(InputError, match="other features"):
        SettingsPredictor.from_state(tensors, {**document, "model": {**document["model"], "features": ["one"]}})


def test_a_network_that_has_a_label_there_gets_it(run: SettingsRun, networks: list[OperatorGraph]) -> None:
    predictor = of_setting(run.trained, run.trained.predictor, 1).predictor
    truth, labelled = latency_on(networks, *PRICES["b"]), np.arange(len(networks)) % 7 > 0
    assert predictor.predict(networks)[labelled] == pytest.approx(truth[labelled])
    # Of another device, by its sheet, only the others are also off as unlabelled networks are.
    scaled, _ = predictor.scaled(np.log(2))  # type: ignore[attr-defined]
    scaled.networks_by_devices = 3.0
    latency_s, spread = scaled.predict_and_spread(networks)
    assert latency_s == pytest.approx(2 * predictor.predict(networks))
    assert spread[labelled].tolist() == [1.0] * int(labelled.sum())
    assert (spread[~labelled] > np.hypot(1.0, 3.0)).all()


def test_intervals_widen_with_the_distance_from_labelled_networks(run: SettingsRun) -> None:
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[8192])
    for _ in range(40):
        last = builder.add("Dense", last, units=8192)
    near, far = run.trained.predict([run.labelled.items[1], builder.graph()]).spread
    assert near == pytest.approx(1.0)
    assert far > 2.0


def test_networks_without_any_alike_in_a_setting_have_no_interval_there(networks: list[OperatorGraph]) -> None:
    latency_s = np.column_stack([latency_on(networks, *PRICES[device]) for device in "ab"])
    latency_s[:60, 1] = np.nan
    trained = train_settings(SettingsLabelled(tuple(networks), (setting_of("a"), setting_of("b")), latency_s)).trained
    assert isinstance(trained.predictor, SettingsPredictor)
    mlp, cnn = networks[0], networks[100]
    for number, expected in ((0, [True, True]), (1, [False, True])):
        predictions = of_setting(trained, trained.predictor, number).predict([mlp, cnn])
        assert np.isfinite(predictions.low_s).tolist() == expected
        assert [reason is None for reason in predictions.no_interval] == expected


@pytest.mark.parametrize(
    ("facts", "count"),
    [({"device": "A"}, 1), ({"precision": "float32"}, 4), ({"precision": "flo"}, 4), ({"device": "z"}, 0)],
)
def test_settings_are_found_by_what_is_known_of_them(run: SettingsRun, facts: dict[str, str], count: int) -> None:
    assert len(matching(run.labelled.settings, **facts)) == count


def test_a_setting_in_which_least_squares_is_better_is_warned_of() -> None:
    setting = Setting("far", "i9-10940x", "torch.compile", 14, 1)
    assert worse_than_baseline(setting, {"mape": 0.1, "least_squares_mape": 0.2}) is None
    said = worse_than_baseline(setting, {"mape": 0.497, "least_squares_mape": 0.19})
    assert said is not None
    assert "i9-10940x, torch.compile, float32, 14 threads, batch 1: DO NOT USE IT" in said


def table_of(networks: list[OperatorGraph]) -> LatencyTable:
    rows = []
    for device, precision, own in (("a", "float32", PRICES["a"]), ("b", "amp", PRICES["b"])):
        facts = {"device": device, "backend": "torch", "machine": "far"}
        seconds = latency_on(networks, *own).tolist()
        rows += [
            {**facts, "subject": graph.id, "samples_s": [s], "precision": precision}
            for graph, s in zip(networks, seconds, strict=True)
        ]
    facts = {"device": "few", "backend": "torch", "machine": "far", "precision": "float32"}
    rows += [{**facts, "subject": graph.id, "samples_s": [1.0]} for graph in networks[:5]]
    import pandas as pd

    return LatencyTable(pd.DataFrame(rows))


def test_from_tables_to_a_predictor_of_a_device(networks: list[OperatorGraph], tmp_path: Path) -> None:
    table_of(networks).save(tmp_path / "latency.parquet")
    write_graphs(tmp_path / "graphs.parquet", networks)
    joined = join_settings(table_of(networks), networks)
    assert [(s.device, s.precision) for s in joined.settings] == [("a", "float32"), ("b", "amp")]
    assert [(s.device, count) for s, count in joined.left_out] == [("few", 5)]
    found = slotool.train_predictor(
        tmp_path / "latency.parquet", graphs=tmp_path / "graphs.parquet", model="settings", out=tmp_path / "p"
    )
    assert found.document["settings"][1]["setting"]["precision"] == "amp"
    said = slotool.predict(networks[:3], predictor=tmp_path / "p", device="B", precision="amp")
    truth = latency_on(networks[:3], *PRICES["b"])
    assert said.latency_s == pytest.approx(truth, rel=0.2)
    assert np.isfinite(said.interval_s).all()
    # Names of devices do not tell which is near; of a device that is there, the other facts do.
    with pytest.raises(ArgumentError, match=r"^device: .*device c\b.*\ba, b\b"):
        slotool.predict(networks[:3], predictor=tmp_path / "p", device="c")
    with pytest.raises(ArgumentError, match=r"^precision: .*nearest .*device a, .*precision float32"):
        slotool.predict(networks[:3], predictor=tmp_path / "p", device="a", precision="amp")
    measured = {"latency": tmp_path / "latency.parquet", "graphs": tmp_path / "graphs.parquet"}
    scored = slotool.evaluate_predictor(tmp_path / "p", **measured, device="b")
    assert scored.setting.device == "b"
    assert scored.scores["all"]["mape"] < 0.1
    with pytest.raises(ArgumentError, match="2 settings of"):
        slotool.evaluate_predictor(tmp_path / "p", **measured)
    # Labels that the base has already say nothing of its errors.
    for device, is_warned in (("a", True), ("few", False)):
        adapted = slotool.adapt_predictor(tmp_path / "p", **measured, rows={"device": device}, samples=4)
        assert any("labels are in" in each for each in adapted.warnings) == is_warned


def test_it_is_asked_for_alone(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="alone"):
        slotool.train_predictor(tmp_path / "l.csv", graphs=tmp_path / "g.jsonl", model=["settings", "linear"])
    with pytest.raises(ArgumentError, match="trains no DNN"):
        slotool.train_predictor(tmp_path / "l.csv", graphs=tmp_path / "g.jsonl", model="settings", depths=[2])


def test_a_refit_is_compared_by_the_features_that_both_are_asked_with(
    run: SettingsRun, networks: list[OperatorGraph]
) -> None:
    predictor = run.trained.predictor
    assert isinstance(predictor, SettingsPredictor)
    assert predictor.model is not None
    features, kinds = network_features(networks), [graph.kind for graph in networks]
    fitted = run.held_out.score(0)["mape"]
    assert shipped(predictor.model, features, kinds).score(0)["mape"] == pytest.approx(fitted, rel=0.05)
    # Captured anew, the networks have three times the work, of which the shipped model has learnt nothing.
    features[:, [FEATURES.index(f"log {name}") for name in ("flops", "moved_bytes", "operators")]] += np.log(3)
    assert shipped(predictor.model, features, kinds).score(0)["mape"] > 3 * fitted
    anew = hold_out_settings(features, run.labelled.latency_s, run.labelled.settings, kinds)
    assert anew.score(0)["mape"] == pytest.approx(fitted, rel=0.3)
