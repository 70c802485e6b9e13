"""Device sheets: what they must say, and latencies of a device without labels, scaled from the nearest with labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slotool.errors import ArgumentError, InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.predictors.answers.chosen import Chosen
from slotool.predictors.colocated.artifact import PredictorArtifact
from slotool.predictors.labels import Setting, SettingsLabelled
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.settings.sheets import DeviceSheet, device_errors, nearest_known, shipped_sheets
from slotool.predictors.training.many_settings import train_settings
from slotool.testing.predictors import random_networks

SHEET = """
name = "own"
kind = "gpu"
family = "Own"
memory_gb_s = 2016
tflops = { fp16 = 660.6 }
"""
KNOWN = ("rtx3090", "rtx4090", "i9-10940x")


def setting_of(device: str) -> Setting:
    return Setting("far", device, "torch", 1, 8, precision="amp")


@pytest.fixture(scope="module")
def networks() -> list[OperatorGraph]:
    return random_networks(60, 0) + random_networks(60, 1, kind="cnn")


@pytest.fixture(scope="module")
def trained(networks: list[OperatorGraph]) -> Chosen:
    """Of three devices: the second is as much faster than the first as their sheets say, the third is a CPU."""
    first_s = np.array([1e-6 * len(graph.operators) + 1e-12 * graph.flops for graph in networks])
    factor = np.exp(-shipped_sheets()["rtx4090"].speedups(shipped_sheets()["rtx3090"], "amp").mean())
    latency_s = np.column_stack([first_s, first_s * factor, 40 * first_s])
    run = train_settings(SettingsLabelled(tuple(networks), tuple(map(setting_of, KNOWN)), latency_s))
    return Chosen(PredictorArtifact("few", run.trained, None, {}), "few", None)


def test_every_shipped_sheet_names_its_document_and_is_plausible() -> None:
    sheets = shipped_sheets()
    assert {"h200", "rtx4090", "i9-10940x", "raspberry-pi-5"} <= set(sheets)
    for name, sheet in sheets.items():
        assert sheet.source, name
        assert sheet.family
        # FLOPs a byte of memory traffic, in float32: boards to data centres.
        assert 3 < 1e3 * sheet.tflops["float32"] / sheet.memory_gb_s < 130, name
        assert sheet.tflops.get("fp16", np.inf) >= sheet.tflops["float32"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SHEET.replace('kind = "gpu"\n', ""), "missing required field `kind`"),
        (SHEET.replace("2016", "2016e9"), r"memory_gb_s = 2.016e\+12 is implausible; expected 1 to 30,000 GB/s"),
        (SHEET.replace("2016", "nan"), "memory_gb_s = nan is implausible"),
        (SHEET.replace("660.6", "-1"), "tflops.fp16 = -1 is implausible; expected 0.001 to 30,000 TFLOP/s"),
        (SHEET.replace("gpu", "tpu"), "kind is 'tpu'; expected gpu or cpu"),
        (SHEET.replace("660.6", '"many"'), "tflops"),
        (SHEET + "flops = 3\n", "unknown key 'flops'"),
        ("name = ", "cannot be read as TOML"),
    ],
)
def test_a_bad_sheet_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        DeviceSheet.read(tmp_path / "own.toml")


def test_a_device_is_scaled_from_the_nearest_of_its_kind(trained: Chosen, networks: list[OperatorGraph]) -> None:
    # Twice an RTX 4090 in both figures.
    own = replace(shipped_sheets()["rtx4090"], name="own", memory_gb_s=2016, tflops={"fp16": 660.6})
    assert nearest_known(own, trained.settings, range(3)) == (1, pytest.approx(-np.log(2)))
    there = trained.of_sheet(own, batch_size=8)
    source = trained.of_setting(device="rtx4090")
    found = there.opened.require_solo().predict(networks)
    known = source.opened.require_solo().predict(networks)
    assert np.allclose(found.latency_s, known.latency_s / 2, rtol=0.05)
    assert there.opened.setting.device == "own"
    assert there.why is not None
    assert "no labels of own: those of rtx4090 × 0.5" in there.why
    # By name, where the predictor has no labels of it and a sheet ships.
    assert trained.of_setting(device="h200").opened.setting.device == "h200"
    with pytest.raises(ArgumentError, match="no labels of device nosuch"):
        trained.of_setting(device="nosuch")
    for make in (partial(trained.of_sheet, own), partial(trained.of_setting, device="h200")):
        with pytest.raises(ArgumentError, match=r"no labels of precision tf32; the nearest there is: .*amp") as raised:
            make(precision="tf32")
        assert raised.value.argument == "precision"
        with pytest.raises(ArgumentError, match=r"'float16' is none of amp, .*fp16"):
            make(precision="float16")
    with pytest.raises(ArgumentError, match=r"h200 is predicted from .*no labels of .*batch size 1"):
        trained.of_setting(device="h200", batch_size=1)


def test_intervals_rest_on_errors_between_families(trained: Chosen, networks: list[OperatorGraph]) -> None:
    predictor = trained.of_setting(device="h200").opened.require_solo().predictor
    assert isinstance(predictor, SettingsPredictor)
    # These agree with the sheets; networks without a label are as far off as families held out.
    assert predictor.networks_by_devices > 1
    truth = np.log([[2.0, 1.0, 3.0], [4.0, np.nan, 3.0], [8.0, 4.0, 9.0]])
    speedup = float(shipped_sheets()["rtx4090"].speedups(shipped_sheets()["rtx3090"], "amp").mean())
    errors = device_errors(tuple(map(setting_of, KNOWN)), truth)
    # Two networks have labels on both GPUs, and no other CPU has any.
    assert np.allclose(errors, [np.log(2) - speedup] * 2 + [speedup - np.log(2)] * 2)


def test_predict_takes_a_sheet(slotool, tmp_path: Path) -> None:
    write_graphs(tmp_path / "nets.jsonl", random_networks(2, 3, kind="cnn"))
    (tmp_path / "own.toml").write_text(SHEET)
    options = ("predict", "--graph", tmp_path / "nets.jsonl")
    finished = slotool(*options, "--device-sheet", tmp_path / "own.toml", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert finished.document["setting"]["device"] == "own"
    assert "by bandwidth and FLOPs" in finished.document["artifact_why"]
    twice = slotool(*options, "--device-sheet", tmp_path / "own.toml", "--device", "h200")
    assert (twice.exit_code, "it names the device" in twice.stderr) == (2, True)
    (tmp_path / "here.toml").write_text(SHEET.replace("own", "cpu"))
    here = slotool(*options, "--device-sheet", tmp_path / "here.toml")
    assert (here.exit_code, "cpu is a device of this machine" in here.stderr) == (2, True)


def test_a_device_that_is_none_is_refused_with_all_there_are(slotool, tmp_path: Path) -> None:
    write_graphs(tmp_path / "nets.jsonl", random_networks(1, 3, kind="cnn"))
    refused = slotool("predict", "--graph", tmp_path / "nets.jsonl", "--device", "jetson-orin")
    assert refused.exit_code == 2
    said = "".join(refused.stderr.replace("│", "").split())
    assert [name for name in shipped_sheets() if name not in said] == []
