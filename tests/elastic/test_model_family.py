"""``slotool family``: models of three libraries on a user's own table become tiers that are served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from slotool import loadtest, serve
from slotool.artifacts import create_artifact, open_artifact
from slotool.elastic import load_model
from slotool.elastic.family import KIND, VERSIONS_FILE, Family
from slotool.elastic.versions import ModelVersion
from slotool.errors import ArtifactError, InputError, TimedOut
from slotool.models.adapters.remote import RemoteUnavailable, open_remote
from slotool.models.adapters.sklearn import SklearnModel
from slotool.models.tasks import make_task
from slotool.serving.operations.sources import Sources
from slotool.tables import OperatingPoint, OutcomeTable
from tests.conftest import Slotool

pytest.importorskip("skops")
X, Y = load_wine(return_X_y=True, as_frame=True)
TRAIN = np.arange(len(X)) % 3 == 0
SMALL = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(X[TRAIN].to_numpy()[:, :13], Y[TRAIN])
LARGE = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(X[TRAIN].to_numpy(), Y[TRAIN])


def dump(estimator: object, file: str) -> None:
    """Write an estimator by skops, whose import loads all of scikit-learn: seconds of each worker that collects it."""
    from skops import io

    io.dump(estimator, file)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    X[~TRAIN].assign(cultivar=Y[~TRAIN]).to_parquet("wine.parquet")
    dump(SMALL, "small.skops")
    dump(LARGE, "large.skops")
    return tmp_path


def made(slotool: Slotool, *options: str) -> dict[str, object]:
    command = "family small=small.skops large=large.skops --data wine.parquet:cultivar -o wine --repeats 1 --json"
    finished = slotool(*command.split(), *options)
    assert finished.exit_code == 0, finished.stderr
    return finished.document


def test_the_family_answers_as_its_models(files: Path, slotool: Slotool) -> None:
    document = made(slotool, "--outcomes", "outcomes.parquet")
    assert (document["examples"], document["classes"]) == (int((~TRAIN).sum()), ["0", "1", "2"])
    outcomes = OutcomeTable.load(files / "outcomes.parquet")
    model, x = load_model(str(files / "wine")), X[~TRAIN].to_numpy(dtype=np.float32)
    for name, estimator in (("small", SMALL), ("large", LARGE)):
        logits = model.forward(x, OperatingPoint.of(version=name))
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(probabilities, estimator.predict_proba(x.astype(np.float64)), atol=1e-6)
        wrong = estimator.predict(x.astype(np.float64)) != Y[~TRAIN]
        column = outcomes.matrix("error")[:, outcomes.versions.index(name)]
        assert column.mean() == wrong.mean()


def test_tiers_and_requests_over_the_family(files: Path, slotool: Slotool) -> None:
    made(slotool, "--outcomes", "outcomes.parquet")
    rules = slotool("gen-rules", "outcomes.parquet", "-o", "rules.json", "--tolerances", "0,0.5", "--json")
    assert rules.exit_code == 0, rules.stderr
    evaluated = slotool("evaluate", "wine", "-o", "again.parquet", "--repeats", "1", "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    assert {point["version"] for point in evaluated.document["points"]} == {"small", "large"}


def test_rules_are_of_the_models_they_were_made_of(files: Path, slotool: Slotool) -> None:
    made(slotool, "--outcomes", "outcomes.parquet", "--latency", "latency.parquet")
    assert slotool("gen-rules", "outcomes.parquet", "-o", "rules.json", "--tolerances", "0,0.5").exit_code == 0
    warnings: list[str] = []
    assert Sources((files / "wine",), rules=files / "rules.json").load(warnings.append)["wine"].rules
    assert not warnings
    retrained = make_pipeline(StandardScaler(), LogisticRegression(C=1e-4)).fit(X[TRAIN].to_numpy()[:, :13], Y[TRAIN])
    dump(retrained, "small.skops")
    made(slotool, "--outcomes", "new.parquet", "--force")
    refused = slotool("serve", "wine", "--rules", "rules.json", "--port", "0")
    assert (refused.exit_code, "small" in refused.stderr, "gen-rules" in refused.stderr) == (2, True, True)
    planned = slotool("plan", "latency.parquet", "--outcomes", "new.parquet", "--rules", "rules.json",
                      "--deadline-ms", "100", "--rate", "1", "--tolerance", "0.5")  # fmt: skip
    assert planned.exit_code == 2
    for command in ("evaluate-rules", "evaluate-drift"):
        assert "certified with another small" in " ".join(slotool(command, "rules.json", "new.parquet").stderr.split())
    # Rules of a table that states no checksums are served, and it is said that nothing was compared.
    table = OutcomeTable.load(files / "new.parquet")
    OutcomeTable(table.rows).save(files / "bare.parquet")
    assert slotool("gen-rules", "bare.parquet", "-o", "bare.json", "--tolerances", "0,0.5").exit_code == 0
    assert Sources((files / "wine",), rules=files / "bare.json").load(warnings.append)["wine"].rules
    assert len(warnings) == 1


def test_a_family_that_was_calibrated_is_refused(files: Path, slotool: Slotool) -> None:
    made(slotool)
    document = open_artifact(files / "wine").json(VERSIONS_FILE)
    with create_artifact(files / "older", KIND, config={}, seed=0) as bundle:
        bundle.write_json(VERSIONS_FILE, {**document, "calibrations": {"small": {}}})
    with pytest.raises(ArtifactError, match="make the family again"):
        load_model(str(files / "older"))


def test_a_file_that_changed_and_a_copy_that_did_not(files: Path, slotool: Slotool) -> None:
    made(slotool)
    made(slotool, "--copy", "--force")
    (files / "small.skops").write_bytes(b"changed")
    assert load_model(str(files / "wine")).classes == 3
    dump(SMALL, "small.skops")
    made(slotool, "--force")
    (files / "small.skops").write_bytes(b"changed")
    with pytest.raises(ArtifactError, match=r"small\.skops has changed since the family was made"):
        load_model(str(files / "wine"))


def test_what_cannot_be_a_family_is_said(files: Path, slotool: Slotool) -> None:
    narrow = HistGradientBoostingClassifier(max_iter=1).fit(X[TRAIN].to_numpy()[:, :4], Y[TRAIN])
    two = HistGradientBoostingClassifier(max_iter=1).fit(X[TRAIN].to_numpy(), Y[TRAIN] == 1)
    dump(narrow, "narrow.skops")
    dump(two, "two.skops")
    pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1]}).to_csv("other.csv", index=False)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 13]), ("y", [2, 13]))
    )
    graph = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], "fixed", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "fixed.onnx")
    cases = {
        "family small=small.skops narrow=narrow.skops --data wine.parquet:cultivar -o f": (
            "version narrow is none of the same service as small: its input 'features' is FP64[-1, 4], "
            "expected FP64[-1, 13]"
        ),
        "family small=small.skops two=two.skops --data wine.parquet:cultivar -o f": "FP64[-1, 2], expected FP64[-1, 3]",
        "family small=small.skops --data other.csv -o f": "input 'features' takes [13]",
        "family two=two.skops --data wine.parquet:cultivar -o f": (
            "class '2', which the model does not know; it knows False, True"
        ),
        "family small --data wine.parquet:cultivar -o f": "'small' is not NAME=MODEL, such as small=small.onnx",
        "family a=small.skops a=large.skops --data wine.parquet:cultivar -o f": "two versions are called 'a'",
        "family small.skops a/small.skops --data wine.parquet:cultivar -o f": "two versions are called 'small'",
        "family none.onnx --data wine.parquet:cultivar -o f": "none.onnx: no such file",
        "family a=none.onnx --data wine.parquet:cultivar -o f": "none.onnx: no such file",
        "family a=fixed.onnx --data wine.parquet:cultivar -o f": (
            "version a (fixed.onnx): x is FP32[1, 13]; its first dimension must be free, or fixed alike in all tensors"
        ),
        "family a=http://127.0.0.1:9/v2/models/m --data wine.parquet:cultivar -o f": "no connection",
        "family a=small.skops --output scores --data wine.parquet:cultivar -o f": "no output is called 'scores'",
        "family a=small.skops --split some --data wine.parquet:cultivar -o f": "'some' is none of all, train",
    }
    for command, sentence in cases.items():
        finished = slotool(*command.split())
        said = " ".join(finished.stderr.replace("│", " ").split())
        assert sentence in said, (command, finished.stderr)
        assert finished.exit_code in (2, 3)
        assert not (files / "f").exists()


def test_columns_go_by_the_names_that_a_model_was_fitted_on(files: Path, slotool: Slotool) -> None:
    named = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[TRAIN], Y[TRAIN])
    dump(named, "named.skops")
    rows = X[~TRAIN].assign(cultivar=Y[~TRAIN])
    rows[rows.columns[::-1]].to_csv("shuffled.csv", index=False)
    rows.rename(columns={"ash": "cinder"}).to_csv("renamed.csv", index=False)
    command = "family a=named.skops --repeats 1 -o f --json --data"
    found = slotool(*command.split(), "shuffled.csv:cultivar")
    assert found.exit_code == 0, found.stderr
    assert found.document["versions"][0]["accuracy"] == named.score(X[~TRAIN], Y[~TRAIN])
    evaluated = slotool("evaluate", "f", "-o", "e.parquet", "--repeats", "1", "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    assert evaluated.document["points"][0]["accuracy"] > 0.9
    renamed = slotool(*command.split(), "renamed.csv:cultivar", "--force")
    assert (
        "renamed.csv: missing columns: ash; unknown columns: cinder; the model's columns are alcohol, malic_acid"
        in renamed.stderr
    )


def test_a_family_puts_tables_into_the_order_of_its_own(files: Path, slotool: Slotool) -> None:
    """Models without names of their columns take other tables by the names of the family's table."""
    rows = X[~TRAIN].assign(cultivar=Y[~TRAIN])
    rows[rows.columns[::-1]].to_csv("shuffled.csv", index=False)
    rows.rename(columns={"ash": "cinder"}).to_csv("renamed.csv", index=False)
    dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X[TRAIN].to_numpy(), Y[TRAIN]), "a.skops")
    command = "family a=a.skops --data wine.parquet:cultivar --repeats 1 -o f --json"
    assert slotool(*command.split()).document["versions"][0]["accuracy"] > 0.9
    for command in ("evaluate f", "profile points f --co-runners 0"):
        refused = slotool(*command.split(), "--data", "renamed.csv:cultivar", "-o", "refused.parquet")
        assert "missing columns: ash; unknown columns: cinder" in refused.stderr
    command = "evaluate f --data shuffled.csv:cultivar -o e.parquet --repeats 1 --json"
    evaluated = slotool(*command.split())
    assert evaluated.document["points"][0]["accuracy"] > 0.9
    with serve("f") as server:
        loaded = loadtest(server.url, data="shuffled.csv:cultivar", rate=40, duration_s=1, split="all", progress=None)
    assert loaded.log.correct.mean() > 0.9


def test_classes_in_another_order_than_those_of_training_are_warned_of(files: Path, slotool: Slotool) -> None:
    dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X[TRAIN].to_numpy(), Y[TRAIN]), "a.skops")
    command = "family a=a.skops --repeats 1 --force -o f --data"
    for numbers, is_warned in (([0, 1, 2], False), ([1, 2, 0], True)):
        X.assign(cultivar=np.array(numbers)[Y]).to_parquet("numbered.parquet")
        assert ("about chance" in slotool(*command.split(), "numbered.parquet:cultivar").stderr) == is_warned


def test_labels_are_the_classes_that_a_model_knows(files: Path, slotool: Slotool) -> None:
    names = np.array(["ham", "spam", "egg"])[Y]
    named = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[TRAIN].to_numpy(), names[TRAIN])
    dump(named, "named.skops")
    rows = X[~TRAIN].assign(kind=names[~TRAIN])
    without = rows[rows.kind != "egg"]
    without.to_parquet("without.parquet")
    rows.replace({"kind": {"ham": "zebra"}}).to_parquet("others.parquet")
    command = "family a=named.skops --repeats 1 -o f --json --data"
    found = slotool(*command.split(), "without.parquet:kind")
    assert found.exit_code == 0, found.stderr
    assert found.document["classes"] == ["egg", "ham", "spam"]
    right = named.predict(without.drop(columns="kind").to_numpy()) == without.kind
    assert found.document["versions"][0]["accuracy"] == pytest.approx(right.mean())
    others = slotool(*command.split(), "others.parquet:kind", "--force")
    assert "class 'zebra', which the model does not know; it knows egg, ham, spam" in others.stderr


def test_an_artifact_that_was_altered(files: Path, slotool: Slotool) -> None:
    made(slotool)
    manifest = json.loads((files / "wine" / "manifest.json").read_text())
    assert manifest["kind"] == "model-family"
    (files / "wine" / "versions.json").write_text("{}")
    with pytest.raises(InputError, match=r"versions\.json is not what was written"):
        load_model(str(files / "wine"))


def test_a_family_loads_while_another_server_is_gone(tmp_path: Path) -> None:
    signature = SklearnModel(LARGE).signature
    away = open_remote("http://127.0.0.1:9/v2/models/m", timeout_s=0.05, signature=signature)
    versions = [(ModelVersion("here", "."), SklearnModel(LARGE)), (ModelVersion("away", away.url), away)]
    task, labels, x = make_task(signature), ("0", "1", "2"), X.to_numpy(dtype=np.float32)
    Family("wine", versions[1:], task, labels, x[:2]).save(tmp_path / "wine", config={}, seed=0)
    loaded, point = load_model(str(tmp_path / "wine")), OperatingPoint.of(version="away")
    assert list(loaded.remote_points) == [point]
    with pytest.raises((RemoteUnavailable, TimedOut)):
        loaded.respond_within(x[:1], point, 0.05)
    both = Family("wine", versions, task, labels, x[:2])
    assert list(both.remote_points.values()) == [0.05]
    scores = both.respond_within(x, both.points[0], 1.0)[both.task.output]
    assert scores.shape == (len(X), 3)
