"""Workers of ``slotool.plan`` that share a machine, and by how much they slow each other down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slotool.commands.inputs import FilePath, loaded, name_of
from slotool.commands.progress import Reporter
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Pool, WorkerType
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.interference import Placement
    from slotool.tables import LatencyTable


def placement_of(
    interference: FilePath | LatencyTable | float | None,
    machine_cores: int | None,
    workers: Sequence[WorkerType],
    quantile: float,
    reporter: Reporter,
    of: str = "",
) -> Placement | None:
    """Return the placement on machines of ``machine_cores`` (None: of this one); None without interference.
    Warns of points and batch sizes for which others stand in; ``of``: what warnings begin with.

    Raises ``ArgumentError`` for a ratio below 1 and for cores without effect, ``InputError`` for a table without rows
    of the workers.
    """
    from slotool.machine import usable_cores
    from slotool.planning.interference import Interference, Placement
    from slotool.tables import LatencyTable

    if machine_cores is not None and machine_cores < 1:
        raise ArgumentError("machine_cores", f"{machine_cores} is not 1 or more")
    if interference is None:
        if machine_cores is not None:
            raise ArgumentError("machine_cores", "it has no effect without interference")
        return None
    found: dict[str, Interference] = {}
    for worker in workers:
        if isinstance(interference, int | float):
            if not interference >= 1:
                raise ArgumentError("interference", f"a ratio of {interference:g} is not 1 or more")
            found[worker.name] = Interference.constant(float(interference), quantile)
            continue
        table = loaded(LatencyTable, interference)
        found[worker.name] = Interference.of_table(
            table, worker.profile.subject, threads=worker.threads, quantile=quantile
        )
    for worker in workers:
        for remark in found[worker.name].remarks(worker.profile):
            reporter.warn(f"{of}{worker.name}: {remark}" if len(workers) > 1 else f"{of}{remark}")
    return Placement(machine_cores or usable_cores(), found)


def note_sharing(fleets: Mapping[str, tuple[FleetSearch, Fleet]], reporter: Reporter) -> None:
    """Says what is not known, or only by extrapolation, of workers of these fleets that share a machine. ``fleets``: by
    model, which is named where it is not so of all."""
    of: dict[tuple[str, bool], list[str]] = {}
    for name, (search, fleet) in fleets.items():
        for said in dict.fromkeys(_sharing(search, fleet)):
            of.setdefault(said, []).append(name)
    for (remark, is_known), names in of.items():
        whose = "" if len(names) == len(fleets) else f"{', '.join(names)}: "
        if is_known:
            reporter.warn(whose + remark)
        else:
            reporter.note(whose + remark)


def _sharing(search: FleetSearch, fleet: Fleet) -> Iterator[tuple[str, bool]]:
    """Remarks, and whether anything is known of interference."""
    from slotool.machine import usable_cores
    from slotool.planning.interference import Placement
    from slotool.planning.service_text import is_gpu

    pool = fleet.pools[search.name]
    if is_gpu(pool.worker):
        return
    placement = search.placement or Placement(usable_cores(), {})
    together = placement.per_machine(pool.worker, pool.replicas)
    known = placement.interference.get(pool.worker.name)
    if search.placement is not None and together * pool.worker.threads >= placement.cores:
        yield (
            f"the workers take all {placement.cores} cores of a machine, and the front end of their server takes a "
            "part of these, as --verify measures: leave it a core",
            False,
        )
    if together == 1:
        return
    if known is None:
        yield (
            f"{together} workers share a machine, and are planned with the latency of one alone; --interference "
            "says what they do to each other",
            False,
        )
    elif together - 1 > known.max_co_runners:
        yield (
            f"{together} workers share a machine, and interference is known next to {known.max_co_runners} at "
            "most: next to more it counts in proportion",
            True,
        )


def with_raised_table(search: FleetSearch, pool: Pool, path: Path) -> Pool:
    """``pool`` with its latencies next to others in the file ``path``, where its workers share machines."""
    placed = search.placed(pool.worker, pool.replicas)
    if placed is pool.worker:
        return pool
    _raised_table(pool.worker, placed).save(path)
    return replace(pool, worker=replace(pool.worker, source=path))


def _raised_table(worker: WorkerType, placed: WorkerType) -> LatencyTable:
    """The rows of ``worker``, with the latencies of ``placed``."""
    from slotool.tables import LatencyTable, OperatingPoint

    table = loaded(LatencyTable, worker.source)
    kept = table.where(status="ok", co_runners="", threads=worker.threads, subject=placed.profile.subject)
    rows = kept.rows[kept.rows["device"] == worker.device] if worker.device in set(kept.rows["device"]) else kept.rows
    cells = zip(map(OperatingPoint.parse, rows["point"]), rows["batch_size"].astype(int), strict=True)
    # Points that no policy would choose are served too where a request names them.
    raised = [
        placed.profile.samples_us.get(cell, 1e6 * own) for cell, own in zip(cells, rows["samples_s"], strict=True)
    ]
    rows = rows.drop(columns=["samples_per_round"]).assign(samples_s=[1e-6 * each for each in raised])
    return LatencyTable(rows.reset_index(drop=True), {**table.provenance, "co_located": placed.name})


def named_interference(interference: FilePath | LatencyTable | float | None) -> str | None:
    if isinstance(interference, float | int):
        return f"{interference:g} times"
    return None if interference is None else name_of(interference)
