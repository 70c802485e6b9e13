"""Several pools of workers behind one port: who gets which request, and what becomes of it when a pool is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.artifacts.shipped import shipped_artifact
from slotool.errors import InputError
from slotool.planning.server_process import RunningServer
from slotool.scheduling.shares import WeightedTurns
from slotool.serving.operations.pooled_sources import PooledSources
from slotool.serving.operations.service_file import ServiceFile
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable
from tests.serving.live_server import until

EXAMPLE = {"inputs": [{"name": "input", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4), st.integers(0, 300))
def test_each_pool_gets_its_share(shares: list[float], requests: int) -> None:
    turns = WeightedTurns(shares)
    dealt = [turns.next() for _ in range(requests)]
    given_to = np.bincount(dealt, minlength=len(shares))
    assert (np.abs(given_to - requests * np.array(shares) / sum(shares)) <= len(shares)).all()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A service of two pools, of 3/4 and 1/4 of the requests."""
    for name, factor in (("fast", 1.0), ("slow", 2.0)):
        rows = [
            {"subject": "family", "point": f"version={version}", "samples_s": [factor * seconds]}
            for version, seconds in (("small", 1e-3), ("medium", 2e-3), ("large", 4e-3))
        ]
        LatencyTable.of(rows).save(tmp_path / f"{name}.parquet")
    path = tmp_path / "service.toml"
    path.write_text(
        f"""
engine = "local"
log = "events.jsonl"
[[pools]]
name = "fast"
share = 3
latency = "fast.parquet"
max-replicas = 2
requests-per-worker = 0.5
[[pools]]
name = "slow"
share = 1
latency = "slow.parquet"
max-queue = 7
[[models]]
artifact = "{shipped_artifact("family").path}"
"""
    )
    (tmp_path / "events.jsonl").touch()
    return path


def read(file: Path, **settings: Any) -> Any:
    return ServiceFile(file, {}, Sources((), mapped=True), **settings).read()


def test_each_pool_plans_by_its_own_latencies(file: Path) -> None:
    sources = read(file)
    assert isinstance(sources, PooledSources)
    assert [(pool.name, pool.max_queue) for pool in sources.pools] == [("fast", 1_000), ("slow", 7)]
    by_pool = sources.load(lambda sentence: None)["family"].by_pool
    fast, slow = (served.space for served in by_pool)
    assert fast is not None
    assert slow is not None
    assert [slow.latency_us(point, 1) for point in slow.points] == [
        2 * fast.latency_us(point, 1) for point in fast.points
    ]
    assert read(file, only_pool="slow").parts[0].latency == file.parent / "slow.parquet"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("share = 1", "share = 0"), r"pools\[1\].share"),
        (lambda text: text.replace("share = 1", ""), "'share' is missing"),
        (lambda text: text.replace("share = 1", "portion = 1"), "there is no key 'portion'; there are share, replicas"),
        (lambda text: text.replace('name = "slow"', 'name = "fast"'), "the name of another pool"),
        (lambda text: text.replace("slow.parquet", "none.parquet"), "there is no file"),
        (lambda text: text.replace("max-replicas = 2", "max-replicas = 2\nreplicas = 3"), "2 workers at most, and 3"),
        (lambda text: text.replace("max-replicas = 2", ""), r"pools\[0\].requests-per-worker: without max-replicas"),
        (lambda text: "threads = 2\n" + text, "each of the .*pools.* says so for itself"),
        (lambda text: "pools = []\n" + text[text.index("[[models]]") :], "at least one"),
    ],
)
def test_a_mistake_in_pools_is_one_sentence(file: Path, change: Callable[[str], str], says: str) -> None:
    file.write_text(change(file.read_text()))
    with pytest.raises(InputError, match=says):
        read(file)


def test_a_server_of_two_pools_scales_one_of_them_and_answers_all_when_the_other_is_lost(
    file: Path,
) -> None:
    arguments = ["--config", str(file), "--port", "0", "--allow-faults"]
    with RunningServer(arguments) as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def count(pool: str) -> float:
            line = f'slotool_pool_requests_total{{pool="{pool}"}} '
            return float(client.get("/metrics").text.partition(line)[2].partition("\n")[0])

        def ask(times: int) -> None:
            for _ in range(times):
                assert client.post("/v2/models/family/infer", json=EXAMPLE).status_code == 200

        def events(kind: str) -> list[dict[str, Any]]:
            lines = map(json.loads, (file.parent / "events.jsonl").read_text().splitlines())
            return [line for line in lines if line["event"] == kind]

        def pools() -> list[str]:
            return [state["pool"] for state in client.get("/live").json()["worker_states"]]

        assert pools() == ["fast", "slow"]
        ask(40)
        assert (count("fast"), count("slow")) == (30, 10)
        until(lambda: events("worker-added"))
        assert events("scale")[0]["pool"] == "fast"
        assert pools() == ["fast", "fast", "slow"]
        assert client.post("/faults", json={"action": "kill", "worker": 2, "lasts_s": 600}).status_code == 200
        until(lambda: events("worker-lost"))
        assert events("worker-lost")[0]["pool"] == "slow"
        ask(8)
        assert (count("fast"), count("slow")) == (38, 10)
        os.kill(server.process_id, signal.SIGHUP)
        until(lambda: events("reload"))
        file.write_text(file.read_text().replace("share = 1", "share = 1\nreplicas = 2"))
        os.kill(server.process_id, signal.SIGHUP)
        until(lambda: events("reload-failed"))
        assert "start the server again" in events("reload-failed")[0]["message"]
        ask(1)
