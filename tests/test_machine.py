"""Which facts tell two machines apart, and how they are named."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from slotool import process
from slotool.machine import differences, machine_facts, machine_id
from tests.machines import ROOT, machines


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
