"""Networks by name: timm's networks ship as graphs, so that a table of names and rates is enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slotool.errors import GraphError
from slotool.graphs.shipped import ShippedNetworks
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import TrainedPredictor

DEVICES = Path(__file__).parents[2] / "models" / "predictor-devices"
HIDDEN = "rtx3090"
FEW = 10


@pytest.fixture(scope="module")
def timm() -> ShippedNetworks:
    return ShippedNetworks.of("timm")


@pytest.fixture(scope="module")
def rates(timm: ShippedNetworks) -> pd.DataFrame:
    """Published images a second of every ninth model of one batch size, a column for each device."""
    names = [name for name in timm.ids if "@" not in name][::9]
    graphs = timm.graphs(names)
    predictor = TrainedPredictor.load(str(DEVICES)).predictor
    assert isinstance(predictor, SettingsPredictor)
    rates = {
        setting.device: setting.batch_size / np.exp(predictor.log_answers(graphs)[:, s])
        for s, setting in enumerate(predictor.settings)
        if setting.backend == "torch"
    }
    return pd.DataFrame(rates, index=[graph.name for graph in graphs])


def test_networks_of_attention_and_of_convolutions_have_intervals_on_published_devices(slotool) -> None:
    facts = ("--networks", "vit_base_patch16_224,resnet50", "--device", "rtx4090", "--precision", "amp")
    done = slotool("predict", *facts, "--json")
    assert done.exit_code == 0, done.stderr
    assert [row["outside"] for row in done.document["predictions"]] == [None, None]
    assert all(row["low_s"] < row["latency_s"] < row["high_s"] for row in done.document["predictions"])


@pytest.mark.long
def test_ten_names_and_rates_predict_the_other_networks_of_a_device(slotool, rates: pd.DataFrame, tmp_path) -> None:
    known = (
        rates.drop(columns=HIDDEN).reset_index(names="model").melt("model", var_name="device", value_name="images/s")
    )
    known.assign(batch_size=256).to_csv(tmp_path / "known.csv", index=False)
    there = rates[HIDDEN].rename("images/s").rename_axis("model").reset_index()
    there.iloc[-FEW:].to_csv(tmp_path / "few.csv", index=False)
    asked = rates[HIDDEN].iloc[:-FEW]
    named = ("--networks", "timm")
    done = slotool("train-predictor", tmp_path / "known.csv", *named, "-o", tmp_path / "base", "--model", "settings")
    assert done.exit_code == 0, done.stderr

    facts = ("--device", HIDDEN, "--precision", "amp")
    inputs = (tmp_path / "base", tmp_path / "few.csv", *named, *facts)
    done = slotool("adapt-predictor", *inputs, "-o", tmp_path / "there", "--json")
    assert done.exit_code == 0, done.stderr
    setting = done.document["setting"]
    assert (setting["device"], setting["precision"], setting["batch_size"]) == (HIDDEN, "amp", 256)
    assert len(done.document["adapted_to"]) == FEW

    done = slotool("predict", tmp_path / "there", "--networks", ",".join(asked.index), "--json")
    assert done.exit_code == 0, done.stderr
    rows = {row["name"]: row for row in done.document["predictions"]}
    truth_s = 256 / asked.to_numpy()
    predicted_s, low_s, high_s = (
        np.array([rows[name][key] for name in asked.index], dtype=float) for key in ("latency_s", "low_s", "high_s")
    )
    assert np.mean(np.abs(predicted_s / truth_s - 1)) < 0.12
    assert np.mean((low_s <= truth_s) & (truth_s <= high_s)) > 0.8

    there.loc[len(there)] = ("no_such_net", 9.0)
    there.to_csv(tmp_path / "all.csv", index=False)
    done = slotool(
        "evaluate-predictor",
        tmp_path / "there",
        "--latency",
        tmp_path / "all.csv",
        *named,
        "--device",
        HIDDEN,
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    assert done.document["scores"]["all"]["mape"] < 0.12
    assert done.stderr.count("'no_such_net' is none of the") == 1
    assert "device unknown" not in done.stderr


def test_a_name_may_state_weights_and_the_side_of_images(timm: ShippedNetworks) -> None:
    assert timm.name_of("resnet50.a1_in1k") == timm.name_of("resnet50") == "resnet50"
    assert timm.ids["resnet50"] == timm.ids[timm.name_of("resnet50.tv_in1k@224")]
    with pytest.raises(GraphError, match=r"resnet50 is known with images of .*224.*, not of 7"):
        timm.name_of("resnet50@7")
    with pytest.raises(GraphError, match=r"'resnet5' is none of the .* models of timm that ship; did you mean resnet5"):
        timm.name_of("resnet5")


def test_all_networks_are_each_listed_once(timm: ShippedNetworks) -> None:
    few = [name for name in timm.ids if name.partition("@")[0] in ("resnet18", "resnet50", "vit_tiny_patch16_224")]
    listed = ShippedNetworks("timm", timm.path, {name: timm.ids[name] for name in few}).graphs()
    assert "resnet50" in [graph.name for graph in listed]
    assert "resnet50@224" not in [graph.name for graph in listed]
    assert sorted(graph.id for graph in listed) == sorted({timm.ids[name] for name in few})


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        ("model,images/s\nno_such_net,3\nnor_this,4\n", ["--networks", "timm"], "unknown: no_such_net, nor_this"),
        (
            "model,images/s\nresnet50,3\nno_such_net,4\n",
            ["--networks", "timm"],
            "takes 3; 'no_such_net' is none",
        ),
        ("model,images/s\nresnet18,0\n", ["--networks", "timm"], "row 1, column images/s: '0' is not a rate above 0"),
        ("model,images/s\nresnet18,3219,1\n", ["--networks", "timm"], "row 1 has more cells than the header"),
        (
            "model,images/s\nresnet18,9\n",
            ["--networks", "keras"],
            "no networks of 'keras' ship with slotool",
        ),
        ("model,images/s\nresnet18,9\n", [], "give the graph files of the networks or --networks timm"),
    ],
)
def test_names_that_cannot_be_learnt_from_are_one_sentence(
    slotool, tmp_path: Path, table: str, options: list[str], sentence: str
) -> None:
    (tmp_path / "few.csv").write_text(table)
    done = slotool("adapt-predictor", DEVICES, tmp_path / "few.csv", *options, "-o", tmp_path / "a")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "a").exists()


def test_an_unknown_name_is_not_predicted(slotool) -> None:
    done = slotool("predict", "--device", "rtx4090", "--precision", "amp", "--networks", "resnet50,no_such_net")
    assert (done.exit_code, "'no_such_net' is none of the" in done.stderr) == (2, True)
