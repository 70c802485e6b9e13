"""``slotool profile solo`` as a person runs it, interrupts it, kills it and runs it again."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.graphs import Effect, GraphBuilder, OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.graphs.torch_module import GraphModule
from slotool.tables import LatencyTable

Slotool = Callable[..., Any]
PATIENCE_S = 240.0
# Starts in a fraction of the time that torch takes.
HOSTILE = "hostile_backend:HostileBackend"


def mlp(*units: int) -> OperatorGraph:
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[8])
    for n in units:
        last = builder.add("Dense", last, units=n, activation="relu")
    return builder.graph()


def strange() -> OperatorGraph:
    builder = GraphBuilder()
    builder.add("Wavelet", builder.add("InputLayer", shape=[4]), name="odd", stated=Effect((4,), 12, 24))
    return builder.graph()


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    write_graphs(tmp_path / "graphs.parquet", [mlp(n, 4) for n in range(1, 11)])
    return tmp_path / "graphs.parquet"


def journal_rows(out: Path) -> list[dict[str, Any]]:
    path = out.with_name(out.name + ".journal")
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line.partition(" ")[2]) for line in whole[1:]]


def start_and_signal(arguments: list[str], out: Path, rows: int, number: int) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own until its journal has some rows, then send it a signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "slotool", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE_S
    while len(journal_rows(out)) < rows and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert workers
    assert not any(alive(pid) for pid in workers), "a worker outlived its parent"
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_interrupted_and_killed_it_resumes_and_measures_each_subject_once(
    slotool: Slotool, graphs: Path, out: Path
) -> None:
    arguments = ["profile", "solo", str(graphs), "-o", str(out), "--threads", "1", "--rounds", "1"]
    arguments += ["--backend", HOSTILE, "--runs", "500"]
    interrupted = start_and_signal(arguments, out, 2, signal.SIGINT)
    assert interrupted.returncode == 130
    assert "the same command again resumes" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    first = journal_rows(out)
    assert 2 <= len(first) < 10

    killed = start_and_signal(arguments, out, len(first) + 2, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    second = journal_rows(out)
    assert second[: len(first)] == first
    assert len(first) + 2 <= len(second) < 10
    assert not out.exists()

    plan = slotool(*arguments, "--dry-run", "--json")
    assert (plan.document["finished"], plan.document["to_measure"]) == (len(second), 10 - len(second))
    assert plan.document["predicted_seconds"] > 0

    done = slotool(*arguments)
    assert done.exit_code == 0
    assert f"resuming: {len(second)} rows are finished" in done.stderr
    table = LatencyTable.load(out)
    assert len(table) == 10 == table.rows["subject"].nunique()
    kept = table.rows.set_index("subject")
    for row in second:
        assert kept.loc[row["subject"], "measured_at"] == row["measured_at"]
        assert kept.loc[row["subject"], "samples_s"].tolist() == row["samples_s"]
    assert not out.with_name(out.name + ".journal").exists()

    assert "nothing was left to measure" in slotool(*arguments).stdout
    other = slotool(*arguments[:-1], "30")
    assert other.exit_code == 2
    assert "runs 500 then, 30 now" in other.stderr
    assert "--force" in other.stderr


def test_graphs_and_a_family_in_one_table(slotool: Slotool, out: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "mixed.jsonl", [mlp(3), strange(), mlp(3), mlp(5)])
    Family.of("pair", [Network(name, GraphModule(mlp(n, 3))) for name, n in (("small", 4), ("large", 64))]).save(
        tmp_path / "pair", config={}, seed=0
    )
    inputs = [tmp_path / "mixed.jsonl", tmp_path / "pair", "-o", out, "--max-seconds-per-item", 0.05]
    done = slotool("profile", "solo", *inputs, "--threads", 1, "--batch-size", "1,4", "--json")
    assert done.exit_code == 0, done.stderr
    # Eight are measured in two rounds; the two that fail are not tried again in the second.
    assert (done.document["measured"], done.document["failed"], done.document["ok_rows"]) == (18, 2, 8)
    assert done.document["left"] == 0
    points = {(p["point"], p["batch_size"]): p["median_s"] for p in done.document["points"]}
    assert set(points) == {(f"version={name}", batch) for name in ("small", "large") for batch in (1, 4)}
    rows = LatencyTable.load(out).rows
    assert rows.loc[rows["subject"] == strange().id, "status"].tolist() == ["failed", "failed"]
    assert rows.loc[rows["subject"] == strange().id, "reason"].str.contains("'odd'.*Wavelet").all()
    assert set(zip(rows["subject"] == "pair", rows["backend"], strict=True)) == {(True, "elastic"), (False, "torch")}

    shown = slotool("profile", "solo", *inputs, "--threads", 1, "--batch-size", "1,4")
    for words in ("Operating points", "version=small", "Wavelet", "nothing was left to measure"):
        assert words in shown.stdout


def test_joules_of_a_call_are_counted_where_the_machine_says(
    slotool: Slotool, graphs: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "intel-rapl:0"
    monkeypatch.setenv("SLOTOOL_POWERCAP", str(tmp_path))
    arguments = ["profile", "solo", graphs, "-o", out, "--threads", 1, "--backend", HOSTILE, "--limit", 2, "--json"]
    unknown = slotool(*arguments).document
    assert unknown["energy_j"] == []
    assert "no energy counters" in unknown["energy_unknown"]
    assert "energy_j" not in LatencyTable.load(out).rows

    counter.mkdir()
    (counter / "energy_uj").write_text("0")
    (counter / "max_energy_range_uj").write_text(f"{10**12}")
    document = slotool(*arguments, "--force").document
    assert document["energy_j"] == pytest.approx([0.002] * 3)
    assert document["energy_unknown"] is None
    assert LatencyTable.load(out).rows["energy_j"].tolist() == pytest.approx([0.002] * 2)


def test_a_full_disk_is_a_sentence_and_nothing_is_lost(
    slotool: Slotool, graphs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.write, []

    def fills_up(descriptor: int, data: bytes) -> int:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(real(descriptor, data))
        return written[-1]

    arguments = [
        "profile",
        "solo",
        graphs,
        "-o",
        out,
        "--threads",
        "1",
        "--limit",
        "4",
        "--rounds",
        "1",
        "--backend",
        HOSTILE,
    ]
    with monkeypatch.context() as patch:
        patch.setattr("slotool.journal.os.write", fills_up)
        full = slotool(*arguments)
    assert full.exit_code == 3
    assert "no space left on the disk" in full.stderr
    assert "latency.parquet.journal" in full.stderr
    assert len(journal_rows(out)) == 2
    done = slotool(*arguments, "--json")
    assert (done.exit_code, done.document["resumed"], done.document["measured"]) == (0, 2, 2)


def test_when_no_row_could_be_measured_the_run_has_failed(slotool: Slotool, out: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "strange.jsonl", [strange()])
    done = slotool("profile", "solo", tmp_path / "strange.jsonl", "-o", out, "--threads", 1)
    assert done.exit_code == 3
    assert "none of the 1 rows could be measured" in done.stderr
    assert "Wavelet" in done.stderr
    assert LatencyTable.load(out).rows["status"].tolist() == ["failed"]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_keras_measures_graphs_in_a_worker_of_its_own(slotool: Slotool, graphs: Path, out: Path) -> None:
    done = slotool("profile", "solo", graphs, "-o", out, "--backend", "keras", "--threads", 1, "--limit", 2, "--json")
    assert done.exit_code == 0
    assert done.document["ok_rows"] == 2
    assert set(LatencyTable.load(out).rows["backend"]) == {"keras"}


def test_strict_and_budget(slotool: Slotool, graphs: Path, out: Path) -> None:
    shaky = ["profile", "solo", graphs, "-o", out, "--threads", 1, "--backend", HOSTILE, "--max-seconds-per-item", 0]
    # On a crowded machine even so wide a limit may not hold.
    wide = slotool(*shaky, "--stable-within", 1.0, "--strict", "--json")
    assert wide.exit_code == int(wide.document["unstable"] > 0)
    sure = [*shaky, "--stable-within", 0.0001, "--force", "--json"]
    strict = slotool(*sure, "--strict")
    assert (strict.exit_code, strict.document["unstable"]) == (1, 10)
    planned = slotool(*sure, "--budget", "90s", "--dry-run")
    assert planned.document["budget_s"] == 90.0
    cut = slotool(*sure, "--budget", "0.001s")
    assert (cut.exit_code, cut.document["measured"], cut.document["left"]) == (0, 1, 19)
    assert cut.document["rounds"] == 2


def test_models_side_by_side_and_points_with_copies(slotool: Slotool, out: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "graphs.jsonl", [mlp(64, 4), mlp(512, 4)])
    Family.of("pair", [Network(name, GraphModule(mlp(n, 3))) for name, n in (("small", 4), ("large", 64))]).save(
        tmp_path / "pair", config={}, seed=0
    )
    quick = ["--threads", 1, "--runs", 3, "--rounds", 1]
    beside = ["profile", "colocated", tmp_path / "graphs.jsonl", "-o", out, *quick, "--backend", HOSTILE]
    plan = slotool(*beside, "--with-itself", "--dry-run", "--json").document
    assert (plan["to_measure"] // plan["rounds"], plan["placement"], plan["affinity"][0]) == (
        3,
        "shared",
        plan["affinity"][1],
    )
    done = slotool(*beside)
    assert done.exit_code == 0, done.stderr
    for words in ("Degradation", "co-located", mlp(64, 4).id):
        assert words in done.stdout
    again = slotool(*beside, "--json").document
    assert (again["measured"], again["resumed"], len(again["degradation"])) == (0, 1, 2)
    assert all(row["degradation_ratio"] > 0 for row in again["degradation"])

    points = slotool("profile", "points", tmp_path / "pair", "-o", tmp_path / "points.parquet", *quick, "--json")
    assert points.exit_code == 0, points.stderr
    large = "pair@version=large"
    alone, beside_large = ({(f"version={size}", other) for size in ("small", "large")} for other in ("", large))
    degraded = {(row["point"], row["co_runners"]) for row in points.document["degradation"]}
    assert degraded == beside_large, "alone nothing degrades"
    assert {(row["point"], row["co_runners"]) for row in points.document["points"]} == alone | beside_large
    other = slotool("profile", "solo", tmp_path / "graphs.jsonl", "-o", out, "--threads", 1)
    assert other.exit_code == 2
    assert "kind colocated then, solo now" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--size", "1"], "cannot be co-located"),
        (["--size", "11"], "cannot be co-located"),
        (["--placement", "fair"], "neither shared nor split"),
        (["--placement", "split", "--threads", str(len(os.sched_getaffinity(0)))], "cores are given"),
    ],
)
def test_impossible_combinations_are_one_sentence(
    slotool: Slotool, graphs: Path, out: Path, arguments: list[str], sentence: str
) -> None:
    done = slotool("profile", "colocated", graphs, "-o", out, *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent.parquet"], "absent.parquet: no such"),
        (["empty.jsonl"], "empty.jsonl"),
        (["bare"], "bare"),
        (["GRAPHS", "--batch-size", "0"], "batch size"),
        (["GRAPHS", "--batch-size", "1.5"], "--batch-size: '1.5': whole numbers are expected"),
        (["GRAPHS", "--backend", "abacus"], "no backend 'abacus'"),
        (["GRAPHS", "--threads", "4096"], "4096 threads"),
        (["GRAPHS", "--device", "cuda:77", "--backend", HOSTILE], "no device 'cuda:77'"),
        ([], "name graph files"),
        (["GRAPHS", "--budget", "soon"], "no duration"),
        (["--keras", "VGG61"], "'VGG61' is not in keras.applications"),
        (["--keras", "vgg16"], "did you mean VGG16?"),
        (["--keras", "own.keras"], "slotool capture --keras own.keras -o own.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    slotool: Slotool, graphs: Path, out: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    Path("empty.jsonl").touch()
    Path("bare").mkdir()
    done = slotool("profile", "solo", *(graphs if a == "GRAPHS" else a for a in arguments), "-o", out)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert sorted(path.name for path in out.parent.iterdir()) == ["bare", "empty.jsonl", "graphs.parquet"]


def test_an_interruption_before_the_first_row_names_no_journal(
    slotool: Slotool, graphs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slotool.profiling.campaign.Campaign.run", interrupted)
    done = slotool("profile", "solo", graphs, "-o", out)
    assert done.exit_code == 130
    assert "interrupted before a row was finished" in done.stderr
    assert "journal" not in done.stderr


def test_a_network_that_cannot_be_built_is_called_by_its_name(slotool: Slotool, out: Path) -> None:
    from slotool.graphs.capture import capture_torch

    class Bessel(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    graph = replace(capture_torch(Bessel(), (8,)), name="nets:gated")
    write_graphs(out.with_name("own.jsonl"), [graph])
    done = slotool("profile", "solo", out.with_name("own.jsonl"), "-o", out, "--threads", 1)
    assert done.exit_code == 3
    assert "nets:gated: failed" in done.stderr
    assert graph.id not in done.stderr
