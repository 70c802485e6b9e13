"""Limits of control groups, read from trees as kernels and containers show them."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotool import process
from slotool.cgroups import ControlGroups
from slotool.graphs.store import write_graphs
from slotool.machine import given_cores, quota_warning, usable_cores, usable_memory
from slotool.serving.monitoring.metrics import Metrics
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks
from tests.machines import ROOT, UNKNOWN, run_as

V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    f"{at} 31 0:{at} / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
    for at, name in ((32, "cpu,cpuacct"), (35, "memory"))
)
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def groups(root: Path, mounts: str, memberships: str, **files: str) -> ControlGroups:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(memberships)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return ControlGroups.of_this_process(root)


def test_version_2_counts_the_narrowest_of_nested_groups(tmp_path: Path) -> None:
    own = "app.slice/own.scope"
    found = groups(
        tmp_path, V2, f"0::/{own}\n",
        **{
            f"{own}/cpu.max": "max 100000", f"{own}/memory.max": "3000", f"{own}/memory.current": "2500",
            f"{own}/memory.stat": "anon 1000\ninactive_file 500",
            f"{own}/cpu.stat": "usage_usec 9\nnr_throttled 2\nthrottled_usec 1500",
            "app.slice/cpu.max": "150000 100000", "app.slice/memory.max": "max",
            "app.slice/cpu.stat": "nr_throttled 3\nthrottled_usec 500000",
        },
    )  # fmt: skip
    assert (found.cpu_quota(), found.memory_limit(), found.memory_left()) == (1.5, 3000, 1000)
    assert found.throttled() == (5, pytest.approx(0.5015))


def test_version_1_has_a_tree_of_each_controller(tmp_path: Path) -> None:
    found = groups(
        tmp_path, V1, "9:memory:/box/own\n3:cpu,cpuacct:/box\n0::/\n",
        **{
            "cpu,cpuacct/box/cpu.cfs_quota_us": "50000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/box/cpu.stat": "nr_periods 8\nnr_throttled 4\nthrottled_time 2000000000",
            "memory/box/own/memory.limit_in_bytes": "9223372036854771712", "memory/box/memory.limit_in_bytes": "4096",
            "memory/box/memory.usage_in_bytes": "5000",
        },
    )  # fmt: skip
    assert (found.cpu_quota(), found.memory_limit(), found.memory_left()) == (0.5, 4096, 0)
    assert found.throttled() == (4, 2.0)


@pytest.mark.parametrize(
    ("mounts", "memberships"),
    [
        # In a container whose mount begins at its group, with and without a namespace of its own.
        (V2.replace("0:26 / ", "0:26 /docker/abc "), "0::/docker/abc\n"),
        (V2, "0::/\n"),
        # A group outside of what the container sees.
        (V2, "0::/../elsewhere\n"),
        (V2, "0::/not/mounted/here\n"),
    ],
)
def test_a_container_sees_its_group_at_the_mount(tmp_path: Path, mounts: str, memberships: str) -> None:
    found = groups(tmp_path, mounts, memberships, **{"cpu.max": "200000 100000"})
    assert (found.cpu_quota(), found.memory_limit(), found.throttled()) == (2.0, None, (0, 0.0))


def test_beside_version_1_a_mount_of_version_2_states_no_limit(tmp_path: Path) -> None:
    found = groups(tmp_path, HYBRID, "3:cpu,cpuacct:/\n0::/\n", **{"cpu,cpuacct/cpu.cfs_quota_us": "-1"})
    assert (found.cpu_quota(), found.memory_limit(), found.memory_left()) == (None, None, None)


@pytest.mark.parametrize(("mounts", "memberships"), [("", ""), ("nonsense\n", "0::/\n"), (V2, "nonsense\n")])
def test_without_groups_there_is_no_limit(tmp_path: Path, mounts: str, memberships: str) -> None:
    assert groups(tmp_path, mounts, memberships).cpu_quota() is None
    assert ControlGroups.of_this_process(tmp_path / "missing") == ControlGroups()
    assert ControlGroups().cpu_quota() is None


@pytest.mark.parametrize(
    ("given", "quota", "cores", "warned"),
    [(4, None, 4, False), (4, 8.0, 4, False), (4, 1.5, 2, True), (4, 0.2, 1, True), (1, 1.0, 1, False)],
)
def test_usable_cores_are_the_fewest_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, given: int, quota: float | None, cores: int, warned: bool
) -> None:
    run_as(UNKNOWN, monkeypatch, cores_given=given, cpu_quota=quota)
    assert (given_cores(), usable_cores()) == (given, cores)
    assert (quota_warning(given) is not None) == warned


def test_waits_for_the_quota_are_counted_by_profile_and_by_metrics(
    slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graphs(tmp_path / "net.jsonl", random_networks(1, seed=0))
    waits = iter([(7, 1.0), (9, 1.5)])
    monkeypatch.setattr("slotool.profiling.campaign.throttled", lambda: next(waits))
    run_as(UNKNOWN, monkeypatch, cpu_quota=0.5, throttled=[3, 0.25])
    command = ("profile", "solo", tmp_path / "net.jsonl", "--threads", 1, "--rounds", 1, "--runs", 1)
    done = slotool(*command, "--max-seconds-per-item", 0.01, "-o", tmp_path / "t.parquet")
    assert done.exit_code == 0, done.stderr
    assert "the CPU quota is 0.5 cores' time for 1 threads" in " ".join((done.stdout + done.stderr).split())
    campaign = LatencyTable.load(tmp_path / "t.parquet").provenance["campaign"]
    assert (campaign["throttled_periods"], campaign["throttled_s"]) == (2, 0.5)
    shown = Metrics().text().decode()
    assert "slotool_cpu_throttled_periods_total 3.0" in shown
    assert "slotool_cpu_throttled_seconds_total 0.25" in shown


@pytest.fixture
def group_of_a_fiftieth_core() -> Iterator[Path]:
    """A group of the kernel's below that of this process, allowed 1 ms of CPU time in each 50 ms."""
    folder = next(iter(ControlGroups.of_this_process().cpu), Path("/none")) / f"slotool-{os.getpid()}"
    limits = {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "1000", "cpu.max": "1000 50000"}
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        present = {name: limit for name, limit in limits.items() if (folder / name).exists()}
        if not present:
            pytest.skip("groups made here have no limits of CPU time")
        for name, limit in present.items():
            (folder / name).write_text(limit)
        yield folder
    finally:
        folder.rmdir()


def test_a_real_quota_is_read_and_its_waits_are_counted(group_of_a_fiftieth_core: Path) -> None:
    code = """
import os, sys, time
from slotool.machine import cpu_quota, quota_warning, throttled, usable_cores
open(sys.argv[1], "w").write(str(os.getpid()))
before, began_s = throttled(), time.process_time()
while time.process_time() < began_s + 0.02:
    pass
after = throttled()
assert (cpu_quota(), usable_cores()) == (0.02, 1), (cpu_quota(), usable_cores())
assert quota_warning(1)
assert after[0] > before[0] and after[1] > before[1], (before, after)
"""
    environment = {name: value for name, value in os.environ.items() if name != "SLOTOOL_MACHINE_FACTS"}
    joined = [process.INTERPRETER, "-c", code, str(group_of_a_fiftieth_core / "cgroup.procs")]
    ended = subprocess.run(joined, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_serve_warns_of_a_quota_below_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(UNKNOWN, monkeypatch, cpu_quota=1.0)
    # It ends before it listens.
    command = ["serve", str(ROOT / "models" / "mlp"), "--threads", "2", "--token-file", str(tmp_path / "none.toml")]
    ended = subprocess.run([process.INTERPRETER, "-m", "slotool", *command], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "the CPU quota is 1 cores' time for 2 threads" in " ".join(ended.stderr.split())


def test_a_real_machine_has_a_core_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTOOL_MACHINE_FACTS")
    assert 1 <= usable_cores() <= given_cores()
    assert 0 < usable_memory() < math.inf
