"""What lies in models/ and datasets/ is whole and works straight after cloning."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotool.artifacts import open_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.graphs.store import read_graphs
from slotool.tables import LatencyTable, OutcomeTable

ROOT = Path(__file__).parent.parent
MODELS = ["mlp", "family", "slo-nn"]


@pytest.mark.parametrize("name", [*MODELS, "predictor"])
def test_every_model_is_whole_and_told_of(name: str) -> None:
    open_artifact(ROOT / "models" / name)
    assert f"`{name}/`" in (ROOT / "models" / "README.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_knows_digits(name: str) -> None:
    model, test = load_model(str(ROOT / "models" / name)), load_dataset("digits").test
    answers = model.forward(test.x, model.full).argmax(axis=1)
    assert (answers == test.y).mean() > 0.95


def test_the_shipped_predictor_predicts(slotool, tmp_path: Path) -> None:
    assert slotool("generate", "mlp", "-o", tmp_path / "new.parquet", "--count", 3, "--seed", 99).exit_code == 0
    finished = slotool("predict", ROOT / "models" / "predictor", "--graph", tmp_path / "new.parquet", "--json")
    assert finished.exit_code == 0, finished.stderr
    for prediction in finished.document["predictions"]:
        assert 0 < prediction["low_s"] < prediction["latency_s"] < prediction["high_s"]


def test_the_shipped_tables_belong_together() -> None:
    folder = ROOT / "datasets"
    latency = LatencyTable.load(folder / "random-networks-latency.parquet")
    graphs = {g.id for kind in ("mlps", "cnns") for g in read_graphs(folder / f"random-networks-{kind}.parquet")}
    assert set(latency.rows["subject"]) == graphs
    assert (latency.rows["samples_s"].map(len) >= 20).all()
    assert OutcomeTable.load(folder / "digits-family-outcomes.parquet").versions == ["small", "medium", "large"]
