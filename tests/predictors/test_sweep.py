"""Latency over batch sizes, threads, image sizes and sequence lengths: learnt, scaled, or unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import slotool as library
from slotool.commands.predictors.swept_prediction import SweptPrediction
from slotool.errors import ArgumentError, GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import peak_activation_bytes
from slotool.graphs.store import write_graphs
from slotool.machine import machine_facts, machine_id
from slotool.predictors.answers.sweep import Answer, SweepAxis
from slotool.predictors.features.type_costs import batch_cost_s
from slotool.predictors.labels import Setting, SettingsLabelled
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.explanation import BatchScaledPredictor
from slotool.predictors.training.many_settings import train_settings
from slotool.printable import duration
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, synthetic_latency_s

MLPS = random_networks(3, seed=0)
TORCH = Path(__file__).parents[2] / "models" / "predictor-torch"
CNN = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


class WordsAndNumbers(nn.Module):
    """Network of sequences and of numbers beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.other = nn.Linear(8, 4), nn.Linear(3, 4)

    def forward(self, words: Any, other: Any) -> Any:
        return self.words(words).mean(dim=1) + self.other(other)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A predictor of this machine, batch 1."""
    from slotool.artifacts import create_artifact
    from slotool.predictors.labels import join_labels
    from slotool.predictors.splits import paper_split

    graphs = random_networks(200, seed=1)
    rows = [
        {"subject": graph.id, "samples_s": [seconds], "backend": "torch", "device": "cpu", "machine": machine_id()}
        for graph, seconds in zip(graphs, synthetic_latency_s(graphs).tolist(), strict=True)
    ]
    labelled = join_labels(LatencyTable.of(rows), graphs)
    trained = TrainedPredictor.train(ThreeTermPredictor(), labelled, paper_split(labelled.kinds, 0), seed=0)
    folder = tmp_path_factory.mktemp("here") / "p"
    with create_artifact(folder, "predictor", config={}) as writer:
        replace(trained, facts=machine_facts()).write(writer)
    return folder


def swept(*networks: Any, **arguments: Any) -> SweptPrediction:
    found = library.predict(*networks, **arguments)
    assert isinstance(found, SweptPrediction)
    return found


@pytest.mark.parametrize(
    ("text", "fact", "values"),
    [
        ("batch=1:64", "batch", (1, 2, 4, 8, 16, 32, 64)),
        ("batch=3:20", "batch", (3, 6, 12, 20)),
        ("batch=4:4", "batch", (4,)),
        ("batch=8:1", "batch", (1, 2, 4, 8)),
        ("threads=1:4", "threads", (1, 2, 3, 4)),
        ("size=64:256:96", "size", (64, 160, 256)),
        ("length=16:64,7,16", "length", (7, 16, 32, 64)),
        ({"batch": [4, 1]}, "batch", (1, 4)),
    ],
)
def test_ranges_double_but_for_threads(text: Any, fact: str, values: tuple[int, ...]) -> None:
    assert SweepAxis.of(text) == SweepAxis(fact, values)


@pytest.mark.parametrize(
    "given",
    [
        *("batch", "batch=", "batch=0:4", "batch=1:8:0", "batch=1.5", "depth=1:2", "batch=1:9999:1"),
        *({"batch": []}, {"batch": [1], "size": [2]}, {"batch": [-1]}),
    ],
)
def test_what_is_no_range_is_a_sentence(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected FACT=VALUES|at most 256"):
        SweepAxis.of(given)


def test_a_batch_that_was_learnt_has_an_interval_and_others_say_what_they_rest_upon(here: Path) -> None:
    found = swept(MLPS[:2], predictor=here, sweep="batch=1:8", slo_s=1.0)
    assert [point.value for point in found.points] == 2 * [1, 2, 4, 8]
    alone = library.predict(MLPS[:2], predictor=here)
    assert found.latency_s[::4] == pytest.approx(alone.latency_s)
    assert found.interval_s[::4] == pytest.approx(alone.interval_s)
    for latency_s, rate in zip(found.latency_s.reshape(2, 4), found.throughput.reshape(2, 4), strict=True):
        assert (np.diff(latency_s) > 0).all()
        assert (np.diff(rate) > 0).all()
        assert latency_s[3] < 8 * latency_s[0]
    assert [point.learnt for point in found.points[:4]] == [True, False, False, False]
    assert "scaled from batch 1 by a roofline" in (found.points[1].no_interval or "")
    row = found.document["points"][3]
    assert row["peak_activation_bytes"] == peak_activation_bytes(MLPS[0], 8)
    assert "~8" in str(found)
    assert str(found).startswith("for cpu, torch, 1 thread, machine ")
    assert f"~{duration(float(format(found.latency_s[3], '.2g')))}" in str(found)
    assert found.document["largest_within_slo"][0]["value"] == 8
    assert found.document["largest_within_slo"][0]["likely_value"] == 1


def test_scaling_keeps_calls_and_weights_and_multiplies_the_rest(here: Path) -> None:
    graph = MLPS[0]
    one, two, four = (batch_cost_s(graph, size) for size in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one))
    assert (two < 2 * one).all()
    trained = TrainedPredictor.load(str(here))
    assert BatchScaledPredictor.of(trained, 1).predict([graph]).latency_s == pytest.approx(
        trained.predict([graph]).latency_s
    )


def of_batch_sizes(folder: Path, graphs: list[OperatorGraph], device: str, sizes: tuple[int, ...]) -> None:
    """Write a predictor whose labels have these batch sizes."""
    from slotool.artifacts import create_artifact

    settings = tuple(Setting("far", device, "torch", 1, size) for size in sizes)
    latency_s = np.column_stack([size**0.5 * synthetic_latency_s(graphs) for size in sizes])
    run = train_settings(SettingsLabelled(tuple(graphs), settings, latency_s))
    with create_artifact(folder, "predictor", config={}) as writer:
        run.trained.write(writer)


def test_a_batch_size_as_far_from_two_that_labels_had_is_scaled_from_the_larger(tmp_path: Path) -> None:
    graphs = random_networks(60, seed=2)
    of_batch_sizes(tmp_path / "p", graphs, "cpu", (1, 4))
    points = swept(graphs[0], predictor=tmp_path / "p", sweep="batch=1:4").points
    assert [point.learnt for point in points] == [True, False, True]
    assert "scaled from batch 4" in (points[1].no_interval or "")


def test_batch_sizes_that_labels_had_are_answered_from_these(tmp_path: Path) -> None:
    graphs = random_networks(60, seed=2)
    of_batch_sizes(tmp_path / "p", graphs, "chip", (1, 8))
    found = library.predict(graphs[0], predictor=tmp_path / "p", device="chip", sweep="batch=1,8")
    assert found.latency_s[1] / found.latency_s[0] == pytest.approx(8**0.5, rel=0.1)
    assert np.isfinite(found.interval_s).all()
    found = swept(graphs[0], predictor=tmp_path / "p", device="chip", sweep="batch=1:8")
    assert np.isfinite(found.latency_s).tolist() == [True, False, False, True]
    assert "no labels of device chip, batch size 2" in (found.points[1].why_not or "")


def test_threads_that_no_label_had_are_not_made_up() -> None:
    found = swept(MLPS[0], predictor=TORCH, sweep="threads=1:2")
    assert np.isnan(found.latency_s).tolist() == [True, False]
    assert "slotool predict --backend torch --threads 1" in (found.points[0].why_not or "")
    with pytest.raises(ArgumentError, match="has no labels of threads 7"):
        library.predict(MLPS[0], predictor=TORCH, sweep="threads=7")


def test_batches_of_this_machine_are_measured() -> None:
    found = swept(MLPS[0], threads=1, sweep="batch=1:4")
    assert all(point.learnt for point in found.points)
    assert np.isfinite(found.latency_s).all()
    # Sums of operators have no training networks to be unlike.
    doubtful = replace(found, points=[replace(point, outside="it is noisy") for point in found.points])
    assert doubtful.warnings == [f"{found.points[0].name}: it is noisy"]


def test_what_does_not_fit_here_is_not_predicted_nor_written(tmp_path: Path) -> None:
    swept_here = swept(
        CNN, backend="torch", threads=1, input_shape=(3, 16, 16), sweep={"batch": [1, 10**9]}, slo_s=1e9,
        out=tmp_path / "t.parquet",
    )  # fmt: skip
    assert [point.why_not is None for point in swept_here.points] == [True, False]
    assert "GiB" in str(swept_here.points[1].why_not)
    assert swept_here.largest[0]["value"] == 1
    assert (swept_here.exit_code, LatencyTable.load(tmp_path / "t.parquet").rows["batch_size"].tolist()) == (1, [1])


def test_sizes_and_lengths_are_captured_again_and_one_that_cannot_run_says_why() -> None:
    found = swept(CNN, input_shape=(3, 16, 16), sweep="size=2,16,32")
    assert found.exit_code == 1
    assert np.isnan(found.latency_s).tolist() == [True, False, False]
    small, large = (point.graph for point in found.points[1:])
    assert small is not None
    assert large is not None
    assert large.flops > small.flops
    assert "[3, 2, 2]" in (found.points[0].why_not or "")
    sequence = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    found = swept(sequence, input_shape=(4, 8), sweep="length=16,64")
    assert found.exit_code == 0
    assert [point.graph.operators[0].shape for point in found.points if point.graph] == [(16, 8), (64, 8)]
    together = swept(WordsAndNumbers(), input_shape={"words": (4, 8), "other": (3,)}, sweep="length=16,64")
    shapes = [[op.shape for op in point.graph.operators[:2]] for point in together.points if point.graph]
    assert shapes == [[(16, 8), (3,)], [(64, 8), (3,)]]


@pytest.mark.parametrize("sweep", ["batch=1:4", "threads=1:2", "size=16:32"])
def test_networks_that_cannot_be_captured_are_left_out_and_named(sweep: str, tmp_path: Path) -> None:
    asked = {"words": nn.Embedding(8, 4), "image": CNN, "rows": nn.Bilinear(2, 2, 2)}
    arguments: dict[str, Any] = {"input_shape": (3, 16, 16), "input_dtype": "float32", "sweep": sweep}
    found = swept(asked, **arguments, family="mine", out=tmp_path / "t.parquet")
    assert {point.name for point in found.points} == {"image"}
    assert list(found.document["failed"]) == ["words", "rows"]
    assert [line.partition(" is left out: ")[0] for line in found.warnings[:2]] == ["words", "rows"]
    assert "int64" in found.warnings[0]
    assert set(LatencyTable.load(tmp_path / "t.parquet").rows["point"]) == {"version=image"}
    del asked["image"]
    with pytest.raises(GraphError, match=r"none of 2 networks can be captured: words: .*int64.*; rows: "):
        swept(asked, **arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"networks": MLPS[0], "sweep": "size=8"}, "the size of models alone"),
        ({"networks": CNN, "input_shape": (3, 16, 16), "sweep": "length=8"}, "a length is that of a sequence"),
        ({"networks": MLPS[0], "sweep": "batch=1:4", "explain": True}, "neither"),
        ({"networks": MLPS[0], "sweep": "batch=1:4", "batch_size": 1}, "leave one out"),
    ],
)
def test_a_sweep_that_cannot_be_is_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        library.predict(**arguments)


def test_the_command_prints_and_writes_it(slotool: Any, here: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "some.jsonl", MLPS[:2])
    asked = ("predict", here, "--graph", tmp_path / "some.jsonl", "--sweep", "batch=1:4", "--slo", "500us")
    shown = slotool(*asked, "-o", tmp_path / "a.parquet")
    assert shown.exit_code == 0, shown.stderr
    assert "P(≤ 500 µs)" in shown.stdout
    assert "largest batch predicted to keep" in shown.stdout
    rows = LatencyTable.load(tmp_path / "a.parquet").rows
    assert sorted(rows["batch_size"]) == [1, 1, 2, 2, 4, 4]
    assert rows["predicted"].all()
    assert len(slotool(*asked, "--json").document["points"]) == 6


def test_a_latency_without_a_unit_is_refused(slotool: Any, tmp_path: Path) -> None:
    write_graphs(tmp_path / "some.jsonl", MLPS[:1])
    finished = slotool("predict", "--graph", tmp_path / "some.jsonl", "--slo", "1")
    assert finished.exit_code == 2
    assert "'1' names no unit" in finished.stderr


def test_what_could_not_be_timed_is_neither_listed_nor_written(
    slotool: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graphs(tmp_path / "some.jsonl", MLPS[:2])
    command = (
        "predict",
        here,
        "--graph",
        tmp_path / "some.jsonl",
        "--sweep",
        "batch=1:2",
        "-o",
        tmp_path / "t.parquet",
    )
    for untimed, names in (([True, True], []), ([False, True], [MLPS[0].id])):
        monkeypatch.setattr(Answer, "untimed", untimed)
        finished = slotool(*command, "--json")
        assert finished.exit_code == 1, finished.stderr
        assert len(finished.document["failed"]) == 2 - len(names)
        assert len(finished.document["points"]) == 2 * len(names)
        assert (tmp_path / "t.parquet").exists() == bool(names)
    assert LatencyTable.load(tmp_path / "t.parquet").rows["subject"].tolist() == names * 2
