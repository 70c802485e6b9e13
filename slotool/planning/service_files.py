"""Service files of a plan, which ``slotool serve --config`` runs as they are, and the latency tables they name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from slotool.atomic import whole_file
from slotool.errors import InputError, RunError
from slotool.machine import memory_within, usable_cores
from slotool.planning.fleet import Fleet, Pool, WorkerType
from slotool.planning.model_on_workers import Demand
from slotool.planning.planner import Fleets, Planner
from slotool.printable import counted, size_text
from slotool.progress import Reporter
from slotool.serving.engines import LocalInferenceEngine
from slotool.serving.operations.service_file import ServiceFile
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable, OperatingPoint


def write_services(planner: Planner, fleets: Fleets, out: Path, reporter: Reporter) -> tuple[list[Path], str]:
    """Write the service file of the fleet that all models share, or one for each model beside ``out``.

    Beside a file lie latency tables of workers that share machines.

    Return the files, and a sentence where this machine lacks the memory for workers; no file is then written.
    """
    best = fleets.best
    services = [(out, planner, best.fleet)] if best is not None else [
        (out.with_name(f"{out.stem}-{file_part(name, at)}{out.suffix}"), planner.only(name), fleet)
        for at, (name, fleet) in enumerate(fleets.of_models.items())
    ]  # fmt: skip
    for path, part, fleet in services:
        if remark := cluster_remark(fleet.pool):
            reporter.warn(remark)
        if lacking := _memory_lacking_here(path, part, fleet, reporter):
            return [], lacking
    for path, part, fleet in services:
        text = service_of(part, fleet, raised_pools(part, fleet, path), path.parent)
        with whole_file(path) as file:
            file.write_text(text)
    return [path for path, *_ in services], ""


@contextmanager
def passing_service(planner: Planner, fleet: Fleet, pools: Mapping[str, Pool], beside: Path) -> Iterator[Path]:
    """Yield a service file that is removed at the end; it lies ``beside`` another, as its paths are relative."""
    path = beside.with_name(f".{beside.stem}-{os.getpid()}.toml")
    try:
        with whole_file(path) as file:
            file.write_text(service_of(planner, fleet, pools, path.parent))
        yield path
    finally:
        path.unlink(missing_ok=True)


def service_of(planner: Planner, fleet: Fleet, pools: Mapping[str, Pool], folder: Path) -> str:
    """Return ``service_text`` of ``fleet``, with the policies and latencies of ``pools``."""
    terms = {name: planner.models[name].terms(pool) for name, pool in pools.items()}
    return service_text(planner.demands, pools, terms, folder, planner.max_queue(fleet.pools))


def service_text(
    demands: Mapping[str, Demand],
    pools: Mapping[str, Pool],
    terms: Mapping[str, Mapping[str, Any]],
    folder: Path,
    max_queue: int,
) -> str:
    """Return TOML with paths relative to ``folder``, where the file is to lie.

    Args:
        demands: Models that share the workers, by name.
        pools: Policy, and latencies on the workers, by model.
        terms: Options that requests are to ask for, by model, where it is they who choose in place of a policy.
        folder: Folder of the file.
        max_queue: Requests that may wait, of all models.
    """
    pool, of_all = next(iter(pools.values())), f" for {len(demands)} models" if len(demands) > 1 else ""
    longest_ms = max(demand.promise.deadline_us for demand in demands.values()) / 1e3
    lines = [
        f"# {pool.replicas:,} worker{'s' if pool.replicas > 1 else ''} of {pool.worker.name}{of_all}.",
        *_engine(pool),
        f"default-deadline-ms = {longest_ms!r}",
        *([f"# Workers, each with a GPU of its own: {pool.replicas}."] if pool.worker.is_gpu else []),
        *([] if pool.worker.is_gpu else [f"replicas = {pool.replicas}"]),
        f"threads = {pool.worker.threads}",
        *_device(pool),
        "# Of more waiting requests the last could not be answered in time, or more than a server reads within a "
        "deadline.",
        f"max-queue = {max_queue}",
    ]
    for name, demand in demands.items():
        promise, deadline_ms = demand.promise, demand.promise.deadline_us / 1e3
        accuracy = f", mean accuracy {promise.accuracy:g}" if promise.accuracy else ""
        lines += [
            "",
            f"# {promise.attainment:g} of the requests within {deadline_ms:g} ms{accuracy}, at confidence "
            f"{promise.confidence:g}.",
            "[[models]]",
            *([f"name = {_quoted(name)}"] if len(demands) > 1 else []),
            *(f"{key} = {_quoted(_relative(path, folder))}" for key, path in demand.files.items()),
            f"latency = {_quoted(_relative(Path(str(pools[name].worker.source)), folder))}",
        ]
        if terms[name]:
            stated = " and ".join(f"{option} {_stated(value)}" for option, value in terms[name].items())
            lines.append(f"# Requests are to ask for {stated}.")
        else:
            lines += [f"policy = {_quoted(pools[name].policy)}", f"deadline-ms = {deadline_ms!r}"]
    return "\n".join([*lines, ""])


def cluster_remark(pool: Pool) -> str:
    """Return a remark where workers take more cores than this machine has; empty where they do not, or take GPUs."""
    if pool.runs_here or pool.worker.is_gpu:
        return ""
    return (
        f"The workers take {pool.replicas * pool.worker.threads} cores, this machine has {usable_cores()}: "
        'engine "ray" runs them on a ray cluster.'
    )


def raised_pools(planner: Planner, fleet: Fleet, path: Path) -> dict[str, Pool]:
    """Return by model its pool; where workers share machines, with a latency table of these written beside ``path``."""
    pools = dict(fleet.pools)
    for number, (name, pool) in enumerate(fleet.pools.items()):
        placed = planner.models[name].placed(pool.worker, pool.replicas)
        if placed is not pool.worker:
            part = f"-{file_part(name, number)}" if len(fleet.pools) > 1 else ""
            source = path.with_name(f"{path.stem}{part}-latency.parquet")
            _raised_table(pool.worker, placed).save(source)
            pools[name] = replace(pool, worker=replace(pool.worker, source=source))
    return pools


def _raised_table(worker: WorkerType, placed: WorkerType) -> LatencyTable:
    """Return the rows of ``worker``, with the latencies of ``placed``."""
    table = LatencyTable.load(Path(str(worker.source)))
    solo = table.where(status="ok", co_runners="", threads=worker.threads, subject=placed.profile.subject)
    rows = solo.rows[solo.rows["device"] == worker.device] if worker.device in set(solo.rows["device"]) else solo.rows
    cells = zip(map(OperatingPoint.parse, rows["point"]), rows["batch_size"].astype(int), strict=True)
    # Points that no policy would choose are served too where a request names them.
    raised = [
        placed.profile.samples_us.get(cell, 1e6 * times) for cell, times in zip(cells, rows["samples_s"], strict=True)
    ]
    rows = rows.drop(columns=["samples_per_round"]).assign(samples_s=[1e-6 * each for each in raised])
    return LatencyTable(rows.reset_index(drop=True), {**table.provenance, "co_located": placed.name})


def _memory_lacking(service: Path, pool: Pool) -> str:
    """Return a sentence if the memory here is too small for all workers of a service file, else an empty text.

    A worker is started and measured. Raises ``InputError`` or ``RunError`` for a model that cannot be loaded.
    """
    engine = LocalInferenceEngine(1, pool.worker.threads)
    models = ServiceFile(service, {}, Sources((), threads=pool.worker.threads)).read().load(lambda warning: None)
    try:
        engine.open(models, lambda *change: None)
        each, available = engine.worker_bytes(), memory_within()
    finally:
        engine.close()
    if pool.replicas * each <= available:
        return ""
    return (
        f"the plan's {counted(pool.replicas, 'worker')} cannot fit into memory: each takes {size_text(each)}, as "
        f"measured, and there are {size_text(available)}, for {available // each}"
    )


def _memory_lacking_here(beside: Path, planner: Planner, fleet: Fleet, reporter: Reporter) -> str:
    """Return a sentence where workers of ``fleet`` that run here take more memory than there is; else empty."""
    if not fleet.pool.runs_here or fleet.pool.worker.is_gpu:
        return ""
    try:
        with (
            reporter.progress("measuring the memory of a worker"),
            passing_service(planner, fleet, fleet.pools, beside) as service,
        ):
            return _memory_lacking(service, fleet.pool)
    except (InputError, RunError) as error:
        reporter.note(f"memory is not checked: {error}")
        return ""


def file_part(name: str, number: int) -> str:
    """Return a part of a file's name that no other model has: of a name with other signs its place too."""
    printable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return printable if printable == name else f"{printable}-{number + 1}"


def _engine(pool: Pool) -> list[str]:
    """Return processes of this machine if it has the cores, or GPUs are needed; else a cluster."""
    remark = cluster_remark(pool)
    return ['engine = "ray"', f"# {remark}"] if remark else ['engine = "local"']


def _device(pool: Pool) -> list[str]:
    """Return GPUs, one for each worker."""
    device = pool.worker.device
    if not pool.worker.is_gpu:
        return []
    named = [device] if pool.replicas == 1 else [f"cuda:{number}" for number in range(pool.replicas)]
    return [f"device = {_quoted(','.join(named))}"]


def _stated(value: Any) -> str:
    """Return a value that all requests have, or the shares of those that do."""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} ({share:.0%} of them)" for each, share in value.items())
    return str(value)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
