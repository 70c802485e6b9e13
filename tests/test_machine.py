"""Which facts tell two machines apart, and how they are named."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotool import machine, process
from slotool.machine import FACTS_VARIABLE, differences, gpu_models, likeness, machine_facts, machine_id
from slotool.process import cores_by_preference
from slotool.timing.speed import facts_with_speed, speed_ratio
from tests.machines import ROOT, UNKNOWN, machines


@dataclass
class Samples:
    """Measurement of one sample."""

    result: object
    samples_s: tuple[float, ...] = (1e-3,)


def facts(**changed: Any) -> dict[str, Any]:
    return {
        "cpu": "Xeon",
        "cores": 2,
        "cores_given": 2,
        "memory_bytes": 25_276_514_304,
        "memory_limit_bytes": None,
        "turbo": True,
        "system": "Linux 6.1.0",
        "libraries": {"torch": "2.12.0", "numpy": "2.4.6"},
        "gpus": [],
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"system": "Linux 6.1.2"}, ["kernel Linux 6.1.0 → Linux 6.1.2"]),
        ({"memory_bytes": 25_276_000_000}, []),
        ({"libraries": {"torch": "2.12.0", "numpy": "2.5.0"}}, ["numpy 2.4.6 → 2.5.0"]),
        # A library that has become optional since the facts were stored.
        ({"libraries": {"torch": "2.12.0"}, "optional_libraries": {"numpy": "2.5.0"}}, ["numpy 2.4.6 → 2.5.0"]),
    ],
)
def test_machines_of_one_kind_have_one_id(changed: dict[str, Any], words: list[str]) -> None:
    """Another kernel release or some bytes less of memory leave the id as it is; what differs is named all the same."""
    assert machine_id(facts(**changed)) == machine_id(facts())
    assert differences(facts(), facts(**changed)) == words


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cpu": "EPYC"}, "processor Xeon → EPYC"),
        ({"cores_given": 1}, "cores given 2 → 1"),
        ({"turbo": False}, "turbo on → off"),
        ({"memory_bytes": 8 * 2**30}, "memory 23.5 GiB → 8.0 GiB"),
        ({"memory_limit_bytes": 2**30}, "memory limit none → 1.0 GiB"),
        ({"gpus": ["H200"]}, "GPUs none → H200"),
        ({"libraries": {"torch": "2.13.0"}}, "torch 2.12.0 → 2.13.0"),
    ],
)
def test_another_machine_has_another_id_and_is_told_in_words(changed: dict[str, Any], words: str) -> None:
    assert machine_id(facts(**changed)) != machine_id(facts())
    assert differences(facts(), facts(**changed)) == [words]


DETAILS = {
    "cpu_family": "25", "cpu_model": "1", "cpu_stepping": "1", "cpu_caches": ["32K", "512K"], "cpu_vectors": ["avx2"]
}  # fmt: skip
MILAN = facts(cpu="AMD EPYC", **DETAILS)


@pytest.mark.parametrize(
    "changed",
    [{"cpu_model": "17"}, {"cpu_stepping": "2"}, {"cpu_caches": ["48K", "512K"]}, {"cpu_vectors": ["avx512f"]}],
)
def test_generations_of_one_brand_are_other_machines(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**MILAN, **changed}
    monkeypatch.setattr("slotool.machine.machine_facts", lambda: MILAN)
    assert machine_id(there) != machine_id(MILAN)
    other = likeness(machine_id(there), there)
    assert other.differences
    assert not other.same
    assert not other.similar
    assert likeness(machine_id(MILAN), MILAN).same
    assert likeness(machine_id(MILAN)).same


@pytest.mark.parametrize("with_facts", [True, False])
def test_labels_that_state_no_generation_are_of_a_similar_machine(
    with_facts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts(cpu="AMD EPYC")
    monkeypatch.setattr("slotool.machine.machine_facts", lambda: MILAN)
    found = likeness(machine_id(before), before if with_facts else None)
    assert found.similar
    assert not found.same
    assert "CPU model" in str(found)
    assert likeness(machine_id(facts(cpu="Xeon")), facts(cpu="Xeon")).differences


def test_no_shipped_label_is_of_this_very_machine_while_it_states_no_generation(each_machine: str) -> None:
    stated = machine_facts() if each_machine == UNKNOWN else machines()[each_machine]
    found = likeness(machine_id(stated), stated)
    assert (found.same, found.similar) == ((True, False) if each_machine == UNKNOWN else (False, True))


def test_the_speed_check_is_short_and_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    now = facts_with_speed()
    assert speed_ratio(now) == pytest.approx(1.0)
    assert speed_ratio({**now, "speed": {name: 2 * s for name, s in now["speed"].items()}}) == pytest.approx(2.0)
    assert speed_ratio(machine_facts() | {"speed": None}) is None
    calls: list[Any] = []

    def timed(call: Any, rule: object) -> Samples:
        calls.append(call)
        return Samples(call())

    monkeypatch.setattr("slotool.timing.speed.measure", timed)
    monkeypatch.setenv(FACTS_VARIABLE, json.dumps({"cpu": "with a clock of its own"}))
    assert facts_with_speed()["speed"] == facts_with_speed()["speed"]
    assert len(calls) == 3


def test_details_of_a_processor_are_read_on_x86_and_on_arm(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    cache = tmp_path / "sys/devices/system/cpu/cpu0/cache/index0"
    cache.mkdir(parents=True)
    (cache / "size").write_text("32K\n")
    for text, details in (
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping: 1\nflags: fpu avx2 smep fma\n\nmodel: 9",
         ("AMD EPYC", "25", "1", "1", ["avx2", "fma"])),
        ("Features : fp asimd sve\nCPU implementer : 0x41\nCPU part : 0xd0c\nCPU revision : 1\n",
         (platform.processor() or None, "0x41", "0xd0c", "1", ["asimd", "sve"])),
    ):  # fmt: skip
        (tmp_path / "proc/cpuinfo").write_text(text)
        read = machine._cpu_facts(tmp_path)
        assert (
            tuple(read[name] for name in ("cpu", "cpu_family", "cpu_model", "cpu_stepping", "cpu_vectors")) == details
        )
        assert read["cpu_caches"] == ["32K"]


def test_this_machine_does_not_differ_from_itself() -> None:
    assert differences(machine_facts()) == []
    assert machine_id(machine_facts()) == machine_id()


def test_facts_that_one_does_not_state_are_no_difference() -> None:
    assert differences({"cpu": "Xeon"}, facts()) == []
    assert differences(facts(), {"system": "Linux 6.1.0"}) == []


@pytest.mark.parametrize("interpreter", ["fork", "real"])
def test_tests_and_their_child_processes_run_as_a_machine_of_their_choice(
    each_machine: str, interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interpreter == "real":
        monkeypatch.setattr(process, "INTERPRETER", sys.executable)
    facts = machines()[each_machine]
    command = [process.INTERPRETER, "-P", "-c", "from slotool.machine import machine_id; print(machine_id())"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert shown == machine_id() == machine_id({**machine_facts(), **facts})


def test_ci_runs_the_tests_as_every_machine_whose_labels_are_shipped() -> None:
    matrix = re.search(r"machine: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert matrix is not None
    assert set(matrix[1].split(", ")) == machines().keys()


def test_hyperthread_siblings_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for core, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert cores_by_preference(str(tmp_path)) == [3, 2, 1, 0]
    (tmp_path / "cpu3" / "topology" / "thread_siblings_list").write_text("2-3\n")
    (tmp_path / "cpu2" / "topology" / "thread_siblings_list").write_text("2-3\n")
    (tmp_path / "cpu1" / "topology" / "thread_siblings_list").write_text("0-1\n")
    (tmp_path / "cpu0" / "topology" / "thread_siblings_list").write_text("0-1\n")
    assert cores_by_preference(str(tmp_path)) == [3, 1, 2, 0]


def test_gpus_are_known_by_what_their_driver_says(tmp_path: Path) -> None:
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:01:00.0", "NVIDIA A100")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    assert gpu_models(str(tmp_path)) == ["NVIDIA A100", "NVIDIA H200"]
    assert gpu_models(str(tmp_path / "absent")) == []
