"""Machines that tests run as: their facts stand for those of the real machine, in child processes too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from slotool.machine import FACTS_VARIABLE, machine_id

UNKNOWN = "unknown"
ROOT = Path(__file__).parents[1]
UNKNOWN_FACTS: dict[str, Any] = {
    "cpu": "Imagined Processor 9000",
    "cpu_family": "9",
    "cpu_model": "90",
    "cpu_stepping": "0",
    "cpu_caches": ["32K", "1024K"],
    "cpu_vectors": ["avx2", "fma"],
    "speed": {"product_s": 4e-4, "copy_s": 2e-3, "small_call_s": 4e-7},
    "cores": 2,
    "cores_given": 2,
    "cpu_quota": None,
    "throttled": [0, 0.0],
    "memory_bytes": 16 * 2**30,
    "memory_limit_bytes": None,
    "governor": None,
    "turbo": None,
    "system": "Linux 6.1.0",
    "architecture": "x86_64",
    "gpus": [],
    "gpu_driver": None,
    "gpu_cuda": None,
    "gpu_power_limits_w": None,
    "gpu_clocks_mhz": None,
}


@cache
def machines() -> dict[str, dict[str, Any]]:
    """Return facts by name: of the unknown machine, and of each machine whose labels are shipped, named by a predictor
    in ``models/`` or a table in ``datasets/`` that states them."""
    documents = {path.parent.name: json.loads(path.read_text()) for path in ROOT.glob("models/*/predictor.json")}
    for path in sorted(ROOT.glob("datasets/*.parquet")):
        documents[path.stem] = json.loads((parquet.read_schema(path).metadata or {}).get(b"slotool", b"{}"))
    shipped = [(name, facts) for name in sorted(documents) for facts in _stated(documents[name])]
    # Predictors come last, so that a machine is named by one where one learnt its labels.
    by_id = {machine_id(facts): (name, facts) for name, facts in sorted(shipped, key=lambda own: "predictor" in own[0])}
    return {UNKNOWN: UNKNOWN_FACTS, **dict(by_id.values())}


def _stated(document: Any) -> Iterator[dict[str, Any]]:
    children = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for child in children:
        yield from _stated(child)
    if isinstance(document, dict) and document.get("machine_facts"):
        yield document["machine_facts"]


def run_where_measured(name: str, patch: pytest.MonkeyPatch) -> None:
    """Run as the machine of this name, as if its labels stated all that tells it from a similar one."""
    run_as(name, patch)
    patch.setattr("slotool.machine.CPU_DETAILS", ())


def run_as(name: str, patch: pytest.MonkeyPatch | None = None, **changed: Any) -> None:
    """Run as the machine of this name with ``changed`` facts: until ``patch`` is undone, else for all tests."""
    known = machines()
    if name not in known:
        raise pytest.UsageError(f"no machine {name!r}; available: {', '.join(known)}")
    value = json.dumps({**UNKNOWN_FACTS, **known[name], **changed})
    if patch is None:
        os.environ[FACTS_VARIABLE] = value
    else:
        patch.setenv(FACTS_VARIABLE, value)
