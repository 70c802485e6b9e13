"""Predictors evaluated on other measurements, as a person runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.artifacts import create_artifact
from slotool.graphs import OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.predictors.labels import LabelledSet, join_labels
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.training.one_setting import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, synthetic_latency_s

MLPS, CNNS = random_networks(240, seed=0), random_networks(140, seed=0, kind="cnn")
GRAPHS = MLPS + CNNS


def latency_table(graphs: list[OperatorGraph], **columns: object) -> LatencyTable:
    """Two rounds of three samples each, which differ by some 4 %."""
    rng = np.random.default_rng(0)
    rounds = np.repeat(rng.lognormal(0, 0.03, (len(graphs), 2)), 3, axis=1)
    samples = synthetic_latency_s(graphs)[:, None] * rounds
    return LatencyTable.of(
        {"subject": g.name or g.id, "samples_s": s, **columns} for g, s in zip(graphs, samples, strict=True)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    write_graphs(folder / "graphs.jsonl", GRAPHS)
    latency_table(GRAPHS).save(folder / "latency.parquet")
    return folder


@pytest.fixture(scope="module")
def labelled() -> LabelledSet[OperatorGraph]:
    return join_labels(latency_table(GRAPHS), GRAPHS)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory, labelled: LabelledSet[OperatorGraph]) -> Path:
    out = tmp_path_factory.mktemp("predictor") / "p"
    train_and_score([AdditivePredictor()], labelled, paper_split(labelled.kinds, 0)).save(out, config={}, seed=0)
    return out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("subject,latency_s\n", "the table has no rows"),
        (f"subject,latency_s\n{MLPS[0].id},0.1\n", "too few labelled graphs to split (1 mlp)"),
        (f"subject,latency_s\n{MLPS[0].id},0\n", "must be greater than 0"),
        (f"subject,latency_s\n{MLPS[0].id},nan\n", "row 1, column latency_s"),
        ("subject,latency_s\nnobody,1\n", "none of the 380 graphs has a label"),
    ],
)
def test_tables_that_cannot_be_learnt_from(slotool, folder: Path, tmp_path: Path, text, sentence) -> None:
    (tmp_path / "t.csv").write_text(text)
    inputs = (tmp_path / "t.csv", "-g", folder / "graphs.jsonl", "-o", tmp_path / "s", "--model", "additive")
    finished = slotool("train-predictor", *inputs)
    assert finished.exit_code == 2
    assert sentence in finished.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "t.csv"]


def test_a_predictor_on_networks_of_another_setting(slotool, predictor: Path, tmp_path: Path) -> None:
    fresh = [
        OperatorGraph.from_document({**graph.document(), "name": f"net-{i}"})
        for i, graph in enumerate(random_networks(30, seed=9) + random_networks(12, seed=9, kind="cnn"))
    ]
    write_graphs(tmp_path / "g.parquet", fresh)
    latency_table(fresh, backend="keras").save(tmp_path / "t.parquet")
    inputs = (predictor, "--latency", tmp_path / "t.parquet", "--graphs", tmp_path / "g.parquet")
    finished = slotool("evaluate-predictor", *inputs, "-o", tmp_path / "p.parquet", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert "backend keras instead of unknown" in " ".join(finished.stderr.split())
    scores = finished.document["scores"]
    assert {name: score["n"] for name, score in scores.items() if "training" not in name} == {
        "cnn": 12,
        "mlp": 30,
        "all": 42,
    }
    assert finished.document["furthest_off"][0]["network"].startswith("net-")
    written = PredictionsTable.load(tmp_path / "p.parquet")
    assert written.scores() == scores["all"]
    assert written.provenance["setting"]["backend"] == "keras"
    text = slotool("evaluate-predictor", *inputs).stdout
    for part in ("noise floor", "Furthest off", "MAPE", "floor s"):
        assert part in text


def test_evaluate_predictor_takes_of_a_mixed_table_the_rows_of_the_predictors_setting(
    slotool, predictor, tmp_path
) -> None:
    write_graphs(tmp_path / "g.parquet", GRAPHS[:60])
    tables = [latency_table(GRAPHS[:60], threads=n).rows for n in (1, 4)]
    for name, frames in (("mixed", tables), ("own", tables[:1])):
        LatencyTable.of(row for frame in frames for row in frame.to_dict("records")).save(tmp_path / f"{name}.parquet")
    graphs = ("--graphs", tmp_path / "g.parquet", "--json")
    mixed, own = (
        slotool("evaluate-predictor", predictor, "--latency", tmp_path / f"{name}.parquet", *graphs).document["scores"]
        for name in ("mixed", "own")
    )
    assert mixed == own
    LatencyTable.of({**row, "threads": n} for n in (2, 4) for row in tables[0].to_dict("records")).save(
        tmp_path / "strange.parquet"
    )
    finished = slotool("evaluate-predictor", predictor, "--latency", tmp_path / "strange.parquet", *graphs)
    assert finished.exit_code == 2
    assert "no measured row (status ok, point full, alone, threads 1)" in finished.stderr


def test_evaluate_predictor_needs_a_predictor_and_measured_networks(
    slotool, predictor: Path, folder: Path, tmp_path: Path
) -> None:
    with create_artifact(tmp_path / "family", "family", config={}) as writer:
        writer.write_json("a.json", {})
    measured = ("--latency", folder / "latency.parquet", "--graphs", folder / "graphs.jsonl")
    for arguments, sentence in (
        ((predictor,), "Missing option '--latency'"),
        ((predictor, *measured[:2]), "--graphs: give the graph files of the networks or --networks timm"),
        ((tmp_path / "family", *measured, "-o", "x"), "this is a family artifact, expected predictor"),
        ((predictor, *measured, "-o", folder / "latency.parquet"), "is also an input"),
    ):
        finished = slotool("evaluate-predictor", *arguments)
        assert finished.exit_code == 2
        assert sentence in " ".join(finished.stderr.replace("│", " ").split())
