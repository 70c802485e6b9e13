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
    from slotool.graphs import OperatorGraph
    from slotool.planning.fleet import Fleet, Pool, WorkerType
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.interference import Placement
    from slotool.tables import LatencyTable, OperatingPoint


def placement_of(
    interference: FilePath | LatencyTable | float | None,
    machine_cores: int | None,
    workers: Sequence[WorkerType],
    quantile: float,
    artifact: FilePath | None,
    reporter: Reporter,
    of: str = "",
    front_end_ms: float = 0.0,
) -> Placement | None:
    """Return the placement on machines of ``machine_cores`` (None: of this one); None without interference.
    Warns of points and batch sizes for which others stand in; ``of``: what warnings begin with.

    Raises ``ArgumentError`` for a ratio below 1 and for cores without effect, ``InputError`` for a table without rows
    of the workers.
    """
    from slotool.machine import usable_cores
    from slotool.planning.interference import Interference, Placement
    from slotool.predictors.colocated.artifact import PredictorArtifact
    from slotool.tables import LatencyTable

    if machine_cores is not None and machine_cores < 1:
        raise ArgumentError("machine_cores", f"{machine_cores} is not 1 or more")
    if not front_end_ms >= 0:
        raise ArgumentError("front_end_ms", f"{front_end_ms:g} is not 0 or more")
    if interference is None:
        for name, stated in (("machine_cores", machine_cores is not None), ("front_end_ms", front_end_ms > 0)):
            if stated:
                raise ArgumentError(name, "it has no effect without interference")
        return None
    found: dict[str, Interference] = {}
    for worker in workers:
        if isinstance(interference, int | float):
            if not interference >= 1:
                raise ArgumentError("interference", f"a ratio of {interference:g} is not 1 or more")
            found[worker.name] = Interference.constant(float(interference), quantile)
            continue
        if isinstance(interference, str | Path) and Path(interference).is_dir():
            found[worker.name] = Interference.of_predictor(
                PredictorArtifact.load(str(interference)),
                graphs_of(artifact),
                threads=worker.threads,
                quantile=quantile,
            )
            continue
        table = loaded(LatencyTable, interference)
        found[worker.name] = Interference.of_table(
            table, worker.profile.subject, threads=worker.threads, quantile=quantile
        )
    for worker in workers:
        for remark in found[worker.name].remarks(worker.profile):
            reporter.warn(f"{of}{worker.name}: {remark}" if len(workers) > 1 else f"{of}{remark}")
    return Placement(machine_cores or usable_cores(), found, 1e3 * front_end_ms)


def graphs_of(artifact: FilePath | None) -> dict[OperatingPoint, OperatorGraph]:
    """The operator graphs of what is to be served, by point: of slotool's families, and of families of ONNX files.

    Raises ``ArgumentError`` without an artifact, or for one of another kind.
    """
    from slotool.artifacts import open_artifact
    from slotool.commands.networks.networks import Networks
    from slotool.elastic import load_served
    from slotool.elastic.family import Family
    from slotool.elastic.model_family_files import VERSIONS_FILE

    if artifact is None:
        raise ArgumentError("interference", "a predictor needs the graphs of what is served: give its artifact too")
    model = load_served(str(artifact), mapped=True)
    if isinstance(model, Family):
        return dict(zip(model.points, (version.graph for version in model.versions), strict=True))
    names = Path(str(artifact)) / VERSIONS_FILE
    entries = open_artifact(str(artifact)).json(VERSIONS_FILE)["versions"] if names.is_file() else []
    files = {entry["name"]: str(entry["stored"] or entry["location"]) for entry in entries}
    if not files or not all(file.endswith(".onnx") for file in files.values()):
        raise ArgumentError(
            "interference",
            f"a predictor needs operator graphs, and {artifact} is no family of ONNX files: measure a table by "
            "profile points --co-runners 0,1 --placement split",
        )
    found = {}
    for point in model.points:
        file = Path(files[str(point.get("version"))])
        at = file if file.is_absolute() else Path(str(artifact)) / file
        (found[point],) = Networks.of([str(at)]).graphs()
    return found


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
    takes_all = search.placement is not None and together * pool.worker.threads >= placement.cores
    if takes_all and not placement.front_end_us:
        yield (
            f"the workers take all {placement.cores} cores of a machine, and the front end of their server takes a "
            "part of these: plan with --front-end-ms, which --verify measures, or leave it a core",
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
