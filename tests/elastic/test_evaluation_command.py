"""``slotool evaluate`` of SLO-NNs on many labels: outcome table, sweeps, and rules over k levels from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.artifacts import open_artifact
from slotool.data import load_multilabel
from slotool.elastic import evaluation, load_model
from slotool.elastic.family import Family
from slotool.elastic.family_files import load_family
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import InputError
from slotool.rules import RuleSet
from slotool.tables import OperatingPoint, OutcomeTable

Slotool = Callable[..., Any]
LABELS, WORDS, TOPICS, TRAIN, TEST = 400, 900, 20, 2_400, 300


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic set in the Extreme Classification Repository's form: labels and words of twenty topics."""
    folder = tmp_path_factory.mktemp("data") / "xmc" / "synthetic-topics"
    folder.mkdir(parents=True)
    for name, n, seed in (("train.txt", TRAIN, 0), ("test.txt", TEST, 1)):
        rng = np.random.default_rng(seed)
        lines = [f"{n} {WORDS} {LABELS}", *(_record(rng) for _ in range(n))]
        (folder / name).write_text("\n".join([*lines, ""]))
    return folder


def _record(rng: np.random.Generator) -> str:
    """One to three labels of one topic, a word of each, and common words; a topic's first labels are the usual ones."""
    topic = int(rng.integers(TOPICS))
    within = np.minimum(rng.geometric(0.2, size=int(rng.integers(1, 4))) - 1, LABELS // TOPICS - 1)
    labels = np.unique(topic * (LABELS // TOPICS) + within)
    words = np.unique(np.concatenate([2 * labels + rng.integers(2, size=len(labels)), rng.integers(800, WORDS, 4)]))
    return f"{','.join(map(str, labels))} " + " ".join(f"{word}:{0.3 + rng.random():.3f}" for word in words)


@pytest.fixture(scope="module")
def trained(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from slotool.elastic.multilabel_training import train_multilabel

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    data, out = load_multilabel(str(synthetic)), tmp_path_factory.mktemp("models") / "network"
    version = train_multilabel("network", data, hidden_units=24, epochs=12, seed=0)
    torch.set_num_threads(threads)
    Family.of("network", [version]).save(out, config={"data": data.source}, seed=0)
    return out


@pytest.fixture(scope="module")
def built(trained: Path) -> dict[str, Path]:
    """The artifacts of two rankers, by ``build-tables``' own steps but for its test-set report."""
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build

    source = load_family(open_artifact(trained)).networks[0]
    data = load_multilabel(open_artifact(trained).manifest["config"]["data"])
    paths = {}
    for ranker in ("clusters", "centred-freehash"):
        paths[ranker] = trained.with_name(ranker)
        model = build(ranker, TableSubject(source.mlp, data), ranker, TableSettings())
        model.save(paths[ranker], config={"data": data.source}, seed=0)
    return paths


def test_from_tables_to_rules_over_k(slotool: Slotool, trained: Path, tmp_path: Path) -> None:
    """build-tables, evaluate, gen-rules: a tier's ensembles are k levels."""
    model, outcomes, rules = tmp_path / "slo-nn", tmp_path / "outcomes.parquet", tmp_path / "rules.json"
    done = slotool("build-tables", trained, "-o", model, "--ranker", "clusters", "--json")
    assert done.exit_code == int(done.document["verdict"] is not None), done.stderr
    by_k = {row["point"]: row["accuracy"] for row in done.document["points"]}

    done = slotool("evaluate", model, "-o", outcomes, "--repeats", "1", "--json")
    assert done.exit_code == 0, done.stderr
    table = OutcomeTable.load(outcomes)
    assert table.versions == list(by_k)
    assert len(table.examples) == TEST
    assert {row["version"]: row["accuracy"] for row in done.document["points"]} == pytest.approx(by_k, abs=0.02)
    assert table.provenance["metric"] == "p@1"

    tiers = ["--tolerances", "0.02,0.1,0.3", "--tolerance-kind", "absolute", "--method", "naive"]
    done = slotool("gen-rules", outcomes, "-o", rules, *tiers)
    assert done.exit_code == 0, done.stderr
    error = dict(zip(table.versions, table.matrix("error").mean(axis=0), strict=True))
    for rule in RuleSet.load(rules).rules:
        version = str(rule.point.get("version"))
        assert OperatingPoint.parse(version).get("k") or version == "full"
        assert error[version] <= min(error.values()) + rule.tolerance + 1e-9


def test_precision_at_five_is_the_error_when_asked_for(
    slotool: Slotool, built: dict[str, Path], synthetic: Path, tmp_path: Path
) -> None:
    out = tmp_path / "five.parquet"
    done = slotool(
        "evaluate", built["clusters"], "-o", out, "--metric", "p@5", "--repeats", "1", "--limit", "60", "--json"
    )
    assert done.exit_code == 0, done.stderr
    assert done.document["accuracy_targets"] == []
    table, model = OutcomeTable.load(out), load_model(open_artifact(built["clusters"]))
    assert isinstance(model, SloNN)
    split = load_multilabel(str(synthetic)).test
    for at, point in enumerate(model.points):
        best = model.top(split.x[:60], 5, point=point)[0]
        right = [len(set(best[i]) & set(split.y.of(i))) / 5 for i in range(60)]
        np.testing.assert_allclose(1.0 - table.matrix("error")[:, at], right)


def test_a_sweep_stands_beside_fixed_k_and_the_ideal(slotool: Slotool, built: dict[str, Path], tmp_path: Path) -> None:
    command = ["evaluate", built["clusters"], "-o", tmp_path / "o.parquet", "--repeats", "1", "--targets", "0.1,0.999"]
    done = slotool(*command)
    assert done.exit_code == 0, done.stderr
    for expected in ("cannot be met: the full network has", "k as accurate", "would lose nothing"):
        assert expected in done.stdout
    document = slotool(*command, "--force", "--json").document
    assert [sweep["ranker"] for sweep in document["sweeps"]] == ["clusters"]
    for sweep in document["sweeps"]:
        assert 0 < sweep["ideal_mean_k"] <= min(row["mean_k"] for row in sweep["losses"] if row["difference"] >= 0)
        k = [row["mean_k"] for row in sorted(sweep["losses"], key=lambda row: row["target"])]
        assert k == sorted(k)
    assert document["accuracy_targets"][1]["met_share"] == 0.0


def test_what_cannot_be_read_is_said(slotool: Slotool, built: dict[str, Path], tmp_path: Path) -> None:
    for arguments, sentence in (
        ([built["clusters"], "--metric", "f1"], "no metric called 'f1'; there are p@1, p@5"),
        ([built["clusters"], "--data", "digits"], "takes inputs (900,), the data set has (1, 8, 8)"),
    ):
        done = slotool("evaluate", *arguments, "-o", tmp_path / "o.parquet")
        assert (done.exit_code, sentence in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not (tmp_path / "o.parquet").exists()


def test_sessions_answer_as_the_model_does(built: dict[str, Path], synthetic: Path) -> None:
    model, x = load_model(open_artifact(built["clusters"])), load_multilabel(str(synthetic)).test.x[:30]
    assert isinstance(model, SloNN)
    taken = evaluation.ask_all(model, x, model.points, repeats=1)
    dense = evaluation.ask_all(model, x.toarray(), model.points, repeats=1)
    for at, point in enumerate(model.points):
        labels, scores = model.top(x, evaluation.ANSWERS, point=point)
        np.testing.assert_array_equal(taken.labels[at], labels)
        # A batch's sums are added up in another order.
        np.testing.assert_allclose(taken.scores[at], scores, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(dense.labels[at], labels)
    assert (taken.turns.latency_s > 0).all()


def test_a_loss_allowed_is_a_target_below_the_full_network(built: dict[str, Path]) -> None:
    model = load_model(open_artifact(built["clusters"]))
    assert isinstance(model, SloNN)
    fixed = [model.points.index(model.fixed_for(loss)) for loss in (0.0, 0.01, 0.05, 0.3, 1.0)]
    assert fixed == sorted(fixed, reverse=True)
    assert fixed[-1] == 0
    for loss, at in zip((0.0, 0.01, 0.05), fixed, strict=False):
        assert model.calibration.by_point[at] >= model.target(loss)
        assert at == 0 or model.calibration.by_point[at - 1] < model.target(loss)
    for loss in (-0.01, 1.1, float("nan")):
        with pytest.raises(InputError, match="allowed loss"):
            model.fixed_for(loss)
