"""Replicas and threads changed while a real server answers: no request is lost, and the workers have their cores."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest

from slotool.errors import InputError
from slotool.machine import usable_cores
from slotool.rules.switching import LoadTest, SwitchingPlan
from slotool.serving.engines import InlineInferenceEngine
from slotool.tables import LatencyTable, OutcomeTable
from tests.elastic.test_family_tensors import write
from tests.serving.live_server import HTTP, until
from tests.serving.test_hot_reload import describe, hang_up, under_load
from tests.serving.test_serve_command import serving

CORES = usable_cores()
WORKER = "slotool.serving.engines.local_worker"


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: the workers are counted among the children of the server."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ONNX file, which processes serve without torch."""
    write(tmp_path / "net.onnx", "input", "label")
    return tmp_path


def workers_of(server: int) -> list[tuple[int, int]]:
    """Cores and threads that each worker process of a server was given."""
    found = []
    for process in psutil.Process(server).children():
        with suppress(psutil.NoSuchProcess):  # it is just ending
            command = process.cmdline()
            # Until it runs its own program, a new process still has the server's command line.
            if WORKER in command:
                found.append((len(process.cpu_affinity()), json.loads(command[-1])["threads"]))
    return found


def metric(url: str, name: str) -> float:
    lines = HTTP.get(f"{url}/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def workers_in(log: Path) -> list[tuple[list[int], list[int], str]]:
    """Of the events: before, after and why."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        (event["before"], [event["replicas"], event["threads"]], event["reason"])
        for event in events
        if event["event"] == "workers"
    ]


@pytest.mark.skipif(CORES < 2, reason="two workers need two cores")
def test_workers_are_changed_under_load_and_no_request_is_lost(folder: Path) -> None:
    describe(folder, "net.onnx")
    with serving(folder, "--config", "service.toml", "--engine", "local", "--log", "log.jsonl") as (process, ready):
        live = ready["url"] + "/live"

        assert HTTP.get(live).json()["can_reconfigure"]
        with under_load(ready["url"]) as answers:
            until(lambda: all(len(received) > 20 for received in answers))
            response = HTTP.post(live, json={"threads": 2})
            assert response.status_code == 200, response.text
            assert (response.json()["all_workers"], response.json()["threads"]) == (1, 2)
            until(lambda: workers_of(process.pid) == [(2, 2)])
            # The file has come to ask for others.
            file = folder / "service.toml"
            file.write_text("replicas = 2\n" + file.read_text())
            assert "workers, tables and rules reloaded" in hang_up(process)
            until(lambda: workers_of(process.pid) == [(1, 1)] * 2)
            counts = [len(received) for received in answers]
            until(lambda: all(len(r) > count + 20 for r, count in zip(answers, counts, strict=True)))
        assert metric(ready["url"], "slotool_workers") == 2
        assert metric(ready["url"], "slotool_worker_threads") == 1
        assert metric(ready["url"], "slotool_worker_reconfigurations_total") == 2
        assert workers_in(folder / "log.jsonl") == [
            ([1, 1], [1, 2], "asked for at /live"),
            ([1, 2], [2, 1], "the files of the server ask for it"),
        ]
        lost = [line for line in (folder / "log.jsonl").read_text().splitlines() if "worker-lost" in line]
        assert not lost
        for asked, sentence in (
            ({"replicas": 0}, "replicas: a whole number from 1 on"),
            ({"threads": "2"}, "threads: a whole number from 1 on"),
            ({"replicas": CORES + 1}, f"is more than the {CORES} cores"),
        ):
            response = HTTP.post(live, json=asked)
            assert (response.status_code, sentence in response.text) == (400, True), response.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.long
@pytest.mark.skipif(CORES < 2, reason="two workers need two cores")
def test_the_workers_of_a_new_plan_replace_those_of_the_old_one(folder: Path) -> None:
    rows = [{"subject": "net", "point": "full", "batch_size": 1, "samples_s": [1e-4]}]
    LatencyTable.of(rows).save(folder / "latency.parquet")
    outcomes = [(str(e), "full", float(e == 0), 0.9, 1e-4) for e in range(20)]
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable(pd.DataFrame(outcomes, columns=columns)).save(folder / "outcomes.parquet")

    def plan(replicas: int) -> None:
        load = LoadTest("full", replicas, 1, 100.0, 0.001, 1.0)
        rates, accuracy = {"full": 100.0}, {"full": 0.95}
        made = SwitchingPlan("net", 0.05, replicas, 1, rates, accuracy, (load,), "here")
        (folder / "plan.json").unlink(missing_ok=True)
        made.save(folder / "plan.json")

    plan(1)
    tables = 'latency = "latency.parquet"\noutcomes = "outcomes.parquet"\nplan = "plan.json"\npolicy = "switching"\n'
    describe(folder, "net.onnx", tables)
    with serving(folder, "--config", "service.toml", "--engine", "local") as (process, ready):
        assert len(workers_of(process.pid)) == 1
        with under_load(ready["url"]) as answers:
            until(lambda: all(len(received) > 20 for received in answers))
            plan(2)
            assert "workers, tables and rules reloaded" in hang_up(process)
            until(lambda: len(workers_of(process.pid)) == 2)
            counts = [len(received) for received in answers]
            until(lambda: all(len(r) > count + 20 for r, count in zip(answers, counts, strict=True)))
        response = HTTP.post(ready["url"] + "/live", json={"replicas": 1})
        assert response.status_code == 400
        assert "the plan was made for --engine local --replicas 2 --threads 1" in response.text
        assert len(workers_of(process.pid)) == 2


def test_engines_whose_workers_cannot_be_changed_say_so() -> None:
    with pytest.raises(InputError, match="engine inline cannot take other workers"):
        asyncio.run(InlineInferenceEngine().stage({}, (2, 1)))
