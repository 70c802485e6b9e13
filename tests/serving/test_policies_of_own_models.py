"""Policies over three ONNX files of a user's own, asked over HTTP: who answers whom, and as the file itself would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool import family
from slotool.data import DataSource
from slotool.models.adapters.onnx import OnnxModel
from slotool.rules.switching import LoadTest, SwitchingPlan
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable
from tests.elastic.text_models import text_network, texts
from tests.serving.live_server import HTTP, LiveServer, live_server

WORDS = {"small": 5, "medium": 30, "large": 60}
# Of a call, whatever its batch: far from what these tiny models take, so that the machine's noise decides nothing.
LATENCY_S = {"small": 0.02, "medium": 0.2, "large": 2.0}
POLICIES = ("slackfit", "value-iteration", "switching")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "texts.npz", **texts(400, 4))
    versions = {name: text_network(folder / f"{name}.onnx", words) for name, words in WORDS.items()}
    outcomes, latency = folder / "outcomes.parquet", folder / "latency.parquet"
    family(versions, DataSource(str(folder / "texts.npz")), out=folder / "texts", outcomes=outcomes, latency=latency,
           repeats=1, batch_sizes=(1, 4), split="all")  # fmt: skip
    rows = LatencyTable.load(latency).rows
    rows["latency_s"] = rows["point"].map({f"version={name}": seconds for name, seconds in LATENCY_S.items()})
    rows["samples_s"] = [np.full(3, seconds) for seconds in rows["latency_s"]]
    LatencyTable(rows).save(latency)
    points = {f"version={name}": 1.0 / seconds for name, seconds in LATENCY_S.items()}
    loads = tuple(LoadTest(point, 1, 1, rate, 0.01, 1.0) for point, rate in points.items())
    accuracy = {f"version={name}": 0.7 + words / 300 for name, words in WORDS.items()}
    SwitchingPlan("texts", 10.0, 1, 1, points, accuracy, loads, rows["machine"].iloc[0]).save(folder / "plan.json")
    return folder


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[LiveServer]:
    models = {}
    for policy in POLICIES:
        sources = Sources(
            (folder / "texts",),
            (policy,),
            latency=folder / "latency.parquet",
            outcomes=(folder / "outcomes.parquet",),
            policy=policy,
            deadline_us=10e6,
            plan=folder / "plan.json" if policy == "switching" else None,
        )
        models |= sources.load(lambda doubt: None)
    with live_server(list(models.values())) as live:
        yield live


def asked(live: LiveServer, policy: str, arrays: dict[str, np.ndarray], timeout_s: float) -> dict[str, Any]:
    inputs = [{"name": name, "datatype": "INT64", "shape": list(array.shape), "data": array.ravel().tolist()}
              for name, array in arrays.items()]  # fmt: skip
    document = {"inputs": inputs, "parameters": {"timeout": round(timeout_s * 1e6)}}
    answer = HTTP.post(f"{live.url}/v2/models/{policy}/infer", json=document)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_answer_is_that_of_the_version_that_the_policy_chose(folder: Path, live: LiveServer, policy: str) -> None:
    drawn = texts(6, 9)
    arrays = {name: drawn[name] for name in ("input_ids", "attention_mask")}
    answer = asked(live, policy, {name: array[:2] for name, array in arrays.items()}, 5.0)
    point = answer["parameters"]["operating_point"]
    with OnnxModel(folder / f"{point.removeprefix('version=')}.onnx", threads=1) as model:
        expected = model({name: array[:2] for name, array in arrays.items()})["logits"]
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected.ravel(), rtol=1e-6)


@pytest.mark.parametrize(("timeout_s", "version"), [(5.0, "large"), (1.0, "medium"), (0.15, "small")])
def test_slackfit_takes_the_most_accurate_version_that_the_slack_allows(
    live: LiveServer, timeout_s: float, version: str
) -> None:
    drawn = texts(1, 9)
    arrays = {name: drawn[name] for name in ("input_ids", "attention_mask")}
    answer = asked(live, "slackfit", arrays, timeout_s)
    assert answer["parameters"]["operating_point"] == f"version={version}"


def test_a_server_of_onnx_files_starts_without_torch(folder: Path) -> None:
    # Which takes longer to load than all the rest.
    tables = ["--latency", str(folder / "latency.parquet"), "--outcomes", str(folder / "outcomes.parquet")]
    command = ["serve", str(folder / "texts"), *tables, "--threads", "1", "--port", "0", "--json"]
    with subprocess.Popen([sys.executable, "-m", "slotool", *command], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert "texts" in json.loads(server.stdout.readline())["models"]
            assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()
        finally:
            server.terminate()
