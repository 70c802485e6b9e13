"""A family of a user's own models, of two integer inputs, by every command that takes one."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slotool.data.dataset import Split
from slotool.errors import InputError
from slotool.planning import PlanSearch
from slotool.rules.switching import LoadTest, SwitchingPlan
from slotool.scheduling.batching import read_profile
from slotool.tables import LatencyTable, OutcomeTable
from slotool.timing.interference import OtherWork
from tests.conftest import Slotool
from tests.elastic.text_models import text_network, texts

READ = ("--label", "kind", "--input", "ids=input_ids", "--input", "shown=attention_mask")
TRIES = 4
TABLES = ("--outcomes", "outcomes.parquet", "--latency", "latency.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The family ``texts``, its tables, and data whose columns are called otherwise than its inputs."""
    from slotool import family
    from slotool.data import DataSource

    folder = tmp_path_factory.mktemp("texts")
    drawn = texts(400, 4)
    # A column that is neither a label nor an input, and labels under no usual name.
    columns = {"ids": list(drawn["input_ids"]), "shown": list(drawn["attention_mask"]), "note": "x"}
    pd.DataFrame({**columns, "kind": drawn["y"]}).to_parquet(folder / "texts.parquet")
    source = DataSource(str(folder / "texts.parquet"), "kind", {"ids": "input_ids", "shown": "attention_mask"})
    versions = {name: text_network(folder / f"{name}.onnx", words) for name, words in (("small", 30), ("large", 60))}
    outcomes, latency = folder / "outcomes.parquet", folder / "latency.parquet"
    for _ in range(TRIES):
        written = {"out": folder / "texts", "outcomes": outcomes, "latency": latency, "force": True}
        family(versions, source, **written, repeats=5, batch_sizes=(1, 4))
        with suppress(InputError):
            # A busy machine may slow one batch size down by so much that nothing can be planned with it.
            read_profile(LatencyTable.load(latency), OutcomeTable.load(outcomes))
            break
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def done(slotool: Slotool, *command: str) -> dict:
    finished = slotool(*command, "--json")
    assert finished.exit_code == 0, finished.stderr
    return finished.document


def test_evaluate_and_rules_and_their_replay(slotool: Slotool) -> None:
    found = done(
        slotool, "evaluate", "texts", "-o", "again.parquet", "--data", "texts.parquet", *READ, "--repeats", "1"
    )
    assert {row["version"] for row in found["points"]} == {"small", "large"}
    # The family remembers how its data were read.
    assert done(slotool, "evaluate", "texts", "-o", "same.parquet", "--data", "texts.parquet", "--repeats", "1")
    assert (OutcomeTable.load("again.parquet").rows["error"] == OutcomeTable.load("same.parquet").rows["error"]).all()
    done(slotool, "gen-rules", "outcomes.parquet", "-o", "rules.json", "--tolerances", "0.1,0.5",
         "--tolerance-kind", "absolute", "--confidence", "0.95")  # fmt: skip
    assert done(slotool, "evaluate-rules", "rules.json", "outcomes.parquet")["schema"] == "slotool/evaluate-rules"


def test_latencies_of_its_points_by_examples_of_a_data_set(slotool: Slotool) -> None:
    done(slotool, "profile", "points", "texts", "-o", "points.parquet", "--data", "texts.parquet", *READ, "--runs", "5",
         "--co-runners", "0", "--rounds", "1", "--batch-size", "1,4")  # fmt: skip
    rows = LatencyTable.load("points.parquet").rows
    assert sorted(set(zip(rows["point"], rows["batch_size"], strict=True))) == [
        (f"version={name}", size) for name in ("large", "small") for size in (1, 4)
    ]
    assert set(rows["status"]) == {"ok"}, list(rows["reason"])


def test_policies_on_a_virtual_clock_and_a_report(slotool: Slotool) -> None:
    done(slotool, "generate", "arrivals", "-o", "arrivals.parquet", "--rate", "200", "--duration", "1s")
    found = done(slotool, "simulate", "latency.parquet", "--outcomes", "outcomes.parquet", "--deadline-ms", "20",
                 "--arrivals", "arrivals.parquet", "--policies", "slackfit,value-iteration,switching")  # fmt: skip
    assert [row["policy"] for row in found["policies"]] == ["slackfit", "value-iteration", "switching"]
    drawn = done(slotool, "report", "texts", "outcomes.parquet", "latency.parquet", "-o", "report.html")
    assert drawn["plots"]


def test_a_switching_plan_needs_no_labels(slotool: Slotool, monkeypatch: pytest.MonkeyPatch) -> None:
    """How-to "switch-models" makes such a plan with real servers; here they are replaced."""
    asked: list[Any] = []

    @contextmanager
    def served(self: PlanSearch, configuration: tuple[int, int], split: Split, *rest: Any) -> Any:
        asked.append(split)
        yield lambda point, rate: LoadTest(point, *configuration, rate, 0.01, min(1.0, 100 / rate))

    monkeypatch.setattr(PlanSearch, "_served", served)
    pd.read_parquet("texts.parquet").drop(columns=["kind", "note"]).to_parquet("unlabelled.parquet")
    command = ("gen-switching-plan", "texts", *TABLES, "--deadline-ms", "100", "--by", "effective-accuracy",
               "--configurations", "1x1", "--data", "unlabelled.parquet", *READ[2:], "-o", "plan.json",
               "--force")  # fmt: skip
    for busy_cores, exit_code in ((0.0, 0), (1.5, 4)):
        monkeypatch.setattr(OtherWork, "read", lambda _, cores=busy_cores: (1.0, cores))
        assert slotool(*command).exit_code == exit_code
    assert (asked[0].y == -1).all()
    assert asked[0].x[:2].names == ("input_ids", "attention_mask")
    # Small is left out where noise made it the slower one.
    assert "version=large" in SwitchingPlan.load("plan.json").rates_per_s
