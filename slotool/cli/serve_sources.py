"""What ``slotool serve`` serves: the sources that its artifacts, options and file of a service describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slotool.cli.commands import config_file, stated_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from slotool.serving.operations.runtime_settings import AnySources
    from slotool.serving.operations.service_file import KeysInForce
    from slotool.serving.operations.sources import CombinedSources, Sources


def devices_of(given: str, engine: str, max_replicas: int | None, switch_workers: bool) -> tuple[str, ...]:
    """That workers compute on. Several GPUs have a worker each."""
    from slotool import devices

    on = devices.several(given)
    if devices.is_cuda(on[0]) and engine not in ("inline", "local"):
        raise typer.BadParameter(
            f"workers of --engine {engine} compute on the CPU: leave it out", param_hint="--device"
        )
    if len(on) > 1 and (engine == "inline" or max_replicas is not None or switch_workers):
        raise typer.BadParameter(
            "several GPUs have a worker process each: --engine local, without --max-replicas and --switch-workers",
            param_hint="--device",
        )
    return on


def _with_a_worker_each(sources: Sources | CombinedSources) -> Sources | CombinedSources:
    """Of several GPUs."""
    devices, (replicas, threads) = sources.devices, sources.workers
    if len(devices) == 1:
        return sources
    if replicas not in (1, len(devices)):
        raise typer.BadParameter(
            f"{replicas} workers for {len(devices)} GPUs, which have one each: leave it out", param_hint="--replicas"
        )
    return sources.with_workers(len(devices), threads)


def reader(given: Sources, lists_models: bool) -> Callable[[], AnySources]:
    """What is served, whenever it is read: by the file that lists models, or by the command line."""
    read = _described(given) if lists_models else _planned(given)
    return lambda: _with_a_worker_each(read())


def _described(given: Sources) -> Callable[[], CombinedSources]:
    """Reads the models that the file lists; what the command line states goes before it."""
    from slotool.serving.operations.service_file import ServiceFile

    file = config_file()
    if file is None:
        raise typer.BadParameter("models are listed in a file: --config service.toml", param_hint="--models")
    if given.artifacts or given.names:
        what = "ARTIFACTS" if given.artifacts else "--name"
        raise typer.BadParameter(f"{file} lists the models: leave them out", param_hint=what)
    if len(given.outcomes) > 1:
        raise typer.BadParameter(f"one table for each of the models: name it in {file}", param_hint="--outcomes")
    values = {
        "rules": given.rules,
        "latency": given.latency,
        "outcomes": given.outcomes[0] if given.outcomes else None,
        "plan": given.plan,
        "policy": given.policy,
        "deadline-ms": given.deadline_us * 1e-3,
    }
    overriding = {
        key: value.absolute() if isinstance(value, Path) else value
        for key, value in values.items()
        if stated_in(key.replace("-", "_")) == "COMMANDLINE"
    }
    fixed = frozenset(key for key in ("replicas", "threads") if stated_in(key) == "COMMANDLINE")
    workers = (given.replicas if "replicas" in fixed else 1, given.threads if "threads" in fixed else 1)
    common = given.with_workers(*workers)
    return ServiceFile(file, overriding, common, fixed, given.mapped).read


def keys_in_force(described: bool) -> KeysInForce | None:
    """What the file of a service says for as long as the server runs; None unless models are ``described`` in one."""
    from slotool.serving.operations.service_file import KeysInForce

    file = config_file()
    return KeysInForce(file) if described and file is not None else None


def _planned(given: Sources) -> Callable[[], Sources]:
    """``given``, whose workers are those of the switching plan where nothing else says so."""
    silent = stated_in("replicas") == stated_in("threads") == "DEFAULT"
    return given.as_planned if given.mapped and silent else lambda: given


def first_read(read: Callable[[], AnySources], switch_workers: bool) -> AnySources:
    """What is served. Refuses --switch-workers where no plan says what to change to."""
    sources = read()
    plan = sources.switching_plan if switch_workers else None
    if switch_workers and (plan is None or len(plan.by_configuration) == 1):
        made = "there is no --plan of a single model" if plan is None else "the plan is for one of them only"
        raise typer.BadParameter(
            f"nothing says which replicas x threads serve which load: {made} (slotool gen-switching-plan "
            "--configurations 1x2,2x1)",
            param_hint="--switch-workers",
        )
    return sources


def beside_config(path: Path | None, option: str) -> Path | None:
    """A path that the file of a service states is relative to that file. What is read must exist."""
    file = config_file()
    if path is None or file is None or stated_in(option) != "DEFAULT_MAP":
        return path
    found = file.parent / path
    if option not in ("log", "access_log") and not found.is_file():
        key = option.replace("_", "-")
        raise typer.BadParameter(f"{file}: {key}: there is no file {found}", param_hint="--config")
    return found
