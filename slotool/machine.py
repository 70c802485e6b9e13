"""The machine: the facts that a manifest records, and the fingerprint that goes with every latency."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from slotool.cgroups import ControlGroups
from slotool.errors import ArgumentError
from slotool.nvml import Nvml

_LIBRARIES = ("numpy", "torch", "numba", "scikit-learn", "pandas", "pyarrow", "networkx")
# Packages of optional extras that affect a latency.
_OPTIONAL_LIBRARIES = ("tensorflow", "keras", "onnxruntime", "ray")
# Facts, and what a person calls them; those of ``_LATENCY_FACTS`` make the machine's id, with a few that are coarsened.
_FACT_WORDS = {
    "cpu": "processor",
    "cpu_family": "CPU family",
    "cpu_model": "CPU model",
    "cpu_stepping": "CPU stepping",
    "cpu_caches": "CPU caches",
    "cpu_vectors": "vector extensions",
    "architecture": "architecture",
    "gpus": "GPUs",
    "gpu_driver": "GPU driver",
    "gpu_cuda": "CUDA of the driver",
    "gpu_power_limits_w": "GPU power limits (W)",
    "gpu_clocks_mhz": "highest GPU clocks (MHz)",
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
# Maximum number of differences in a message.
MAX_DIFFERENCES = 3
# Facts that matter only on GPUs.
_GPU_FACTS = ("gpus", "gpu_driver", "gpu_cuda", "gpu_power_limits_w", "gpu_clocks_mhz")
# Labels of before do not state these: two generations of a processor can share the others.
CPU_DETAILS = ("cpu_family", "cpu_model", "cpu_stepping", "cpu_caches", "cpu_vectors")
# Lines of /proc/cpuinfo, on x86 and on ARM.
_CPU_LINES = {
    "cpu": ("model name", "Model"),
    "cpu_family": ("cpu family", "CPU implementer"),
    "cpu_model": ("model", "CPU part"),
    "cpu_stepping": ("stepping", "CPU revision"),
    "cpu_vectors": ("flags", "Features"),
}
_VECTORS = re.compile(r"(avx|amx|fma|f16c|sse4_2|asimd|neon|sve|sme(?!p)|i8mm|bf16)")
_LATENCY_FACTS = (
    "cpu",
    "architecture",
    "cores",
    "cores_given",
    "cpu_quota",
    "governor",
    "turbo",
)


# Facts, as JSON, that stand for those of this machine. For tests: their outcome depends on no machine.
FACTS_VARIABLE = "SLOTOOL_MACHINE_FACTS"


def machine_facts() -> dict[str, Any]:
    """Return CPU, GPUs (driver, power limits, highest clocks), usable cores, memory, limits, governor and versions.

    Everything is read from the system, no library is imported. Unknown facts are None.
    """
    return _machine_facts(os.environ.get(FACTS_VARIABLE, "{}"))


def _stated() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(FACTS_VARIABLE, "{}")))


@lru_cache(maxsize=2)
def _machine_facts(stated: str) -> dict[str, Any]:
    return {
        **_cpu_facts(),
        "cores": os.cpu_count(),
        "cores_given": len(os.sched_getaffinity(0)),
        "cpu_quota": control_groups().cpu_quota(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit_bytes": control_groups().memory_limit(),
        "governor": read_system_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "optional_libraries": {name: _version(name) for name in _OPTIONAL_LIBRARIES},
        **_gpu_facts(),
        **json.loads(stated),
    }


@cache
def control_groups() -> ControlGroups:
    """Return the groups of this process, whose limits are read anew at each question."""
    return ControlGroups.of_this_process()


def given_cores() -> int:
    """Return how many cores the affinity of this process names."""
    return int(_stated().get("cores_given", len(os.sched_getaffinity(0))))


def usable_cores() -> int:
    """Return how many cores this process can keep busy: those given, or its CPU quota rounded up where that is less."""
    quota = cpu_quota()
    return max(1, min(given_cores(), math.ceil(given_cores() if quota is None else quota)))


def cpu_quota() -> float | None:
    """Return the cores' worth of CPU time that all control groups of this process allow; None without a limit."""
    stated = _stated()
    return stated["cpu_quota"] if "cpu_quota" in stated else control_groups().cpu_quota()


def throttled() -> tuple[int, float]:
    """Return the periods, and the seconds, in which a CPU quota has kept the control groups of this process waiting."""
    periods, seconds = _stated().get("throttled") or control_groups().throttled()
    return periods, seconds


def quota_warning(threads: int) -> str | None:
    """Return a sentence where the CPU quota is below ``threads``; None where it is not."""
    if (quota := cpu_quota()) is None or quota >= threads:
        return None
    return f"the CPU quota is {quota:g} cores' time for {threads} threads: calls are throttled when all of them compute"


def usable_memory() -> int:
    """Return the bytes that can be taken now without swapping, within the limits of all control groups."""
    stated = _stated()
    if "memory_bytes" in stated:
        return int(min(stated["memory_bytes"], stated.get("memory_limit_bytes") or stated["memory_bytes"]))
    words = (read_system_file("/proc/meminfo") or "").replace("MemAvailable:", "MemAvailable").split()
    available = 1024 * int(words[words.index("MemAvailable") + 1])
    unused = control_groups().memory_left()
    return available if unused is None else min(available, unused)


def memory_within() -> int:
    """Return the memory of this machine, or what the control groups of this process allow of it, in bytes."""
    facts = machine_facts()
    return int(min(facts["memory_bytes"], facts["memory_limit_bytes"] or facts["memory_bytes"]))


def machine_id(facts: Mapping[str, Any] | None = None) -> str:
    """Twelve hexadecimal digits that change when a fact that latency depends on does; of this machine unless ``facts``.

    Memory counts in whole GiB and the operating system without its release: two machines of one kind differ in both.
    ``differences`` names them all the same.
    """
    identity = _identity(machine_facts() if facts is None else facts)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    identity: dict[str, Any] = {name: facts.get(name) for name in _LATENCY_FACTS}
    identity |= {name: facts[name] for name in CPU_DETAILS if name in facts}
    for name in ("memory_bytes", "memory_limit_bytes"):
        identity[name] = math.ceil((facts.get(name) or 0) / 2**30)
    identity["system"] = str(facts.get("system")).partition(" ")[0]
    identity["torch"] = (facts.get("libraries") or {}).get("torch")
    if facts.get("gpus"):
        # Facts stored by an earlier version have the models alone.
        identity |= {name: facts[name] for name in _GPU_FACTS if facts.get(name) is not None}
    return identity


@dataclass(frozen=True)
class Likeness:
    """Comparison of this machine with the one of stored labels.

    ``differences``: facts that differ, in words. ``missing``: facts that only one of both states. Without either, it is
    the same machine.
    """

    differences: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def same(self) -> bool:
        """True if all facts that latency depends on are stated, and equal."""
        return not self.differences and not self.missing

    @property
    def similar(self) -> bool:
        """True if no stated fact differs, but some are missing."""
        return bool(self.missing) and not self.differences

    def __str__(self) -> str:
        if self.differences:
            return f"another machine: {', '.join(self.differences[:MAX_DIFFERENCES])}"
        if self.missing:
            return f"a similar machine: its labels do not state {', '.join(self.missing)}"
        return "this machine"


def likeness(machine: str, facts: Mapping[str, Any] | None = None) -> Likeness:
    """Return how this machine compares with the one of this id, whose ``facts`` are given where they were stored."""
    this_machine = _identity(machine_facts())
    without_details = {name: value for name, value in machine_facts().items() if name not in CPU_DETAILS}
    if facts is None:
        if machine not in (machine_id(), machine_id(without_details)):
            return Likeness([f"machine {machine} → {machine_id()}"])
        facts = machine_facts() if machine == machine_id() else without_details
    other = _identity(facts)
    if any(other[name] != this_machine[name] for name in other.keys() & this_machine.keys()):
        return Likeness(differences(facts) or [f"machine {machine} → {machine_id()}"])
    return Likeness(missing=[_FACT_WORDS[name] for name in _FACT_WORDS if (name in other) != (name in this_machine)])


def differences(other: Mapping[str, Any], this: Mapping[str, Any] | None = None) -> list[str]:
    """Return the differences between two machines: ``["processor Xeon → EPYC", "kernel Linux 6.1.0 → Linux 6.1.2"]``.

    Both are ``machine_facts``, ``this`` of this machine by default. The facts with the largest effect on latency come
    first. Facts that one of them lacks are left out.
    """
    this = machine_facts() if this is None else this
    pairs = [
        (words, _shown(other[name]), _shown(this[name]))
        for name, words in _FACT_WORDS.items()
        if name in other and name in this
    ]
    then, now = _libraries(other), _libraries(this)
    pairs += [(name, _shown(then[name]), _shown(now[name])) for name in now if name in then]
    return [f"{words} {then} → {now}" for words, then, now in pairs if then != now]


def _libraries(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of all libraries; facts stored earlier count as required some that are optional now."""
    return {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}


def _shown(value: Any) -> str:
    """Return a fact as a person writes it; numbers above a million are bytes."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value > 1_000_000:
        return f"{value / 2**30:.1f} GiB"
    return "none" if value is None else str(value)


def gpu_models(driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Return the models of the NVIDIA GPUs whose driver this process sees, in bus order."""
    texts = [(read_system_file(str(path)) or "").splitlines() for path in sorted(Path(driver).glob("*/information"))]
    return [line.partition(":")[2].strip() for lines in texts for line in lines if line.startswith("Model:")]


def gpu_driver(version: str = "/proc/driver/nvidia/version") -> str | None:
    """Return the version of NVIDIA's driver, or None."""
    match = re.search(r"\s(\d+(?:\.\d+)+)\s", read_system_file(version) or "")
    return match.group(1) if match else None


def _gpu_facts() -> dict[str, Any]:
    """Return facts of this machine's GPUs in bus order; None where driver or NVML state nothing."""
    models = gpu_models()
    facts: dict[str, Any] = dict.fromkeys(_GPU_FACTS) | {"gpus": models, "gpu_driver": gpu_driver()}
    if not models and not Path("/dev/nvidiactl").exists():
        return facts
    nvml = Nvml()
    devices = nvml.devices()
    limits, clocks = [device.power_limit_w for device in devices], [device.max_clock_mhz for device in devices]
    return {
        "gpus": models or [str(device.name) for device in devices],
        "gpu_driver": nvml.driver or facts["gpu_driver"],
        "gpu_cuda": nvml.cuda,
        # A value that no device states is not a fact.
        "gpu_power_limits_w": limits if any(limits) else None,
        "gpu_clocks_mhz": clocks if any(clocks) else None,
    }


def _cpu_facts(system: Path = Path("/")) -> dict[str, Any]:
    """Return brand, family, model, stepping, sizes of caches and vector extensions of the first processor."""
    first = (read_system_file(str(system / "proc/cpuinfo")) or "").partition("\n\n")[0].splitlines()
    lines = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first)}
    facts: dict[str, Any] = {
        fact: next((lines[name] for name in names if lines.get(name)), None) for fact, names in _CPU_LINES.items()
    }
    flags = (facts["cpu_vectors"] or "").split()
    caches = sorted((system / "sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return {
        **facts,
        "cpu": facts["cpu"] or platform.processor() or None,
        "cpu_caches": [read_system_file(str(cache / "size")) or "" for cache in caches],
        "cpu_vectors": sorted(flag for flag in flags if _VECTORS.match(flag)),
    }


def _turbo() -> bool | None:
    no_turbo = read_system_file("/sys/devices/system/cpu/intel_pstate/no_turbo")
    return None if no_turbo is None else no_turbo == "0"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def read_system_file(path: str) -> str | None:
    """Return the text of a file that the kernel may offer, or None."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def cores_given(threads: int | None) -> int:
    """Return ``threads``, or as many as there are usable cores.

    Raises ``ArgumentError`` for more than the cores given to this process.
    """
    if threads is not None and threads > given_cores():
        raise ArgumentError("threads", f"{threads} threads, but only {given_cores()} cores are given to this process")
    return threads or usable_cores()
