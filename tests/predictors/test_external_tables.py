"""Data from elsewhere: operator names of their own, latencies of two columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotool.errors import TableError
from slotool.graphs import OperatorGraph
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.tables import LatencyTable
from tests.predictors.external_cells import write_cells

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "external-tables.md"


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> tuple[Path, Path]:
    return write_cells(tmp_path_factory.mktemp("cells"), 240, seed=0)


@pytest.mark.parametrize("models", ["additive", pytest.param("additive,graph", marks=pytest.mark.long)])
def test_trained_on_predicted_and_scored(slotool, cells: tuple[Path, Path], models: str, tmp_path: Path) -> None:
    graphs, latency = cells
    inputs = (latency, "--graphs", graphs)
    trained = slotool("train-predictor", *inputs, "-o", tmp_path / "p", "--model", models, "--json")
    assert trained.exit_code == 0, trained.stderr
    scores = trained.document["predictors"]
    # The latency is a sum over operators, so those that know types and sum them find it, to the noise of 2 %.
    assert max(scores[name]["mape"] for name in models.split(",")) < 0.04
    assert set(scores["additive"]["floor"].values()) == {None}
    assert trained.document["setting"]["device"] == "unknown"
    assert "nor_conv_3x3" in TrainedPredictor.load(str(tmp_path / "p")).domain.types

    fresh, later = write_cells(tmp_path / "new", 30, seed=1, samples=4)
    predicted = slotool("predict", tmp_path / "p", "--graph", fresh, "--json")
    assert predicted.exit_code == 0, predicted.stderr
    assert not any("never measured" in (row["outside"] or "") for row in predicted.document["predictions"])
    evaluated = slotool("evaluate-predictor", tmp_path / "p", "--latency", later, "--graphs", fresh, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    score = evaluated.document["scores"]["all"]
    assert score["mape"] < 0.04
    assert 0.5 < score["floor"]["mape"] / score["mape"] < 1.5, "four samples each tell how noisy they are"


def test_a_parquet_table_of_plain_numbers_and_several_rows_per_subject(tmp_path: Path) -> None:
    columns = {"subject": ["a", "a", "b"], "latency_s": [0.1, 0.2, 0.3], "note": ["x", "y", "z"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows = LatencyTable.load(tmp_path / "t.parquet").rows
    assert [samples.tolist() for samples in rows["samples_s"]] == [[0.1], [0.2], [0.3]]
    assert rows["note"].tolist() == ["x", "y", "z"]
    assert "latency_s" not in rows
    assert set(rows["device"]) == set(rows["machine"]) == {"unknown"}
    (tmp_path / "t.csv").write_text("subject,latency_s,samples_s\na,9,0.1;0.2\n")
    both = LatencyTable.load(tmp_path / "t.csv").rows
    assert both["samples_s"][0].tolist() == [0.1, 0.2], "the name itself goes before its alias"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("subject,latency_s\na,0.1\nb,0\n", "row 2, column latency_s: '0' must be greater than 0"),
        ("subject,latency_s\na,-0.1\n", "row 1, column latency_s"),
        ("subject,latency_s\na,nan\n", "row 1, column latency_s"),
        ("subject,latency_s\na,fast\n", "column latency_s: 'fast' is not a list of numbers"),
        ("subject,latency_s\na,1\nb,\n", "row 2, samples_s or latency_s: no samples"),
        ("subject,latency_ms\na,1\n", "column samples_s or latency_s is missing: seconds per call (ms ÷ 1000)"),
    ],
)
def test_latencies_that_are_none_are_sentences_in_the_tables_own_words(tmp_path: Path, text, sentence) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TableError, match=re.escape(sentence)):
        LatencyTable.load(tmp_path / "t.csv")


def test_the_documented_example_is_one_and_the_documented_commands_exist(slotool, tmp_path: Path) -> None:
    text = DOCS.read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    graph = OperatorGraph.from_document(json.loads(example))
    assert graph.name == "cell-7"
    assert {operator.op for operator in graph.unknown} == {"stem", "nor_conv_3x3", "avg_pool_3x3", "skip_connect"}
    (csv,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    (tmp_path / "t.csv").write_text(csv)
    assert LatencyTable.load(tmp_path / "t.csv").rows["subject"].tolist() == ["cell-7", "cell-8"]
    for command in re.findall(r"^slotool (.*)$", text, re.MULTILINE):
        shown = slotool(command.split()[0], "--help")
        assert shown.exit_code == 0
        for option in re.findall(r" (--[\w-]+)", command):
            assert option in shown.stdout, command
