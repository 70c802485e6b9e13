"""Which predictor ``predict`` asks, of which networks, and what it says of a machine that is another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import slotool as library
from slotool.errors import ArgumentError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture.networks import Networks
from slotool.graphs.store import write_graphs
from slotool.machine import CPU_DETAILS, machine_id
from slotool.predictors.answers.choice import chosen_predictor
from slotool.predictors.answers.chosen import Chosen
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.testing.predictors import random_networks, synthetic_latency_s
from slotool.timing.speed import facts_with_speed
from tests.machines import UNKNOWN, UNKNOWN_FACTS, run_as, run_where_measured

MLPS = random_networks(6, seed=0)
MODULES = """
from torch import nn

def narrow():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def wide():
    return nn.Sequential(nn.Linear(8, 160), nn.ReLU(), nn.Linear(160, 4))

def half():
    return narrow().half()

def hangs():
    import time
    time.sleep(600)
"""


def chosen(predictor: Path | None, networks: Networks, batch_size: int | None = None, **facts: Any) -> Chosen:
    general, rest = chosen_predictor(predictor, networks, **facts)
    return general.of_setting(**rest, batch_size=batch_size)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "source_nets.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_torch_modules_are_predicted_as_torch_runs_them_and_every_one_is(slotool) -> None:
    both = ("--torch", "source_nets:narrow", "--torch", "source_nets:wide", "--input-shape", "8")
    finished = slotool("predict", *both, "--json")
    assert finished.exit_code == 0, finished.stderr
    document = finished.document
    assert document["setting"]["backend"] == "torch"
    assert document["this_machine"]["same"]
    assert [row["weights"] for row in document["predictions"]] == [8 * 16 + 16 + 68, 8 * 160 + 160 + 644]


def test_several_graph_files_are_all_predicted_and_the_first_line_says_as_what(slotool, folder: Path) -> None:
    for i, graph in enumerate(MLPS[:3]):
        write_graphs(folder / f"{i}.jsonl", [graph])
    files = [part for i in range(3) for part in ("--graph", folder / f"{i}.jsonl")]
    finished = slotool("predict", *files, "--json")
    assert [row["graph_id"] for row in finished.document["predictions"]] == [graph.id for graph in MLPS[:3]]
    shown = slotool("predict", *files)
    assert re.match(r"for this machine: cpu, torch, \d+ threads?, batch 1, machine ", shown.stdout)
    assert "a graph file names no framework; --backend chooses another" in shown.stdout.splitlines()[0]


def drawn(kind: str) -> OperatorGraph:
    from slotool.graphs.architectures import ARCHITECTURES

    return ARCHITECTURES[kind].graph((0,) * len(ARCHITECTURES[kind].sizes))


def test_keras_models_are_predicted_as_tensorflow_runs_them(slotool) -> None:
    assert chosen(None, Networks.of(["ResNet50", "VGG16"])).opened.setting.backend == "keras"
    assert chosen(None, Networks.of("a.onnx")).opened.setting.backend == "onnx"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--torch", "a:b", "--torch", "c:d", "--input-shape", "1", "--input-shape", "2", "--input-shape", "3"],
            "3 sha",
        ),
        (["--graph", "a.jsonl", "--backend", "tensorflow"], "no backend 'tensorflow'"),
        (
            ["--graph", "a.jsonl", "--backend", "torch", "--co-runners", "VGG16"],
            "ships co-located latencies of keras, not torch",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(slotool, arguments: list[str], sentence: str) -> None:
    finished = slotool("predict", *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())


def test_a_capture_that_hangs_ends_at_its_timeout(slotool) -> None:
    finished = slotool("predict", "--torch", "source_nets:hangs", "--input-shape", "8", "--timeout", "0.2")
    assert finished.exit_code == 124, finished.stderr


def test_half_precision_is_measured_or_said_and_has_no_interval(slotool, monkeypatch) -> None:
    half = "predict", "--torch", "source_nets:half", "--input-shape", "8", "--threads", 1
    finished = slotool(*half, "--json")
    assert finished.document["setting"]["precision"] == "fp16"
    assert "float16" not in finished.stderr
    finished = slotool(*half, "--precision", "float32")
    assert "it is float16, and is priced as the float32 that was measured" in finished.stderr
    finished = slotool(*half, "--sweep", "batch=1,2", "--json")
    assert finished.document["setting"]["precision"] == "fp16"
    run_where_measured("predictor-torch", monkeypatch)
    predictor = Path(__file__).parents[2] / "models" / "predictor-torch"
    finished = slotool("predict", predictor, "--torch", "source_nets:half", "--input-shape", "8")
    assert "no interval: it is float16, and no network of that form was measured" in finished.stdout


@pytest.mark.parametrize(
    ("facts", "setting"),
    [
        # Of variants the plain one; the beginning of a name, in any case.
        ({"device": "rtx4090", "precision": "amp"}, ("rtx4090", "torch")),
        ({"device": "RTX4090", "backend": "torch channels-last"}, ("rtx4090", "torch channels-last")),
        ({"device": "i9"}, ("i9-10940x", "torch.compile")),
        ({"precision": "amp", "device": "rtx3"}, ("rtx3090", "torch")),
    ],
)
def test_a_shipped_device_is_chosen_by_its_facts(facts: dict[str, str], setting: tuple[str, str]) -> None:
    own = chosen(None, Networks.of("a.onnx"), **facts).opened.setting
    assert (own.device, own.backend) == setting


@pytest.mark.parametrize(
    ("named", "facts", "sentence"),
    [
        ("predictor-devices", {}, "8 settings of .* fit: say device i9-10940x"),
        ("predictor-devices", {"precision": "amp"}, "6 settings .* fit: say device rtx4090, backend torch, or device"),
        ("predictor-devices", {"device": "rtx4090", "backend": "keras"}, "nearest .* device rtx4090, backend torch"),
        ("predictor-devices", {"device": "i9", "batch_size": 8}, "nearest .* device i9-10940x, .*batch size 1"),
        ("predictor-torch", {"backend": "keras"}, "slotool predict --backend keras"),
        ("predictor-torch", {"threads": 7}, "slotool predict --backend torch --threads 7"),
        ("predictor-torch", {"threads": 1}, "slotool predict --backend torch --threads 1"),
    ],
)
def test_facts_that_choose_no_setting_or_several_are_sentences(
    named: str, facts: dict[str, Any], sentence: str
) -> None:
    folder = Path(__file__).parents[2] / "models" / named
    with pytest.raises(ArgumentError, match=sentence):
        chosen(folder, Networks.of("a.onnx"), **facts)


COMBINATIONS = {
    "threads": (None, 1, 7),
    "batch_size": (None, 8),
    "device": (None, "cpu", "RTX4090", "cuda:0"),
    "backend": (None, "torch"),
    "precision": (None, "float32", "amp"),
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in COMBINATIONS.items()}))
@example({"threads": 1, "batch_size": 8})
def test_any_combination_is_answered_or_names_what_is_wrong(facts: dict[str, Any]) -> None:
    given_facts = {name: value for name, value in facts.items() if value is not None}
    found = answered(given_facts)
    if isinstance(found, ArgumentError):
        assert found.argument in given_facts
        return
    assert found.latency_s[0] > 0
    setting = found.document["setting"]
    assert all(setting[name] == facts[name] for name in ("threads", "batch_size", "backend") if name in given_facts)


def answered(facts: dict[str, Any]) -> Any:
    """Return the prediction, or the error that says why there is none."""
    try:
        return library.predict(MLPS[0], progress=None, **facts)
    except ArgumentError as error:
        return error


def test_a_batch_size_alone_is_what_a_sweep_over_it_says() -> None:
    swept = library.predict(MLPS[:2], threads=1, sweep="batch=8", progress=None)
    alone = library.predict(MLPS[:2], threads=1, batch_size=8, measure=False, progress=None)
    assert alone.latency_s == pytest.approx(swept.latency_s)
    predictor = Path(__file__).parents[2] / "models" / "predictor-torch"
    scaled = library.predict(MLPS[:2], predictor=predictor, batch_size=8, progress=None)
    assert np.isnan(scaled.interval_s).all()


def made_elsewhere(folder: Path, *, without: Sequence[str] = (), **facts: object) -> Path:
    """Return a predictor whose labels are of a machine with these facts, else as this one, some of them not stated."""
    from dataclasses import replace

    from slotool.artifacts import create_artifact
    from slotool.predictors.labels import join_labels
    from slotool.predictors.splits import paper_split
    from slotool.tables import LatencyTable

    there = {name: value for name, value in {**facts_with_speed(), **facts}.items() if name not in without}
    if without:
        del there["speed"]
    graphs = random_networks(200, seed=1)
    rows = [
        {"subject": graph.id, "samples_s": [seconds], "backend": "torch", "machine": machine_id(there)}
        for graph, seconds in zip(graphs, synthetic_latency_s(graphs).tolist(), strict=True)
    ]
    labelled = join_labels(LatencyTable.of(rows), graphs)
    trained = TrainedPredictor.train(ThreeTermPredictor(), labelled, paper_split(labelled.kinds, 0), seed=0)
    with create_artifact(folder / "p", "predictor", config={}) as writer:
        replace(trained, facts=there).write(writer)
    return folder / "p"


def test_another_machine_is_said_in_words_on_the_first_line_and_no_interval_is_given(slotool, folder: Path) -> None:
    write_graphs(folder / "some.jsonl", MLPS)
    elsewhere = made_elsewhere(folder, cpu="Imagined CPU 9000")
    shown = slotool("predict", elsewhere, "--graph", "some.jsonl", "--slo", "1s")
    assert shown.exit_code == 0, shown.stderr
    first = shown.stdout.splitlines()[0]
    assert "MEASURED ON ANOTHER MACHINE: processor Imagined CPU 9000 → " in first
    assert "no interval is valid here" in first
    assert "90 % interval" not in shown.stdout
    assert f"slotool adapt-predictor {elsewhere} few.parquet --graphs GRAPHS" in shown.stdout
    document = slotool("predict", elsewhere, "--graph", "some.jsonl", "--slo", "1s", "--json").document
    assert document["this_machine"]["same"] is False
    assert document["this_machine"]["differences"][0].startswith("processor Imagined CPU 9000 → ")
    for row in document["predictions"]:
        assert row["low_s"] is row["high_s"] is row["probability_within_slo"] is None
        assert row["latency_s"] > 0


def test_a_machine_whose_labels_state_less_is_similar_and_gives_no_interval(slotool, folder: Path) -> None:
    write_graphs(folder / "some.jsonl", MLPS)
    similar = made_elsewhere(folder, without=CPU_DETAILS)
    document = slotool("predict", similar, "--graph", "some.jsonl", "--json").document
    assert document["this_machine"] == {"same": False, "similar": True, "differences": [], "speed": None}
    assert all(row["low_s"] is None for row in document["predictions"])
    assert "MEASURED ON A SIMILAR MACHINE" in slotool("predict", similar, "--graph", "some.jsonl").stdout


@pytest.mark.parametrize(("times", "said"), [(1.0, False), (0.81, True)])
def test_a_machine_that_has_become_slower_is_said(slotool, folder: Path, monkeypatch, times: float, said: bool) -> None:
    write_graphs(folder / "some.jsonl", MLPS)
    run_as(UNKNOWN, monkeypatch)
    here = made_elsewhere(folder)
    slower = {name: seconds / times for name, seconds in UNKNOWN_FACTS["speed"].items()}
    run_as(UNKNOWN, monkeypatch, speed=slower)
    document = slotool("predict", here, "--graph", "some.jsonl", "--json").document
    assert document["this_machine"]["same"]
    assert document["this_machine"]["speed"] == pytest.approx(times)
    shown = slotool("predict", here, "--graph", "some.jsonl").stdout
    assert ("this machine runs at 0.81 × of the one measured" in shown) == said


def test_a_newer_kernel_is_the_same_machine(slotool, folder: Path) -> None:
    write_graphs(folder / "some.jsonl", MLPS)
    same = made_elsewhere(folder, system="Linux 9.9.9-of-another-day")
    document = slotool("predict", same, "--graph", "some.jsonl", "--json").document
    assert document["this_machine"]["same"] is True
    assert any(row["low_s"] is not None for row in document["predictions"])


def test_what_is_smaller_than_anything_measured_is_not_answered_in_nanoseconds(slotool, folder: Path) -> None:
    images = "from torch import nn\n\ndef tiny():\n    return nn.Conv2d(3, 2, 1)\n"
    (folder / "small_nets.py").write_text(images)
    arguments = ("--torch", "small_nets:tiny", "--input-shape", "3,2,2", "--device", "rtx4090", "--json")
    row = slotool("predict", *arguments).document["predictions"][0]
    assert row["latency_s"] > row["operators"] * 1e-6
    assert row["low_s"] is None


def test_networks_that_take_no_images_have_no_interval_of_devices_measured_with_images(slotool) -> None:
    arguments = ("--torch", "source_nets:wide", "--input-shape", "8", "--device", "rtx3090", "--json")
    row = slotool("predict", *arguments).document["predictions"][0]
    assert row["low_s"] is None
    assert "it takes vectors, and all networks measured take images" in row["no_interval"]


def test_of_several_networks_the_one_that_cannot_be_captured_is_named_and_the_others_are_answered(
    slotool, folder: Path
) -> None:
    tokens = "from torch import nn\n\ndef tokens():\n    return nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))\n"
    (folder / "token_nets.py").write_text(tokens)
    both = ("--torch", "source_nets:narrow", "--torch", "token_nets:tokens", "--input-shape", "8")
    done = slotool("predict", *both, "--input-dtype", "float32", "--json")
    assert done.exit_code == 1, done.stderr
    assert [row["name"] for row in done.document["predictions"]] == ["source_nets:narrow"]
    assert list(done.document["failed"]) == ["token_nets:tokens"]
    assert "it runs on int64: --input-dtype int64" in done.document["failed"]["token_nets:tokens"]
    assert "token_nets:tokens is left out" in done.stderr
    alone = slotool("predict", *both[2:], "--input-dtype", "float32")
    assert alone.exit_code == 2
    assert "--input-dtype int64" in alone.stderr


def test_what_a_device_spends_its_time_on_is_of_the_one_batch_size_that_it_is_predicted_for(
    slotool, folder: Path
) -> None:
    (folder / "image_nets.py").write_text("from torch import nn\n\ndef conv():\n    return nn.Conv2d(3, 64, 3)\n")
    arguments = ("--torch", "image_nets:conv", "--input-shape", "3,64,64", "--device", "rtx4090", "--explain")
    assert set(re.findall(r"batch \d+", slotool("predict", *arguments).stdout)) == {"batch 256"}
