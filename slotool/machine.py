"""The machine we run on: facts that a manifest records and a latency is worth nothing without; a quiet moment on it."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import os
import platform
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("numpy", "torch", "numba", "scikit-learn", "pandas", "pyarrow", "networkx")
# Those of the optional extras that have a part in a latency.
_OPTIONAL_LIBRARIES = ("tensorflow", "keras", "onnxruntime", "ray")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
# Facts, and what a person calls them; those of ``_LATENCY_FACTS`` make the machine's id, with a few that are coarsened.
_FACT_WORDS = {
    "cpu": "processor",
    "architecture": "architecture",
    "gpus": "GPUs",
    "cores": "cores",
    "cores_given": "cores given",
    "cpu_quota": "CPU quota",
    "governor": "frequency governor",
    "turbo": "turbo",
    "memory_bytes": "memory",
    "memory_limit_bytes": "memory limit",
    "system": "kernel",
    "python": "Python",
}
_LATENCY_FACTS = (
    "cpu",
    "architecture",
    "cores",
    "cores_given",
    "cpu_quota",
    "governor",
    "turbo",
)
_PR_SET_PDEATHSIG = 1
_SPARE_FILES = 256


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, Any]:
    """CPU and GPU models, cores given to this process, memory, container limits, governor, system, library versions.

    Everything is read from the system, none of the libraries is imported. Unknown facts are None.
    """
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_given": len(os.sched_getaffinity(0)),
        "cpu_quota": _cpu_quota(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit_bytes": _memory_limit(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "optional_libraries": {name: _version(name) for name in _OPTIONAL_LIBRARIES},
        "gpus": gpu_models(),
    }


def machine_id(facts: Mapping[str, Any] | None = None) -> str:
    """Twelve hexadecimal digits that change when a fact that latency depends on does; of this machine unless ``facts``.

    Memory counts in whole GiB and the operating system without its release: two machines of one kind differ in both.
    ``differences`` names them all the same.
    """
    facts = machine_facts() if facts is None else facts
    kept: dict[str, Any] = {name: facts.get(name) for name in _LATENCY_FACTS}
    for name in ("memory_bytes", "memory_limit_bytes"):
        kept[name] = math.ceil((facts.get(name) or 0) / 2**30)
    kept["system"] = str(facts.get("system")).partition(" ")[0]
    kept["torch"] = (facts.get("libraries") or {}).get("torch")
    if facts.get("gpus"):
        kept["gpus"] = facts["gpus"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def differences(there: Mapping[str, Any], here: Mapping[str, Any] | None = None) -> list[str]:
    """What differs between two machines, in words: ``["processor Xeon → EPYC", "kernel Linux 6.1.0 → Linux 6.1.2"]``.

    Both are ``machine_facts``, ``here`` of this machine unless given. What weighs most on a latency comes first.
    Facts that one of them does not state are left out; empty when nothing stated differs.
    """
    here = machine_facts() if here is None else here
    pairs = [
        (words, _shown(there[name]), _shown(here[name]))
        for name, words in _FACT_WORDS.items()
        if name in there and name in here
    ]
    then, now = _libraries(there), _libraries(here)
    pairs += [(name, _shown(then[name]), _shown(now[name])) for name in now if name in then]
    return [f"{words} {then} → {now}" for words, then, now in pairs if then != now]


def _libraries(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Versions of all libraries; facts stored earlier count as required some that are optional now."""
    return {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}


def _shown(value: Any) -> str:
    """A fact as a person writes it; numbers above a million are bytes."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value > 1_000_000:
        return f"{value / 2**30:.1f} GiB"
    return "none" if value is None else str(value)


def limit_threads(threads: int) -> None:
    """From now on torch, and NumPy's linear algebra, compute on so many threads in this process."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)


def gpu_models(driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """The models of the NVIDIA GPUs whose driver this process sees, in the order of their bus."""
    told = [(_read(str(path)) or "").splitlines() for path in sorted(Path(driver).glob("*/information"))]
    return [line.partition(":")[2].strip() for lines in told for line in lines if line.startswith("Model:")]


def cores_by_preference(topology: str = "/sys/devices/system/cpu") -> list[int]:
    """The logical cores given to this process: one of each physical core first, then their hyperthread siblings,
    later numbers first, as the first cores serve the system's interrupts."""
    siblings: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0), reverse=True):
        physical = _read(f"{topology}/cpu{core}/topology/thread_siblings_list") or str(core)
        siblings.setdefault(physical, []).append(core)
    rank = {core: place for threads in siblings.values() for place, core in enumerate(threads)}
    return sorted(rank, key=lambda core: (rank[core], -core))


@contextmanager
def bound_to(cores: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and the processes it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def schedule(policy: int, process: int | None = None) -> None:
    """Give all threads of a process (default: this one) a policy of the scheduler, such as ``os.SCHED_IDLE``.
    Raises ``OSError`` when it has ended."""
    for thread in os.listdir(f"/proc/{process or 'self'}/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(0))


def allow_connections(count: int) -> int:
    """Raise this process's limit of open files, as far as the system lets it, to ``count`` and some to spare.

    Returns for how many connections it is enough, ``count`` at most: where files are few, three quarters of those that
    are not open yet, so that there are some for whoever is to be told that there are no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return count
    return max(1, min(count, (soft - len(os.listdir("/proc/self/fd"))) * 3 // 4))


def thread_variables(threads: int) -> dict[str, str]:
    """The environment by which numerical libraries, when they are loaded, are told how many threads to use."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def die_with_parent(parent: int) -> None:
    """End this process when ``parent``, which started it, ends: even inside a call that hangs, where a closed pipe
    would go unnoticed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's garbage collector from running in the middle of a measurement."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _cpu_quota() -> float | None:
    """Cores' worth of CPU time the container may use, or None when unlimited."""
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    return None if quota == "max" or not period else int(quota) / int(period)


def _memory_limit() -> int | None:
    limit = _read("/sys/fs/cgroup/memory.max") or "max"
    return None if limit == "max" else int(limit)


def _turbo() -> bool | None:
    no_turbo = _read("/sys/devices/system/cpu/intel_pstate/no_turbo")
    return None if no_turbo is None else no_turbo == "0"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
