"""``slotool.calibrate``: a few networks measured here, and the predictor that ``predict`` uses from then on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import slotool as library
from slotool.api.calibrated_predictors import Place, cache_folder, calibrated_here
from slotool.api.calibration_networks import calibration_networks
from slotool.errors import AlreadyExistsError, ArgumentError
from slotool.graphs.store import write_graphs
from slotool.testing.predictors import random_networks

MLPS = random_networks(8, seed=0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_predict_uses_what_was_calibrated_and_says_what_it_would_cost_before(
    cache: Path, tmp_path: Path, slotool
) -> None:
    write_graphs(tmp_path / "own.jsonl", MLPS)
    before = slotool("predict", "--graph", tmp_path / "own.jsonl")
    assert "to learn this machine takes two minutes: slotool calibrate --backend torch" in before.stdout
    options = ("--threads", 1, "--samples", 4, "--minutes", 0.5)
    document = slotool("calibrate", tmp_path / "own.jsonl", *options, "--json").document
    assert document["used_by_predict"]
    assert len(document["networks"]) == len(document["adapted_to"]) == 4
    assert Path(document["artifact"]).is_relative_to(cache)
    # No other predictor of this machine is there, so that of one thread answers also where more cores are given.
    after = slotool("predict", "--graph", tmp_path / "own.jsonl", "--json").document
    assert after["this_machine"]["same"]
    assert after["setting"] == document["setting"]
    assert after["artifact"] == Path(document["artifact"]).name
    assert "calibrated on this machine" in after["artifact_why"]
    again = slotool("calibrate", tmp_path / "own.jsonl", *options)
    assert again.exit_code == 2
    assert "this machine is calibrated already for torch, 1 threads; --force measures again" in again.stderr


def test_a_noisy_machine_is_said(tmp_path: Path) -> None:
    found = library.calibrate(MLPS, threads=1, samples=3, minutes=0.5, out=tmp_path / "here", progress=None)
    assert not found.by_default
    assert f"slotool predict {tmp_path / 'here'} uses it" in repr(found)
    steady = replace(found, run=replace(found.run, labelled=replace(found.run.labelled, unstable=0)))
    steady.profile.document["cores_busy_with_others"] = 0.0
    assert not steady.noisy
    assert not steady.warnings
    steady.profile.document["cores_busy_with_others"] = 1.5
    assert "too noisy: 0 of 3 labels differ by more than ± 5% when repeated, and other" in steady.warnings[0]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"minutes": 0.1}, "minutes"),
        ({"minutes": float("nan")}, "minutes"),
        ({"networks": MLPS[:2]}, "networks"),
        ({"samples": 2}, "samples"),
        ({"threads": 100_000}, "threads"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_measured(arguments, argument: str, cache: Path) -> None:
    with pytest.raises(ArgumentError) as raised:
        library.calibrate(**arguments)
    assert raised.value.argument == argument
    assert not cache.exists()


def test_an_output_is_not_replaced_unasked(tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError, match="it exists already for onnx"):
        library.calibrate(MLPS, backend="onnx", out=tmp_path)


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
    graphs = calibration_networks()
    assert len({graph.id for graph in graphs}) > 300
    assert {graph.kind for graph in graphs} == {"mlp", "cnn"}
    assert [graph.id for graph in graphs] == [graph.id for graph in calibration_networks()]
