"""``slotool family`` for every task, with prices, latencies and models that are code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from text_models import text_network, texts

from slotool import factories
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.errors import ArtifactError
from slotool.tables import LatencyTable, OutcomeTable
from tests.conftest import Slotool

CODE = """
import numpy as np
from slotool.models import Task

class Within(Task):
    target = "numbers"
    def answers(self, outputs):
        return outputs[self.output]
    def errors(self, outputs, truth):
        return (np.abs(self.answers(outputs) - truth) > 1).astype(float)

def doubled(x):
    return 2 * x[:, 0]
doubled.signature = "x=FP32[-1,1] -> y=FP32[-1]"

def offset():
    return (lambda x: 2 * x[:, 0] + 3), "x=FP32[-1,1] -> y=FP32[-1]"

def network():
    import torch
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(2.0)
    return torch.nn.Sequential(made, torch.nn.Flatten(0)), "x=FP32[-1,1] -> y=FP32[-1]"

def nothing():
    return 3
def silent():
    return lambda x: x
"""


TWO_SCORES = """
import numpy as np

def scores(x):
    return np.stack([-x, x], axis=1)

def cold_or_hot():
    return scores, "x=FP32[-1] -> logits=FP32[-1,2]"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(factories.ALLOW_VARIABLE, raising=False)
    return tmp_path


def test_a_text_classifier_with_prices_and_latencies(here: Path, slotool: Slotool) -> None:
    for name, words in (("small", 6), ("large", 60)):
        text_network(here / f"{name}.onnx", words)
    drawn = texts(1_000, 3)
    np.savez(here / "texts.npz", **drawn)
    command = "family small=small.onnx large=large.onnx --data texts.npz -o texts --repeats 1 --split test"
    files = "--outcomes o.parquet --latency l.parquet --batch-size 1,4 --cost small=0.5 --cost large=2 --json"
    made = slotool(*command.split(), *files.split())
    assert made.exit_code == 0, made.stderr
    found = made.document
    assert [tensor["name"] for tensor in found["inputs"]] == ["input_ids", "attention_mask"]
    small = next(row for row in found["versions"] if row["version"] == "small")
    assert small["cost"] == 0.5
    latencies = LatencyTable.load(here / "l.parquet")
    assert sorted(set(latencies.rows["batch_size"])) == [1, 4]
    family = load_model("texts")
    assert isinstance(family, Family)
    assert [version.name for version in family.versions] == [row["version"] for row in found["versions"]]
    outcomes = OutcomeTable.load(here / "o.parquet")
    assert len(outcomes.examples) == 200
    rules = slotool("gen-rules", "o.parquet", "-o", "rules.json", "--tolerances", "0.3", "--json")
    assert rules.exit_code == 0, rules.stderr
    for said, options in (
        ("no version is called 'huge'; there are small, large", "--cost huge=1"),
        ("NAME=NUMBER is expected", "--cost small=x"),
        ("large has none: prices and seconds cannot be compared, so price all versions or none", "--cost small=1"),
    ):
        wrong = slotool(*command.split(), "--force", *options.split())
        assert said in " ".join(wrong.stderr.replace("│", " ").split())
        assert wrong.exit_code == 2


def test_code_makes_versions_and_a_task_and_runs_again_where_it_is_allowed(
    here: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "own_code.py").write_text(CODE)
    x = np.arange(12, dtype=np.float32)
    pd.DataFrame({"x": x, "y": 2 * x}).to_parquet("numbers.parquet")
    versions = "exact=own_code:doubled off=own_code:offset net=own_code:network --data numbers.parquet:y"
    made = slotool(*f"family {versions} -o f --task own_code:Within --outcomes o.parquet --json".split())
    assert made.exit_code == 0, made.stderr
    errors = {row["version"]: row["error"] for row in made.document["versions"]}
    assert errors == {"exact": 0.0, "net": 0.0, "off": 1.0}
    monkeypatch.delenv(factories.ALLOW_VARIABLE, raising=False)
    with pytest.raises(ArtifactError, match=r"f: version .* is .*own_code\.py:.*, which is code; if you trust it"):
        load_model("f")
    command = ["evaluate", "f", "-o", "e.parquet", "--data", "numbers.parquet:y", "--repeats", "1"]
    assert "which is code" in slotool(*command).stderr
    monkeypatch.setenv(factories.ALLOW_VARIABLE, "0")
    allowed = slotool(*command, "--allow-code")
    assert allowed.exit_code == 0, allowed.stderr
    assert OutcomeTable.load(here / "e.parquet").matrix("error").mean() == pytest.approx(1 / 3)
    monkeypatch.setenv(factories.ALLOW_VARIABLE, "0")
    assert slotool("--allow-code", *command, "--force").exit_code == 0
    monkeypatch.chdir("/")
    assert len(load_model(str(here / "f")).points) == 3
    (here / "own_code.py").write_text(CODE + "\n")
    with pytest.raises(ArtifactError, match=r"has changed since it was recorded"):
        load_model(str(here / "f"))


def test_the_order_of_named_classes_is_stated_where_no_model_names_them(here: Path, slotool: Slotool) -> None:
    (here / "two.py").write_text(TWO_SCORES)
    x = np.arange(-5, 6, dtype=np.float32)
    frame = pd.DataFrame({"x": x, "kind": np.where(x > 0, "hot", "cold"), "number": (x > 0).astype(int)})
    frame.to_parquet("rows.parquet")
    accuracy, remarks = {}, {}
    for label in ("kind", "number"):
        done = slotool(*f"family net=two.py:cold_or_hot --data rows.parquet:{label} -o {label} --json".split())
        assert done.exit_code == 0, done.stderr
        accuracy[label], remarks[label] = done.document["versions"][0]["accuracy"], done.stderr
    assert accuracy == {"kind": 1.0, "number": 1.0}
    assert "order cold, hot" in remarks["kind"]
    assert "order" not in remarks["number"]


def test_regression_and_what_makes_no_model(here: Path, slotool: Slotool) -> None:
    (here / "more_code.py").write_text(CODE)
    x = np.arange(12, dtype=np.float32)
    pd.DataFrame({"x": x, "y": 2 * x}).to_parquet("numbers.parquet")
    options = "--data numbers.parquet:y -o f --task regression --json --force"
    made = slotool(*f"family a=more_code:doubled b=more_code:offset {options}".split())
    assert made.exit_code == 0, made.stderr
    assert [(row["version"], row["error"]) for row in made.document["versions"]] == [("b", 3.0), ("a", 0.0)]
    for model, said in (
        ("more_code:nothing", "nothing makes no model, but something of type int"),
        ("more_code:silent", "silent makes a function without a signature; return"),
        ("more_code:none", "module more_code has no none"),
    ):
        wrong = slotool(*f"family a={model} {options}".split())
        assert said in " ".join(wrong.stderr.split())
        assert wrong.exit_code == 2


def test_a_kept_column_is_the_group_of_rules(here: Path, slotool: Slotool) -> None:
    for name, words in (("small", 6), ("large", 60)):
        text_network(here / f"{name}.onnx", words)
    drawn = texts(400, 3)
    drawn["language"] = np.where(np.arange(400) % 3 > 0, "de", "fr")
    np.savez(here / "texts.npz", **drawn)
    versions = ("small=small.onnx", "large=large.onnx", "--data", "texts.npz", "--repeats", "1")
    made = slotool("family", *versions, "--keep", "language", "-o", "family", "--outcomes", "outcomes.parquet")
    assert made.exit_code == 0, made.stderr
    table = OutcomeTable.load(here / "outcomes.parquet")
    rows = load_dataset("texts.npz").everything.rows
    assert table.text("language").tolist() == drawn["language"][rows].tolist()
    rules = slotool("gen-rules", "outcomes.parquet", "--tolerances", "0.3", "--group", "language", "-o", "rules.json")
    assert rules.exit_code == 0, rules.stderr
    assert "each tolerance holds for each language (examples): de (266), fr (134)" in rules.stdout
    unknown = slotool("family", *versions, "--keep", "region", "-o", "other")
    assert (unknown.exit_code, "no column is called 'region'" in unknown.stderr) == (2, True)
    taken = slotool("family", *versions, "--keep", "error", "-o", "other")
    assert (taken.exit_code, "the outcome table has a column 'error' of its own" in taken.stderr) == (2, True)
