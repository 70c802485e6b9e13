"""``serve --switch-workers``: replicas and threads follow the load by a switching plan, and no request is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from slotool.artifacts.shipped import shipped_artifact
from slotool.machine import usable_cores
from slotool.rules.switching import ConfigurationRates, SwitchingPlan
from slotool.scheduling.worker_counts import CALM_S
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.events import Events
from slotool.serving.operations.runtime_settings import ReloadableSettings
from slotool.serving.operations.sources import Sources
from slotool.serving.operations.worker_changes import WorkerSwitching
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing.router import Router, monotonic_us
from slotool.tables import LatencyTable, OutcomeTable
from tests.serving.live_server import HTTP, until
from tests.serving.test_hot_reload import INFER, PATH, describe, hang_up, under_load
from tests.serving.test_other_workers import workers_in, workers_of
from tests.serving.test_serve_command import serving

CORES = usable_cores()
NAMES = ("small", "medium", "large")
TABLES = 'latency = "latency.parquet"\noutcomes = "outcomes.parquet"\nplan = "plan.json"\npolicy = "switching"\n'
ONE, TWO = {"small": 30.0, "medium": 20.0, "large": 10.0}, {"small": 1e5, "medium": 0.0, "large": 0.0}
Slotool = Callable[..., Any]

pytestmark = pytest.mark.skipif(CORES < 2, reason="two workers need two cores")


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: the workers are counted among the children of the server."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped family as it is served, with tables as if it had been measured."""
    (tmp_path / "family").symlink_to(shipped_artifact("family").path)
    rows = [
        {"subject": "family", "point": f"version={name}", "batch_size": size, "samples_s": [1e-4 * size]}
        for name in NAMES
        for size in (1, 4)
    ]
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    wrong = dict(zip(NAMES, (10, 4, 2), strict=True))
    outcomes = [(str(e), name, float(e < wrong[name]), 0.9, 1e-4) for name in NAMES for e in range(20)]
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable(pd.DataFrame(outcomes, columns=columns)).save(tmp_path / "outcomes.parquet")
    plan().save(tmp_path / "plan.json")
    return tmp_path


def plan(*, knows_two: bool = True) -> SwitchingPlan:
    """One worker serves every version, at low rates; two serve the small one, at any."""
    accuracy = {f"version={name}": share for name, share in zip(NAMES, (0.5, 0.8, 0.9), strict=True)}
    one, two = ({f"version={name}": rate for name, rate in rates.items()} for rates in (ONE, TWO))
    others = (ConfigurationRates(2, 1, two, ()),) if knows_two else ()
    return SwitchingPlan("family", 0.5, 1, 1, one, accuracy, (), "here", others=others)


def test_a_growing_load_has_its_workers_once(folder: Path) -> None:
    describe(folder, "family", TABLES)
    file = folder / "service.toml"
    file.write_text("switch-workers = true\n" + file.read_text().replace('"net"', '"family"'))
    infer = {"inputs": [{**INFER["inputs"][0], "shape": [1, 1, 8, 8], "data": [0.5] * 64}]}
    path = PATH.replace("net", "family")
    with serving(folder, "--config", "service.toml", "--engine", "local", "--log", "log.jsonl") as (process, ready):
        assert len(workers_of(process.pid)) == 1
        with under_load(ready["url"], path=path, body=infer) as answers:
            until(lambda: len(workers_of(process.pid)) == 2 and len(workers_in(folder / "log.jsonl")) == 1)
            counts = [len(received) for received in answers]
            until(lambda: all(len(r) > count + 20 for r, count in zip(answers, counts, strict=True)))
        # The load is gone; what it left behind stays for a while.
        time.sleep(4.0)
        assert HTTP.get(ready["url"] + "/live").json()["all_workers"] == 2
        assert "tables and rules reloaded" in hang_up(process)
        assert HTTP.get(ready["url"] + "/live").json()["all_workers"] == 2
        (before, after, reason), *more = workers_in(folder / "log.jsonl")
        assert (before, after, more) == ([1, 1], [2, 1], [])
        assert "requests/s over 2 s, at which the plan expects" in reason
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_workers_change_there_and_back_under_load_and_no_request_is_lost(folder: Path) -> None:
    """The clock is put forward between requests; processes load and end for real."""
    tables = folder / "latency.parquet", (folder / "outcomes.parquet",)
    sources = Sources(
        (folder / "family",), (), None, *tables, policy="switching", plan=folder / "plan.json", mapped=True
    )
    heard: list[dict[str, Any]] = []
    events, ahead_us = Events(), [0.0]
    events.listen(lambda kind, sentence, fields: heard.append(fields) if kind == "workers" else None)
    router = Router(
        sources.load(print), LocalInferenceEngine(1), events=events, clock_us=lambda: monotonic_us() + ahead_us[0]
    )
    settings = ReloadableSettings(sources, router, print)
    switching = WorkerSwitching(router, settings)
    x = np.full((1, 1, 8, 8), 0.5, dtype=np.float32)

    async def ask(count: int) -> int:
        options = RequestOptions(60e6)
        asked = (router.answer("family", x, options, router.now_us(), lambda: False) for _ in range(count))
        return len(await asyncio.gather(*asked))

    async def look(seconds: int, requests: int) -> int:
        answered = 0
        for _ in range(seconds):
            ahead_us[0] += 1e6
            answered += sum((await asyncio.gather(ask(requests), switching.look()))[:1])
        return answered

    async def swing() -> int:
        answered = await look(4, 200)
        assert settings.workers == (2, 1)
        answered += await look(int(CALM_S) // 2, 2)
        assert settings.workers == (2, 1)
        return answered + await look(int(CALM_S), 2)

    try:
        answered = asyncio.run(asyncio.wait_for(swing(), 120))
    finally:
        router.close()
    assert answered == router.arrived
    assert [(each["before"], each["replicas"], each["threads"]) for each in heard] == [([1, 1], 2, 1), ([2, 1], 1, 1)]
    assert f"requests/s in {CALM_S:g} s" in heard[1]["reason"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--engine", "inline"), "--switch-workers"),
        (("--engine", "local", "--max-replicas", 2, "--requests-per-worker", 9), "by which workers come and go"),
        (("--engine", "local", "--policy", "slackfit"), "there is no --plan of a single model"),
        (("--engine", "local", "--policy", "switching", "--plan", "one.json"), "is for one of them only"),
        (("--engine", "local", "--policy", "switching", "--plan", "plan.json", "--replicas", 3), "serve with these"),
    ],
)
def test_what_cannot_follow_the_load_is_refused(
    folder: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], says: str
) -> None:
    monkeypatch.chdir(folder)
    plan(knows_two=False).save(folder / "one.json")
    tables = ("--latency", "latency.parquet", "--outcomes", "outcomes.parquet")
    done = slotool("serve", "family", "--port", 0, "--switch-workers", *tables, *options)
    assert done.exit_code == 2
    assert says in done.stderr
