"""Engines: this machine, and the nodes of a real ray cluster that loses some of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotool.errors import InputError, WorkerError
from slotool.graphs import GraphBuilder
from slotool.graphs.store import write_graphs
from slotool.machine import usable_cores
from slotool.profiling.campaign import Campaign
from slotool.profiling.engines import LocalEngine
from slotool.profiling.engines.ray_engine import RayEngine
from slotool.profiling.plan import Item, Settings, combinations_of, solo_items
from slotool.profiling.subjects import Subject
from slotool.tables import LatencyTable
from slotool.testing.engines import EngineConformance, workers
from slotool.timing.timer import StoppingRule
from tests.machines import UNKNOWN, run_as
from tests.ray_nodes import Nodes, cluster_of_nodes

MakeSubject = Callable[..., Subject]
HOSTILE = "hostile_backend:HostileBackend"
SETTINGS = Settings(backend=HOSTILE, rule=StoppingRule(runs=5, max_seconds=0.0), timeout_s=30.0)
PATIENCE_S = 240.0


def subject_of(name: str, does: str = "run") -> Subject:
    return Subject(name=name, content=name, request={"name": name, "does": does})


class TestLocal(EngineConformance):
    make = staticmethod(LocalEngine)


@pytest.mark.usefixtures("two_nodes")
class TestRay(EngineConformance):
    make = staticmethod(RayEngine)
    places = 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster_of_nodes(Path(__file__).parent) as nodes:
        yield nodes


@pytest.fixture
def two_nodes(nodes: Nodes) -> Nodes:
    while len(nodes.measuring) < 2:
        nodes.add()
    return nodes


def run(items: list[Item], out: Path, engine: RayEngine) -> LatencyTable:
    with Campaign(items, engine.settings, out, engine=lambda _: engine) as campaign:
        return campaign.run()


@pytest.mark.long
def test_an_item_that_kills_whoever_measures_it_fails_alone(two_nodes: Nodes, out: Path, subject: MakeSubject) -> None:
    subjects = [subject("fatal", "parricide"), subject("unlucky", "parricide-once"), subject("s0"), subject("s1")]
    rows = run(solo_items(subjects, SETTINGS), out, RayEngine(SETTINGS)).rows.set_index("subject")
    assert rows["status"].to_dict() == {"fatal": "failed", "unlucky": "ok", "s0": "ok", "s1": "ok"}
    assert "node measuring it was lost" in rows.loc["fatal", "reason"]
    assert "\n" not in rows.loc["fatal", "reason"]


def test_combinations_are_measured_on_nodes_too(two_nodes: Nodes, out: Path) -> None:
    settings = replace(SETTINGS, placement="shared", rule=replace(SETTINGS.rule, max_seconds=1.0))
    rows = run(combinations_of([subject_of("a"), subject_of("b")], [2], settings), out, RayEngine(settings)).rows
    assert sorted(zip(rows["subject"], rows["co_runners"], strict=True)) == [("a", "b"), ("b", "a")]
    assert set(rows["status"]) == {"ok"}
    assert (rows["degradation_ratio"] > 0).all()


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    def mlp(units: int) -> Any:
        builder = GraphBuilder("mlp")
        builder.add("Dense", builder.add("InputLayer", shape=[8]), units=units)
        return builder.graph()

    write_graphs(tmp_path / "graphs.parquet", [mlp(n) for n in range(1, 9)])
    return tmp_path / "graphs.parquet"


@pytest.mark.long
def test_the_command_is_interrupted_and_resumed_without_a_word_of_ray(
    two_nodes: Nodes, graphs: Path, out: Path
) -> None:
    where = ["--engine", "ray", "--address", two_nodes.address]
    command = [sys.executable, "-m", "slotool", "profile", "solo", graphs, "-o", out, "--backend", HOSTILE, "--json"]
    command = [*map(str, command), "--threads", "1", "--rounds", "1", "--runs", "500", *where]
    journal = out.with_name(out.name + ".journal")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE_S
    while not (journal.exists() and journal.read_text().count("\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (130, "")
    assert "the same command again resumes" in stderr
    while workers() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not workers()

    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok_rows"], document["measured"] + document["resumed"]) == (0, 8, 8)
    assert document["resumed"] >= 2
    assert len(LatencyTable.load(out)) == 8
    notes = ("resuming", "profiling on", "measuring on 2", "left out")
    assert all(line.startswith(notes) for line in done.stderr.splitlines()), done.stderr


def add_a_smaller_one(nodes: Nodes) -> Any:
    """Return a new node with a core less than this machine gives."""
    with pytest.MonkeyPatch.context() as patch:
        run_as(UNKNOWN, patch, cores_given=usable_cores() - 1)
        return nodes.add()


def endless(engine: RayEngine, drawn: list[Item], noticed: str) -> Iterator[Item]:
    """Items until the engine has left out what it is to notice."""
    while not any(noticed in reason for reason in engine.left_out):
        drawn.append(Item((subject_of(f"s{len(drawn)}"),), 1))
        yield drawn[-1]


@pytest.mark.long
def test_nodes_of_another_kind_are_left_out_and_those_that_die_lose_nothing(two_nodes: Nodes) -> None:
    first, second = two_nodes.measuring
    smaller, told, drawn = add_a_smaller_one(two_nodes), [], []
    with RayEngine(SETTINGS, tell=told.append) as engine:
        unlike = next(reason for reason in engine.left_out if smaller.node_id[:6] in reason)
        cores = usable_cores()
        assert f"another machine (cores given {cores - 1} → {cores})" in unlike
        assert sum("it offers no CPU" in reason for reason in engine.left_out) == 1
        assert any("measuring on 2 of the cluster's nodes" in text for text in told)

        rows = engine.rows(endless(engine, drawn, first.node_id[:6]))
        found = next(rows)
        two_nodes.kill(first)
        found += [row for more in rows for row in more]
        assert Counter(row["subject"] for row in found) == Counter(item.subjects[0].name for item in drawn)
        assert {row["status"] for row in found} == {"ok"}
        assert len(found) >= 3

        rows = engine.rows(endless(engine, drawn, "nothing of this name"))
        next(rows)
        two_nodes.kill(second)
        with pytest.raises(WorkerError, match="every node of the cluster is lost"):
            deque(rows, maxlen=0)
    with pytest.raises(InputError, match=r"no node of the cluster is like this machine: .*cores given"):
        RayEngine(SETTINGS)
