"""Co-located networks: labels, splits, predictions of synthetic and of shipped measurements, and the commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.colocation.protocols import colocated_splits, protocol_score
from slotool.artifacts import open_artifact
from slotool.errors import ArtifactError, InputError, TableError
from slotool.graphs.store import read_graphs, write_graphs
from slotool.machine import machine_id
from slotool.predictors.base import COLOCATED, Examples
from slotool.predictors.colocated.artifact import PredictorArtifact
from slotool.predictors.colocated.labels import is_colocated, join_colocated, random_colocated_split
from slotool.predictors.colocated.sharing import SharingPredictor, fair_s
from slotool.predictors.colocations import Colocation
from slotool.predictors.labels import Setting
from slotool.predictors.registry import names_of
from slotool.predictors.solo.linear import LinearPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.training.one_setting import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import (
    random_networks,
    synthetic_colocated_latency_s,
    synthetic_colocations,
    synthetic_latency_s,
)

SHIPPED = Path(__file__).parents[2] / "datasets"
COLOCATIONS = synthetic_colocations(200)
OTHERS = random_networks(200, seed=8) + random_networks(40, seed=8, kind="cnn")
NETWORKS = {graph.id: graph for colocation in COLOCATIONS for graph in colocation.members}


def colocated_rows(colocations: list[Colocation] = COLOCATIONS, **columns: object) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {
            "subject": colocation.subject.id,
            "co_runners": "+".join(sorted(graph.id for graph in colocation.co_runners)),
            "samples_s": latency_s * rng.lognormal(0, 0.02, 5),
            "solo_s": colocation.solo_s[0] * rng.lognormal(0, 0.01, 5),
            "threads": 2,
            "affinity": "0,1",
            "placement": "shared",
            "machine": machine_id(),
            **columns,
        }
        for colocation, latency_s in zip(colocations, synthetic_colocated_latency_s(colocations), strict=True)
    ]


def table_of(rows: list[dict[str, object]]) -> LatencyTable:
    import pandas as pd

    return LatencyTable(pd.DataFrame(rows))


def alone_rows() -> list[dict[str, object]]:
    graphs = [*NETWORKS.values(), *OTHERS]
    columns = {"threads": 2, "machine": machine_id()}
    return [
        {"subject": g.id, "samples_s": s * np.array([0.99, 1.0, 1.01, 1.0]), **columns}
        for g, s in zip(graphs, synthetic_latency_s(graphs), strict=True)
    ]


@pytest.fixture(scope="module")
def labelled():
    return join_colocated(table_of(colocated_rows()), NETWORKS.values())


@pytest.fixture(scope="module")
def shipped():
    return join_colocated(
        LatencyTable.load(SHIPPED / "keras-applications-colocated.parquet"),
        read_graphs(SHIPPED / "keras-applications-graphs.parquet"),
    )


def test_labels_are_medians_in_company_against_solo_samples_beside_them(labelled) -> None:
    assert len(labelled) == len(COLOCATIONS)
    found = {colocation.id: i for i, colocation in enumerate(labelled.items)}
    at = [found[colocation.id] for colocation in COLOCATIONS]
    np.testing.assert_allclose(labelled.latency_s[at], synthetic_colocated_latency_s(COLOCATIONS), rtol=0.05)
    assert {colocation.oversubscription for colocation in labelled.items} == {2.0, 3.0}
    assert labelled.setting.placement == "shared"
    assert "2 threads on 2 shared cores" in str(labelled.setting)
    assert np.all(labelled.noise_s > 0)


def test_rows_of_one_company_are_one_label_whatever_the_order_of_the_names() -> None:
    first, *_ = trio_rows = [row for row in colocated_rows() if "+" in str(row["co_runners"])]
    turned = {**first, "co_runners": "+".join(str(first["co_runners"]).split("+")[::-1])}
    twice = join_colocated(table_of([*colocated_rows(), turned]), NETWORKS.values())
    assert len(twice) == len(COLOCATIONS)
    assert trio_rows


@pytest.mark.parametrize(
    ("setting", "members", "oversubscription"),
    [
        ({"threads": 2, "cores": 2, "placement": "shared"}, 3, 3.0),
        ({"threads": 2, "cores": 8, "placement": "shared"}, 3, 1.0),
        ({"threads": 4, "cores": 8, "placement": "shared"}, 3, 1.5),
        ({"threads": 2, "cores": 2, "placement": "split"}, 3, 1.0),
        ({"threads": 1, "cores": None, "placement": "shared", "device": "cuda:0"}, 2, 2.0),
    ],
)
def test_oversubscription_is_threads_over_cores(setting: dict, members: int, oversubscription: float) -> None:
    facts = {"machine": "m", "device": "cpu", "backend": "keras", "batch_size": 1, **setting}
    assert Setting(**facts).oversubscription(members) == oversubscription


def _without(rows, **columns):
    return [{**row, **columns} for row in rows]


@pytest.mark.parametrize(
    ("rows", "error", "sentence"),
    [
        ([{k: v for k, v in row.items() if k != "solo_s"} for row in colocated_rows()], InputError, "no column solo_s"),
        (_without(colocated_rows(), co_runners=""), InputError, "no measured co-located row"),
        (_without(colocated_rows(), co_runners="nobody"), InputError, "no graph has the id or name nobody"),
        (_without(colocated_rows(), solo_s=[0.0]), TableError, "column solo_s: 0.0"),
        (_without(colocated_rows(), solo_s=[]), TableError, "has no solo samples"),
        ([*colocated_rows(), *colocated_rows(placement="split")], InputError, "placement shared, split.*--placement"),
        ([*colocated_rows(), *colocated_rows(machine="b")], InputError, "mixes machine .*--machine"),
        ([*colocated_rows(), *colocated_rows(affinity="0,1,2")], InputError, "mixes numbers of cores: 2, 3"),
    ],
)
def test_tables_that_say_nothing_of_company_are_sentences(rows, error, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        join_colocated(table_of(rows), NETWORKS.values())


def test_protocols_hold_out_what_they_say(labelled) -> None:
    colocations = labelled.items
    members = [[graph.id for graph in colocation.members] for colocation in colocations]
    splits = colocated_splits(colocations, 0)
    for split in splits["pairs unseen"]:
        learnt = {frozenset(members[i]) for i in [*split.train, *split.dev]}
        assert not learnt & {frozenset(members[i]) for i in split.test}
    for split in splits.get("network unseen", []):
        (asked,) = {colocations[i].subject.id for i in split.test}
        assert all(asked not in members[i] for i in [*split.train, *split.dev])
    (trios,) = splits["trios from pairs"]
    assert {len(colocations[i]) for i in trios.test} == {3}
    assert {len(colocations[i]) for i in [*trios.train, *trios.dev]} == {2}
    whole = random_colocated_split(colocations, 0)
    assert sorted(np.concatenate([whole.train, whole.dev, whole.test])) == list(range(len(colocations)))
    with pytest.raises(InputError, match="too few labelled co-locations to split \\(5\\)"):
        random_colocated_split(colocations[:5], 0)


@given(st.lists(st.sampled_from(list(NETWORKS.values())), min_size=1, max_size=4), st.randoms())
def test_a_company_is_the_same_in_any_order(members, random) -> None:
    solo_s = dict.fromkeys(NETWORKS, 0.01)
    others = members[1:]
    turned = random.sample(others, len(others))
    assert Colocation.of(members[0], others, solo_s) == Colocation.of(members[0], turned, solo_s)


def test_beside_nobody_a_network_takes_its_solo_latency() -> None:
    predictor = SharingPredictor()
    predictor.fit(Examples(COLOCATIONS, synthetic_colocated_latency_s(COLOCATIONS)), seed=0)
    alone = [Colocation.of(graph, [], dict.fromkeys(NETWORKS, 0.02)) for graph in NETWORKS.values()]
    np.testing.assert_allclose(predictor.predict(alone), 0.02)


def test_sharing_takes_more_members_than_it_was_shown() -> None:
    pairs = [colocation for colocation in COLOCATIONS if len(colocation) == 2]
    predictor = SharingPredictor()
    predictor.fit(Examples(pairs, synthetic_colocated_latency_s(pairs)), seed=0)
    trios = [colocation for colocation in COLOCATIONS if len(colocation) == 3]
    mean, spread = predictor.predict_and_spread(trios)
    # Made up so that a trio is exactly as its oversubscription says.
    np.testing.assert_allclose(mean, synthetic_colocated_latency_s(trios), rtol=0.15)
    assert np.median(spread) > 2 * np.median(predictor.predict_and_spread(pairs)[1])


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("features", lambda array: array[:, 1:]),
        ("sizes", lambda array: array[:, None]),
        ("log_ratio", lambda array: array[:, None]),
        ("noise", lambda array: np.append(array, 1.0)),
        ("noise", np.negative),
        ("noise", lambda array: np.full(array.shape, np.nan)),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(labelled, name: str, changed) -> None:
    predictor = SharingPredictor()
    predictor.fit(Examples(labelled.items, labelled.latency_s))
    tensors, document = predictor.state()
    SharingPredictor.from_state(tensors, document)
    with pytest.raises(InputError, match="train it again"):
        SharingPredictor.from_state({**tensors, name: changed(tensors[name])}, document)
    with pytest.raises(InputError, match="train it again"):
        SharingPredictor.from_state({other: tensors[other] for other in tensors if other != name}, document)


def test_on_shipped_pairs_ours_is_near_the_noise_and_beats_the_papers_baseline(shipped) -> None:
    """Qualitatively the paper's figure 9, and pairs of which no training row had both."""
    candidates = [LinearPredictor(), SharingPredictor()]
    run = train_and_score(candidates, shipped, random_colocated_split(shipped.items, 0))
    splits = colocated_splits(shipped.items, 0)["pairs unseen"]
    unseen = {candidate.name: protocol_score(candidate, shipped, splits, 0) for candidate in candidates}
    pairs = {name: table.scores_by_kind()["pair"] for name, table in run.held_out.items()}
    for scores, most in ((pairs, 0.06), (unseen, 0.10)):
        ours, linear = scores["sharing"], scores["linear"]
        assert ours["mape"] < most
        assert ours["mape"] < 2 * ours["floor"]["mape"]
        assert ours["mae_s"] < 0.6 * linear["mae_s"]
    assert run.chosen == "sharing"


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("colocated")
    names = {id_: f"net{i}" for i, id_ in enumerate(NETWORKS)}
    graphs = [replace(graph, name=names[graph.id]) for graph in NETWORKS.values()]
    write_graphs(folder / "graphs.jsonl", graphs)
    write_graphs(folder / "all.jsonl", [*graphs, *OTHERS])
    # The table names its subjects, as profile colocated --keras does.
    rows = colocated_rows()
    for row in rows:
        row["subject"] = names[str(row["subject"])]
        row["co_runners"] = "+".join(sorted(names[id_] for id_ in str(row["co_runners"]).split("+")))
    table_of(rows).save(folder / "colocated.parquet")
    table_of(alone_rows()).save(folder / "alone.parquet")
    return folder


@pytest.fixture(scope="module")
def both(measured: Path) -> Path:
    """An artifact that predicts solo and co-located latencies, made by the library."""
    from slotool.predictors.labels import join_labels
    from slotool.predictors.solo.additive import AdditivePredictor
    from slotool.predictors.splits import paper_split

    alone = join_labels(LatencyTable.load(measured / "alone.parquet"), read_graphs(measured / "all.jsonl"))
    run = train_and_score([AdditivePredictor()], alone, paper_split(alone.kinds, 0))
    run.save(measured / "alone", config={}, seed=0)
    table = LatencyTable.load(measured / "colocated.parquet")
    labelled = join_colocated(table, read_graphs(measured / "graphs.jsonl"))
    run = train_and_score([SharingPredictor()], labelled, random_colocated_split(labelled.items, 0))
    run.save(measured / "both", open_artifact(measured / "alone"), config={}, seed=0)
    return measured / "both"


def test_train_predictor_learns_co_located_latency(slotool, measured: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slotool.predictors.solo.dnn.MAX_EPOCHS", 5)  # whose quality plays no part
    arguments = [measured / "colocated.parquet", "--graphs", measured / "graphs.jsonl", "--depths", "1"]
    finished = slotool("train-predictor", *arguments, "-o", tmp_path / "p")
    assert finished.exit_code == 0, finished.stderr
    assert "noise floor" in finished.stdout
    assert "chosen: " in finished.stdout
    artifact = open_artifact(tmp_path / "p", "predictor")
    scores = artifact.json("colocated-scores.json")
    assert list(scores["predictors"]) == names_of(COLOCATED)
    assert scores["chosen"] == min(scores["predictors"], key=lambda name: scores["predictors"][name]["dev_mae_s"])
    # It answers for these networks straight away, for they were measured alone as well.
    graphs = ["--graph", measured / "graphs.jsonl"]
    finished = slotool("predict", tmp_path / "p", *graphs, "--co-runners", "net1", "--co-runners", "net2", "--json")
    assert finished.exit_code == 0, finished.stderr
    rows = finished.document["predictions"]
    assert all(row["solo_measured"] and row["low_s"] < row["latency_s"] < row["high_s"] for row in rows)
    assert all(2 < row["degradation_ratio"] < 3.2 for row in rows)
    finished = slotool("predict", tmp_path / "p", *graphs)
    assert finished.exit_code == 2
    assert "predicts co-located latencies only" in finished.stderr
    finished = slotool("train-predictor", *arguments, "-o", tmp_path / "q", "--solo", tmp_path / "p")
    assert finished.exit_code == 2
    assert "holds no predictor of solo latencies" in finished.stderr
    assert not (tmp_path / "q").exists()


def test_one_artifact_predicts_solo_and_co_located(slotool, measured: Path, both: Path, tmp_path: Path) -> None:
    new = replace(random_networks(1, seed=99)[0], name="new")
    graphs = [new, *read_graphs(measured / "graphs.jsonl")]
    write_graphs(tmp_path / "new.jsonl", graphs)
    asked = [both, "--graph", tmp_path / "new.jsonl"]
    alone = slotool("predict", *asked, "--json").document["predictions"][0]
    out = tmp_path / "predicted.parquet"
    finished = slotool("predict", *asked, "--co-runners", "net3", "--slo", "30us", "--out", out)
    assert finished.exit_code == 0, finished.stderr
    for text in ("Latency co-located with net3", "solo", "ratio", "P(≤ 30 µs)", "~: predicted solo", "2 shared cores"):
        assert text in finished.stdout
    rows = slotool("predict", *asked, "--co-runners", "net3", "--json").document["predictions"]
    assert rows[0]["solo_s"] == pytest.approx(alone["latency_s"])
    assert [row["solo_measured"] for row in rows] == [False] + [True] * len(NETWORKS)
    # What rests on a predicted solo latency is less sure.
    widths = [np.log(row["high_s"] / row["low_s"]) for row in rows]
    assert widths[0] > np.log(alone["high_s"] / alone["low_s"])
    table = LatencyTable.load(out)
    assert table.rows["predicted"].all()
    beside = next(graph.id for graph in graphs if graph.name == "net3")
    assert set(table.rows["co_runners"]) == {beside}
    assert is_colocated(LatencyTable.load(measured / "colocated.parquet"))
    assert not is_colocated(LatencyTable.load(measured / "alone.parquet"))


def test_outside_of_what_was_measured_in_company_there_is_no_interval(measured: Path, both: Path) -> None:
    opened = PredictorArtifact.load(str(both))
    nets = list(read_graphs(measured / "graphs.jsonl"))
    assert opened.colocated is not None
    most = int(opened.colocated.bounds.members[1])
    *_, crowded = opened.predict_colocated(nets[:2], nets[2 : 2 + most])
    assert np.all(np.isnan(crowded.low_s))
    assert all("co-located networks" in (why or "") for why in crowded.no_interval)
    assert np.all(np.isnan(opened.colocated.probability_within(crowded, 1.0)))
    *_, known = opened.predict_colocated(nets[:2], nets[2 : 1 + most])
    assert np.all(known.low_s < known.high_s)
    assert known.no_interval == [None, None]


def test_probability_grows_with_the_slo(slotool, measured: Path, both: Path) -> None:
    asked = [both, "--graph", measured / "graphs.jsonl"]
    for colocation in ([], ["--co-runners", "net3"]):
        finished = slotool("predict", *asked, *colocation, "--json")
        row = finished.document["predictions"][0]
        chances = []
        for limit_s in (row["low_s"] * 0.999, row["latency_s"], row["high_s"] * 1.001):
            answer = slotool("predict", *asked, *colocation, "--slo", f"{1e6 * limit_s}us", "--json").document
            assert answer["slo_s"] == pytest.approx(limit_s)
            chances.append(answer["predictions"][0]["probability_within_slo"])
        assert chances[0] <= 0.07 < chances[1] < 0.93 <= chances[2]


def test_wrong_questions_are_sentences(slotool, measured: Path, both: Path) -> None:
    graphs = ["--graph", measured / "graphs.jsonl"]
    for arguments, sentence in (
        ([measured / "alone", *graphs, "--co-runners", "net1"], "holds no predictor of co-located latencies"),
        ([both, *graphs, "--co-runners", "Nonsense"], "Nonsense"),
        ([both, *graphs, "--slo", "soon"], "no duration such as 20ms"),
    ):
        finished = slotool("predict", *arguments)
        assert finished.exit_code == 2
        assert sentence in " ".join(finished.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (colocated_rows()[:1], "a co-runner's own solo latency is nowhere in the table"),
        (colocated_rows(COLOCATIONS[:40]), "too few labelled co-locations to split"),
        (colocated_rows(machine="elsewhere"), "the co-located table has machine elsewhere instead of"),
        ([*colocated_rows(), *colocated_rows(placement="split")], "mixes placement shared, split"),
    ],
)
def test_nothing_is_written_of_what_cannot_be_learnt(slotool, measured, both, tmp_path, rows, sentence: str) -> None:
    table_of(rows).save(tmp_path / "c.parquet")
    arguments = [tmp_path / "c.parquet", "--graphs", measured / "graphs.jsonl", "--solo", both, "-o", tmp_path / "p"]
    finished = slotool("train-predictor", *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.split())
    assert not (tmp_path / "p").exists()


def test_a_solo_predictor_goes_beside_one_of_co_located_latency_only(slotool, measured: Path, both, tmp_path) -> None:
    graphs = ["--graphs", measured / "all.jsonl", "-o", tmp_path / "p"]
    finished = slotool("train-predictor", measured / "alone.parquet", *graphs, "--solo", both)
    assert (finished.exit_code, "--solo" in finished.stderr) == (2, True)


def test_parts_of_an_artifact_load_apart_and_answer_alike(both: Path, measured: Path) -> None:
    opened = PredictorArtifact.load(str(both))
    graphs = list(read_graphs(measured / "graphs.jsonl"))
    assert opened.colocated is not None
    answers, colocations, predictions = opened.predict_colocated(graphs[:3], graphs[5:7])
    again = TrainedPredictor.load(open_artifact(both), "colocated").predict(colocations)
    assert np.array_equal(predictions.latency_s, again.latency_s)
    assert [answer.latency_s for answer in answers] == [opened.solo_s[graph.id] for graph in graphs[:3]]
    assert fair_s(colocations)[0] == pytest.approx(3 * answers[0].latency_s)
    with pytest.raises(ArtifactError, match="holds no predictor of co-located latencies"):
        TrainedPredictor.load(str(measured / "alone"), "colocated")
