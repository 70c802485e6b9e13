"""Load tests with data as a user has them: columns in any order, classes by name, no labels at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import slotool
from slotool.commands.serving.load_tested import LoadTest
from slotool.errors import ArgumentError, DataError
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import ServedModel
from slotool.workloads.requests import RequestLog
from tests.serving.live_server import LiveServer, live_server

# pytest resets the filter of warnings that the model sets when it is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")
FEATURES = ["weight", "height", "y"]


def flowers(count: int, seed: int) -> pd.DataFrame:
    """Three measures, one of them called as labels often are, and a kind that they tell without fail."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, 3, count)
    frame = pd.DataFrame(random.normal(size=(count, 3)) + 9 * np.eye(3)[kind], columns=FEATURES)
    return frame.assign(kind=np.array(["tulip", "rose", "aster"])[kind])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    path = tmp_path_factory.mktemp("flowers") / "flowers.parquet"
    flowers(60, 0).to_parquet(path)
    train = flowers(90, 1)
    model = LogisticRegression().fit(train[FEATURES], train["kind"])
    made = slotool.family({"only": model}, f"{path}:kind", repeats=1, batch_sizes=(1,)).family
    space = ControlSpace(made.points, {(made.points[0], 1): 100.0}, {made.points[0]: 1.0})
    with live_server([ServedModel("flowers", made, by_demand(space))]) as live:
        yield live


def load(server: LiveServer, data: Path, protocol: str = "http") -> LoadTest:
    url = server.url if protocol == "http" else server.grpc_address
    return slotool.loadtest(url, rate=60.0, duration_s=0.4, data=str(data), protocol=protocol, progress=None)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_columns_go_by_the_features_and_classes_by_the_names_that_the_model_knows(
    server: LiveServer, tmp_path: Path, protocol: str
) -> None:
    data = tmp_path / "others.csv"
    # Of two of the three classes, and with the columns in another order.
    frame = flowers(80, 2)[["kind", "y", "weight", "height"]]
    frame[frame["kind"] != "aster"].to_csv(data, index=False)
    found = load(server, data, protocol)
    assert found.summary["effective_accuracy"] == 1.0, found.log.statuses()
    assert set(found.frame()["label"]) == {1, 2}


def test_data_without_labels_are_sent_and_nothing_is_said_of_accuracy(server: LiveServer, tmp_path: Path) -> None:
    data = tmp_path / "unlabelled.csv"
    flowers(80, 3)[["y", "weight", "height"]].to_csv(data, index=False)
    found = load(server, data)
    assert found.summary["answered"] == found.summary["requests"] > 0
    assert np.isnan(found.summary["effective_accuracy"])
    with pytest.raises(DataError, match="no column is called 'species'"):
        load(server, tmp_path / "unlabelled.csv:species")


def test_a_class_that_the_model_does_not_know_is_named_with_its_row(server: LiveServer, tmp_path: Path) -> None:
    data = tmp_path / "weeds.csv"
    flowers(5, 4).assign(kind=["rose", "rose", "nettle", "rose", "rose"]).to_csv(data, index=False)
    with pytest.raises(DataError, match=r"row 3, column 'kind': class 'nettle', which the model does not know"):
        load(server, data)


def test_of_data_that_trained_nothing_all_may_be_sent(server: LiveServer, tmp_path: Path) -> None:
    data = tmp_path / "held-out.parquet"
    flowers(20, 5).to_parquet(data)

    def sent(**asked: str) -> set[int]:
        found = slotool.loadtest(
            server.url, rate=100.0, duration_s=1.0, data=f"{data}:kind", out=tmp_path / "log.parquet", force=True,
            progress=None, **asked,
        )  # fmt: skip
        assert RequestLog.load(tmp_path / "log.parquet").provenance["split"] == asked.get("split", "test")
        return set(found.frame()["example"])

    # By default a fifth of a file that does not tell its splits apart, since the rest may have trained the model.
    assert len(sent()) == 4
    assert len(sent(split="train")) == 12
    assert len(sent(split="all")) == 20
    with pytest.raises(ArgumentError, match="'some' is none of all, train, validation, test"):
        sent(split="some")
