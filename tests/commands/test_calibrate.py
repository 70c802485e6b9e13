"""``slotool.calibrate``: a few networks measured here, and the predictor that ``predict`` uses from then on."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import slotool as library
from slotool.commands.predictors.calibrated_predictors import Place, cache_folder, calibrated_here
from slotool.commands.predictors.calibration_networks import calibration_networks, part_of, spread_over_kinds
from slotool.errors import AlreadyExistsError, ArgumentError
from slotool.graphs.architectures import ARCHITECTURES
from slotool.graphs.store import write_graphs
from slotool.predictors.base import Examples
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.transfer.adaptation import AS_IS, FACTOR, HeldOut, folds_of, hold_out
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.testing.predictors import random_networks

MLPS = random_networks(8, seed=0)
FITTED = ThreeTermPredictor()
FITTED.fit(Examples(MLPS, np.linspace(1e-5, 1e-4, len(MLPS))))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_predict_uses_what_was_calibrated_and_says_what_it_would_cost_before(
    cache: Path, tmp_path: Path, slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graphs(tmp_path / "own.jsonl", MLPS)
    before = slotool("predict", "--graph", tmp_path / "own.jsonl").stdout
    # The shipped one may have learnt a machine like this one.
    elsewhere = not slotool("predict", "--graph", tmp_path / "own.jsonl", "--json").document["this_machine"]["same"]
    assert ("to learn this machine takes two minutes: slotool calibrate --backend torch" in before) == elsewhere
    # Other tests run beside this one, and four labels are few: whether it is good is not what is asked here.
    monkeypatch.setattr(import_module("slotool.commands.predictors.calibrate"), "MAX_NOISE", -1.0)
    options = ("--threads", 1, "--samples", 4, "--minutes", 0.4)
    first = slotool("calibrate", tmp_path / "own.jsonl", *options, "--json")
    assert first.exit_code == 1
    assert first.document["artifact"] is None
    assert first.document["refused"]
    assert not Place.here("torch", 1).folder.exists()
    refused = slotool("predict", "--graph", tmp_path / "own.jsonl", "--threads", 2).stdout
    assert "this machine was calibrated" not in refused
    refused = slotool("predict", "--graph", tmp_path / "own.jsonl", "--json").document["calibration_refused"]
    assert f"was not kept because {first.document['refused']}" in refused
    assert "slotool calibrate --backend torch --threads 1 --keep-anyway keeps it as it was measured" in refused
    measured = Place.here("torch", 1).labels.read_bytes()
    # From the same labels.
    document = slotool(
        "calibrate", tmp_path / "own.jsonl", *options[:4], "--minutes", 0.26, "--keep-anyway", "--json"
    ).document
    assert document["used_by_predict"]
    assert len(document["networks"]) == len(document["adapted_to"]) == 4
    assert Place.here("torch", 1).labels.read_bytes() == measured
    assert Path(document["artifact"]).is_relative_to(cache)
    # No other predictor of this machine is there, so that of one thread answers also where more cores are given.
    after = slotool("predict", "--graph", tmp_path / "own.jsonl", "--json").document
    assert after["this_machine"]["same"]
    assert after["calibration_refused"] is None
    assert after["setting"] == document["setting"]
    assert after["artifact"] == Path(document["artifact"]).name
    assert re.search(
        r"calibrated on this machine on 20\d\d-\d\d-\d\d: held-out error \d+%, \d of 4 labels unstable",
        after["artifact_why"],
    )
    again = slotool("calibrate", tmp_path / "own.jsonl", *options)
    assert again.exit_code == 2
    assert "this machine is calibrated already for torch, 1 thread; add --force" in again.stderr


def test_what_is_no_better_or_of_a_noisy_machine_is_not_kept_unasked(tmp_path: Path) -> None:
    found = library.calibrate(
        MLPS, threads=1, samples=3, minutes=0.35, out=tmp_path / "here", keep_anyway=True, progress=None
    )
    assert not found.by_default
    assert f"slotool predict {tmp_path / 'here'} uses it" in repr(found)
    errors = {name: np.full(3, 0.1) for name in found.run.held_out.log_errors}
    labelled = replace(found.run.labelled, noise_s=0.02 * found.run.labelled.latency_s)
    run = replace(found.run, labelled=labelled, held_out=HeldOut({**errors, AS_IS: np.full(3, 0.5)}, np.full(3, 0.1)))
    steady = replace(found, run=run)
    steady.profile.document["cores_busy_with_others"] = 0.0
    assert steady.refused is None
    assert not steady.warnings
    steady.profile.document["cores_busy_with_others"] = 1.5
    assert steady.refused == "the machine was too noisy: other processes kept 1.5 cores busy, and 0.2 are allowed"
    assert "not kept, because" in replace(steady, out=None).warnings[0]
    assert "kept although" in steady.warnings[0]
    steady.profile.document["cores_busy_with_others"] = 0.0
    shaky = replace(run, labelled=replace(labelled, noise_s=0.2 * labelled.latency_s))
    refused = replace(steady, run=shaky).refused
    assert refused == "the machine was too noisy: labels are off by 20.0% on average, and 10% are allowed"
    once = replace(run, labelled=replace(labelled, noise_s=np.full(3, np.nan)))
    refused = replace(steady, run=once).refused
    assert refused == "the time was up before any label was repeated, which tells how sure they are"
    harmed = replace(run, held_out=HeldOut({**errors, AS_IS: np.full(3, 0.05)}, np.full(3, 0.1)))
    assert "it is no better than the predictor it started from" in (replace(steady, run=harmed).refused or "")


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"minutes": 0.1}, "minutes"),
        ({"minutes": float("nan")}, "minutes"),
        ({"networks": MLPS[:2]}, "networks"),
        ({"samples": 2}, "samples"),
        ({"threads": 100_000}, "threads"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_measured(arguments, argument: str, cache: Path) -> None:
    with pytest.raises(ArgumentError) as raised:
        library.calibrate(**arguments)
    assert raised.value.argument == argument
    assert not cache.exists()


def test_an_output_is_not_replaced_unasked(tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError, match="it exists already"):
        library.calibrate(MLPS, out=tmp_path)
    with pytest.raises(ArgumentError, match="samples"):
        library.calibrate(MLPS, samples=1, out=tmp_path)


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ArgumentError, match=r"cannot be written .*set SLOTOOL_CACHE_DIR, or name a folder with --out"):
        library.calibrate(MLPS)


def test_predictors_lie_apart_by_setting_and_machine(cache: Path) -> None:
    assert calibrated_here("torch") is None
    for threads in (1, 4096):
        Place.here("torch", threads).folder.mkdir(parents=True)
    assert calibrated_here("torch", 4096) == Place.here("torch", 4096).folder
    assert calibrated_here("torch", 2048) is None
    assert calibrated_here("keras") is None
    elsewhere = replace(Place.here("onnx", 1), machine="0" * 12)
    elsewhere.folder.mkdir(parents=True)
    assert calibrated_here("onnx") is None
    assert Place.here("my.module:Backend", 1, "cuda:0").folder.parent == Place.here("torch", 1).folder.parent


def test_the_cache_is_where_the_xdg_specification_has_it() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/var/caches"}) == Path("/var/caches/slotool")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "slotool"
    assert cache_folder({"SLOTOOL_CACHE_DIR": "/here", "XDG_CACHE_HOME": "/var/caches"}) == Path("/here")


def test_candidates_are_of_every_kind_and_always_the_same() -> None:
    graphs = calibration_networks("torch")
    assert len({graph.id for graph in graphs}) == len(graphs) > 300
    assert {graph.kind for graph in graphs} == {"mlp", "cnn", *ARCHITECTURES}
    assert {part_of(graph) for graph in graphs} == {"mlp", "cnn", "small", *ARCHITECTURES}
    assert [graph.id for graph in graphs] == [graph.id for graph in calibration_networks("torch")]


def test_candidates_for_keras_have_depthwise_convolutions_as_keras_writes_them_too() -> None:
    plain, graphs = (
        [each for each in calibration_networks(name) if each.kind == "convnext"] for name in ("torch", "keras")
    )
    written = graphs[len(plain) :]
    assert graphs[: len(plain)] == plain
    assert {part_of(graph) for graph in written} == {"groups"}
    for graph in written:
        assert "DepthwiseConv2D" not in {operator.op for operator in graph.operators}
        assert (graph.flops, graph.weights) in {(each.flops, each.weights) for each in plain}


def test_what_is_measured_is_spread_over_kinds() -> None:
    graphs = [graph for graph in calibration_networks("torch") if graph.kind in ("cnn", "mlp", "bert", "vit")]
    counts = Counter(part_of(graph) for graph in spread_over_kinds(FITTED, graphs, 26, seed=0))
    assert counts == {"cnn": 12, "small": 6, "mlp": 4, "bert": 2, "vit": 2}


def test_labels_of_a_kind_are_held_out_together() -> None:
    graphs = [*random_networks(4, seed=1), *random_networks(4, seed=2)]
    log_s = np.log([1e-3] * 4 + [2e-3] * 4)
    folds = folds_of(8, groups=["a"] * 4 + ["b"] * 4)
    assert [rows.tolist() for rows in folds] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [rows.tolist() for rows in folds_of(3)] == [[0], [1], [2]]
    assert sorted(row for rows in folds_of(40) for row in rows) == [*range(40)]
    # The scale of the others alone: each group is off by the factor between the two.
    assert hold_out(AdaptedPredictor(FITTED).networks(graphs), log_s, folds).mape(FACTOR) > 0.4
