"""Studies of predictors, and predictors evaluated on other measurements, as a person runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.artifacts import create_artifact, open_artifact
from slotool.graphs import OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.predictors.labels import LabelledSet, join_labels
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.linear import LinearPredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.training.selection import train_and_score
from slotool.predictors.training.study import StudyTable, curve_scores, plan_tasks, run_study, steps_left, whole_scores
from slotool.profiling.journal import Journal
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, synthetic_latency_s

MLPS, CNNS = random_networks(240, seed=0), random_networks(140, seed=0, kind="cnn")
GRAPHS = MLPS + CNNS
MAKERS = {"linear": LinearPredictor, "additive": AdditivePredictor}
SIMPLE = ("--models", "linear,additive")
RANDOM = ("--protocols", "random")


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


def test_a_study_scores_every_predictor_under_every_protocol(slotool, folder: Path, tmp_path: Path) -> None:
    inputs = (
        folder / "latency.parquet",
        "-g",
        folder / "graphs.jsonl",
        "-o",
        tmp_path / "s",
        *SIMPLE,
        "--seeds",
        2,
        *RANDOM,
    )
    asked = ("--protocols", "random,depth,width,family", "--curve", "60,120,all", "--json")
    finished = slotool("evaluate-predictor", "--latency", *inputs, *asked)
    assert finished.exit_code == 0, finished.stderr
    document = finished.document
    whole = whole_scores(document["scores"])
    splits = [("random", s) for s in ("mlp", "cnn", "all")] + [("depth", "all"), ("width", "all")]
    splits += [("family", "cnn unseen"), ("family", "mlp unseen")]
    done = {(score["protocol"], score["split"]) for score in whole if score["predictor"] == "additive"}
    assert done == set(splits)
    refused = {(r["protocol"], r["split"], r["predictor"]) for r in document["refused"]}
    assert ("depth", "all", "linear") in refused, "the flattened form has no room for deeper networks"
    assert all(score["seeds"] == 2 and score["floor"]["mape"] > 0.005 for score in whole)
    points = [score for score in curve_scores(document["scores"]) if score["predictor"] == "additive"]
    assert [score["labels"] for score in points][:2] == [60, 120]
    assert len({score["n"] for score in points}) == 1
    table = StudyTable.load(open_artifact(tmp_path / "s", "predictor-study").file("predictions.parquet"))
    assert table.scores() == document["scores"]
    assert list(tmp_path.iterdir()) == [tmp_path / "s"], "the journal has gone"
    again = slotool("evaluate-predictor", "--latency", *inputs)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_a_person_reads_the_papers_table_the_relative_one_and_the_floor(slotool, folder: Path, tmp_path: Path) -> None:
    inputs = (folder / "latency.parquet", "-g", folder / "graphs.jsonl", "-o", tmp_path / "s", *SIMPLE, *RANDOM)
    finished = slotool("evaluate-predictor", "--latency", *inputs, "--protocols", "random,depth", "--curve", "60,all")
    assert finished.exit_code == 0, finished.stderr
    for text in ("label deviation s", "floor s", "MAE/mean", "Spearman", "noise floor", "Learning curve", "±10 %"):
        assert text in finished.stdout
    assert "linear could not do depth/all: graph" in " ".join(finished.stdout.split())
    assert max(len(line) for line in finished.stdout.splitlines() if "│" in line) <= 120


def test_an_interrupted_study_goes_on_where_it_was(labelled: LabelledSet[OperatorGraph], tmp_path: Path) -> None:
    tasks = plan_tasks(labelled, ["random", "family"], [0], [60])
    journal = tmp_path / "s.journal"
    told: list[str] = []

    def interrupt(what: str) -> None:
        told.append(what)
        if len(told) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Journal(journal, {}) as first:
        run_study(labelled, tasks, MAKERS, first, progress=interrupt)
    with Journal(journal, {}) as second:
        assert len(second.rows) == 4
        left = steps_left(tasks, MAKERS, second)
        told.clear()
        resumed = run_study(labelled, tasks, MAKERS, second, progress=told.append)
    assert len(told) == left == len(tasks) * len(MAKERS) - 4
    with Journal(tmp_path / "t.journal", {}) as fresh:
        whole = run_study(labelled, tasks, MAKERS, fresh)
    assert whole.table.rows.equals(resumed.table.rows)
    assert whole.refused == resumed.refused


def test_a_predictor_is_scored_alike_alone_and_in_a_study(labelled: LabelledSet[OperatorGraph], tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", {}) as journal:
        study = run_study(labelled, plan_tasks(labelled, ["random"], [0]), MAKERS, journal)
    alone = train_and_score([LinearPredictor()], labelled, paper_split(labelled.kinds, 0)).held_out["linear"].scores()
    (among,) = (s for s in study.table.scores() if (s["split"], s["predictor"]) == ("all", "linear"))
    # A study holds no kinds out, so intervals are given to fewer networks in it.
    assert {(name, str(v)) for name, v in alone.items() if not name.startswith("interval_")} <= {
        (name, str(v)) for name, v in among.items()
    }


def test_a_study_is_drawn(slotool, folder: Path, tmp_path: Path) -> None:
    inputs = (folder / "latency.parquet", "-g", folder / "graphs.jsonl", "-o", tmp_path / "s", *SIMPLE, *RANDOM)
    assert (
        slotool(
            "evaluate-predictor", "--latency", *inputs, "--protocols", "random,depth", "--curve", "60,all"
        ).exit_code
        == 0
    )
    finished = slotool("report", tmp_path / "s", "-o", tmp_path / "r.html", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert [plot["id"] for plot in finished.document["plots"]] == [
        "predicted-s-additive",
        *(f"errors-s-random-{split}" for split in ("mlp", "cnn", "all")),
        "errors-s-depth-all",
        "curve-s-mape",
        "curve-s-mae-over-mean",
    ]
    assert all(Path(plot["png"]).stat().st_size > 10_000 for plot in finished.document["plots"])
    assert any("lowest mean relative error" in what for what in finished.document["figures"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--curve", "100000"], "cannot have a point at 100,000 networks"),
        (["--curve", "5,all"], "cannot have a point at 5 networks: it needs 36 at least"),
        (["--curve", "many"], "--curve"),
        (["--protocols", "by-colour"], "'by-colour' is none of random, depth, width, family"),
        (["--models", "oracle"], "'oracle' is none of linear"),
        (["--depths", "0"], "--depths: 0 is too few, at least 1"),
        (["--backend", "keras"], "no measured row"),
    ],
)
def test_studies_that_cannot_be(slotool, folder: Path, tmp_path: Path, options: list[str], sentence: str) -> None:
    inputs = (folder / "latency.parquet", "-g", folder / "graphs.jsonl", "-o", tmp_path / "s", *RANDOM)
    finished = slotool("evaluate-predictor", "--latency", *inputs, *options)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("subject,latency_s\n", (), "the table has no rows"),
        (f"subject,latency_s\n{MLPS[0].id},0.1\n", (), "too few labelled graphs to split (1 mlp)"),
        (f"subject,latency_s\n{MLPS[0].id},0\n", (), "must be greater than 0"),
        (f"subject,latency_s\n{MLPS[0].id},nan\n", (), "row 2, column latency_s"),
        ("subject,latency_s\nnobody,1\n", (), "none of the 380 graphs has a label"),
        (
            "subject,latency_s\n" + "".join(f"{graph.id},0.1\n" for graph in MLPS),
            ("--protocols", "family"),
            "the family protocol leaves one kind of network out, but all 240 are mlp",
        ),
    ],
)
def test_tables_that_cannot_be_studied(slotool, folder: Path, tmp_path: Path, text, options, sentence) -> None:
    (tmp_path / "t.csv").write_text(text)
    inputs = (tmp_path / "t.csv", "-g", folder / "graphs.jsonl", "-o", tmp_path / "s", *RANDOM)
    finished = slotool("evaluate-predictor", "--latency", *inputs, *options)
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
    assert "mixes threads 2, 4, and none is the predictor's 1" in finished.stderr


def test_evaluate_predictor_needs_a_predictor_and_measured_networks(
    slotool, predictor: Path, folder: Path, tmp_path: Path
) -> None:
    with create_artifact(tmp_path / "family", "family", config={}) as writer:
        writer.write_json("a.json", {})
    measured = ("--latency", folder / "latency.parquet", "--graphs", folder / "graphs.jsonl")
    for arguments, sentence in (
        ((predictor,), "Missing option '--latency'"),
        ((predictor, *measured[:2]), "Missing option '--graphs'"),
        ((tmp_path / "family", *measured, "-o", "x"), "this is a family artifact, expected predictor"),
        ((predictor, *measured, "-o", folder / "latency.parquet"), "is also an input"),
    ):
        finished = slotool("evaluate-predictor", *arguments)
        assert finished.exit_code == 2
        assert sentence in " ".join(finished.stderr.replace("│", " ").split())
