"""``slotool.doctor``: facts of this machine, installed packages, and causes of noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slotool.commands.display import Column, Part, records_table, table
from slotool.commands.result import Result, result

_PLUGINS = tuple(map(Column, ("group", "name", "package", "version", "state")))


@result
class Diagnosis(Result):
    """Facts of this ``machine``, with ``machine_id``, their fingerprint, and ``devices``: ``cpu`` and CUDA devices.

    ``threads``: default of each numerical library. ``advice``: sentences on causes of noisy latencies. ``missing``:
    sentences on required packages. ``extras``: True for each that is installed. ``plugins``: objects that installed
    packages add, each with its ``problem``, None for a usable one.
    """

    machine_id: str
    machine: Mapping[str, Any]
    devices: list[str]
    threads: Mapping[str, int]
    advice: list[str]
    missing: list[str]
    extras: Mapping[str, bool]
    plugins: list[dict[str, Any]]

    schema = "doctor"

    @property
    def exit_code(self) -> int:
        """1 if a required package is missing."""
        return int(not self.ok)

    @property
    def ok(self) -> bool:
        """True if no required package is missing."""
        return not self.missing

    def findings(self) -> Mapping[str, Any]:
        return {"ok": self.ok, **super().findings()}

    def shown(self) -> list[Part]:
        facts = self.machine
        libraries = (facts["libraries"] | facts["optional_libraries"]).items()
        rows = {
            "machine id": self.machine_id,
            "cpu": facts["cpu"],
            "cores given": f"{facts['cores_given']} of {facts['cores']}",
            "memory": f"{facts['memory_bytes'] / 2**30:.1f} GiB",
            "governor": facts["governor"] or "not visible",
            "system": f"{facts['system']}, {facts['architecture']}, Python {facts['python']}",
            "libraries": ", ".join(f"{name} {version}" for name, version in libraries if version),
            "extras": ", ".join(name if ready else f"{name} (not installed)" for name, ready in self.extras.items()),
            "devices": ", ".join(self.devices),
            **({"gpus": _gpus(facts)} if facts["gpus"] else {}),
            "threads": ", ".join(f"{name} {count}" for name, count in self.threads.items()),
        }
        remarks = [f"advice: {text}" for text in self.advice] + [f"missing: {text}" for text in self.missing]
        remarks += [f"plugin: {plugin['problem']}" for plugin in self.plugins if plugin["problem"]]
        states = [{**plugin, "state": "cannot be used" if plugin["problem"] else "ok"} for plugin in self.plugins]
        remarks += ["next: slotool predict --networks resnet50 --threads 1" if self.ok else "next: pip install slotool"]
        plugins = [records_table("Plugins", states, _PLUGINS)] if self.plugins else []
        return [table("This machine", ["fact", "value"], list(rows.items())), *plugins, *remarks]


def doctor() -> Diagnosis:
    """Print machine, versions, plugins, and what is missing.

    It also lists what makes latencies noisy. Plugins are imported, to find those that cannot be used. The command exits
    with 1 when something that slotool needs is missing.

    Example: slotool doctor --json

    Returns:
        A ``Diagnosis``: ``ok``, ``machine``, ``advice``, ``missing``, ``plugins``.

    Raises:
        PluginError: the entry points of installed packages cannot be read at all.
    """
    from slotool.extras import installed_extras
    from slotool.machine import machine_facts, machine_id
    from slotool.profiling.advice import cpu_advice, gpu_advice

    facts, present = machine_facts(), _devices()
    return Diagnosis(
        machine_id=machine_id(),
        machine=facts,
        devices=present,
        threads=_threads(),
        advice=[*cpu_advice(facts), *gpu_advice(facts, len(present) - 1)],
        missing=[f"{name} is not installed" for name, version in facts["libraries"].items() if version is None],
        extras=installed_extras(),
        plugins=_plugins(),
    )


def _plugins() -> list[dict[str, Any]]:
    """Return plugins of installed packages, each with its ``problem``; only registries with plugins are imported."""
    from importlib import import_module

    from slotool.plugins import GROUPS, installed

    plugins = [plugin for group in GROUPS for plugin in installed(group)]
    registries = {group: import_module(_REGISTRIES[group]).registry for group in {plugin.group for plugin in plugins}}
    return [{**asdict(plugin), "problem": registries[plugin.group].problem(plugin)} for plugin in plugins]


# Module of the registry that looks up names of a group of plugins.
_REGISTRIES = {
    "models": "slotool.models.loading",
    "datasets": "slotool.data.registry",
    "predictors": "slotool.predictors.registry",
    "policies": "slotool.scheduling.batching.registry",
    "rankers": "slotool.elastic.slo_nn.rankers.registry",
    "rule_generators": "slotool.rules.generate.generator",
    "backends": "slotool.profiling.backends",
    "engines": "slotool.serving.engines",
}


def _devices() -> list[str]:
    """Return ``cpu`` and every CUDA device that torch can use."""
    from slotool import devices

    try:
        return [devices.titled(device) for device in devices.present()]
    except ImportError:
        return [devices.CPU]


def _threads() -> dict[str, int]:
    """Return the default number of threads of each numerical library."""
    from threadpoolctl import threadpool_info

    counts = {f"{pool['user_api']} ({pool['internal_api']})": int(pool["num_threads"]) for pool in threadpool_info()}
    try:
        import torch
    except ImportError:
        return counts
    return {"torch": torch.get_num_threads(), **counts}


def _gpus(facts: Mapping[str, Any]) -> str:
    """Describe models of the GPUs, driver and limits, as far as they are known."""
    driver = f"driver {facts['gpu_driver'] or 'not visible'}"
    cuda = f"CUDA up to {facts['gpu_cuda']}" if facts["gpu_cuda"] else ""
    units = {"gpu_power_limits_w": "W", "gpu_clocks_mhz": "MHz"}
    limits = [f"{', '.join(map(str, facts[name]))} {unit}" for name, unit in units.items() if facts[name]]
    return "; ".join(filter(None, [", ".join(facts["gpus"]), driver, cuda, *limits]))
