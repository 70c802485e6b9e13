"""Networks that are trained on named columns, and read other tables by these names."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine

import slotool as library
from slotool.elastic import load_model
from slotool.errors import DataError
from tests.conftest import Slotool

# Twice, as tables of an SLO-NN take more rows for validation than it has.
FRAME = pd.concat([load_wine(as_frame=True).frame.rename(columns={"target": "label"})] * 2, ignore_index=True)
COLUMNS = list(FRAME.columns[:-1])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slotool: Slotool) -> Path:
    """A folder with tables of the same rows, and a network trained on the first."""
    monkeypatch.chdir(tmp_path)
    scaled = FRAME.assign(**{name: (FRAME[name] - FRAME[name].mean()) / FRAME[name].std() for name in COLUMNS})
    scaled.to_csv("wine.csv", index=False)
    scaled[["label", *reversed(COLUMNS)]].to_csv("shuffled.csv", index=False)
    scaled.rename(columns={"ash": "cinder"}).to_csv("renamed.csv", index=False)
    trained = slotool("train", "mlp", "-o", "mlp", "--data", "wine.csv", "--hidden", 16, "--epochs", 40)
    assert trained.exit_code == 0, trained.stderr
    return tmp_path


def accuracy(slotool: Slotool, artifact: str, table: str) -> float:
    evaluated = slotool("evaluate", artifact, "--data", table, "-o", "e.parquet", "--repeats", 1, "--json", "--force")
    assert evaluated.exit_code == 0, evaluated.stderr
    return float(evaluated.document["points"][-1]["accuracy"])


def test_columns_go_by_the_names_of_training(here: Path, slotool: Slotool) -> None:
    assert accuracy(slotool, "mlp", "shuffled.csv") == accuracy(slotool, "mlp", "wine.csv") > 0.9
    slotool("build-tables", "mlp", "-o", "tables", "--data", "shuffled.csv")
    assert accuracy(slotool, "tables", "shuffled.csv") == accuracy(slotool, "tables", "wine.csv") > 0.9
    for command in ("evaluate mlp", "build-tables mlp", "profile points mlp --co-runners 0"):
        refused = slotool(*command.split(), "--data", "renamed.csv", "-o", "refused", "--force")
        assert refused.exit_code
        assert "missing columns: ash; unknown columns: cinder" in refused.stderr


def test_clients_order_columns_as_the_served_network_was_trained(here: Path) -> None:
    with library.serve("mlp") as server:
        load = {"rate": 40, "duration_s": 1, "split": "all", "progress": None}
        loaded = library.loadtest(server.url, data="shuffled.csv", **load)
        assert loaded.log.correct.mean() > 0.9
        with pytest.raises(DataError, match="missing columns: ash"):
            library.loadtest(server.url, data="renamed.csv", **load)


def test_an_artifact_without_names_takes_columns_as_they_stand(here: Path, slotool: Slotool) -> None:
    manifest = here / "mlp" / "manifest.json"
    document = json.loads(manifest.read_text())
    assert document["config"].pop("features") == COLUMNS
    manifest.write_text(json.dumps(document))
    assert load_model("mlp").data_options is None
    assert accuracy(slotool, "mlp", "renamed.csv") > 0.9


@pytest.mark.parametrize("command", ["mlp", "supernet"])
def test_measured_numbers_are_no_classes(command: str, tmp_path: Path, slotool: Slotool) -> None:
    table = tmp_path / "diabetes.csv"
    load_diabetes(as_frame=True).frame.to_csv(table, index=False)
    refused = slotool("train", command, "-o", tmp_path / "r", "--data", table)
    assert refused.exit_code == 2
    assert "'target' has 214 different numbers in 442 rows" in refused.stderr


@pytest.mark.parametrize("command", ["cnn", "family", "supernet", "supernet --network transformer"])
def test_networks_for_images_name_what_a_table_lacks(command: str, tmp_path: Path, slotool: Slotool) -> None:
    FRAME.to_csv(tmp_path / "wine.csv", index=False)
    refused = slotool("train", *command.split(), "-o", tmp_path / "r", "--data", tmp_path / "wine.csv")
    assert refused.exit_code == 2
    assert "images" in refused.stderr
    assert "slotool train mlp" in refused.stderr
