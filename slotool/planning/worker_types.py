"""Kinds of workers that a fleet may have, from latency tables: one per number of threads of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from slotool.elastic.model import version_name
from slotool.errors import InputError
from slotool.machine import machine_id
from slotool.planning.fleet import WorkerType
from slotool.planning.tiers import read_versions
from slotool.rules.ruleset.rules import RuleSet
from slotool.scheduling.batching import Profile, read_profile
from slotool.scheduling.space import outcome_columns
from slotool.tables import FULL, LatencyTable, OperatingPoint, OutcomeTable
from slotool.tables.latency import UNKNOWN_DEVICE, UNKNOWN_MACHINE


class Named(NamedTuple):
    """A table, and the file that it was read from, or the table itself."""

    table: LatencyTable
    source: Any

    def __str__(self) -> str:
        return str(self.source) if isinstance(self.source, str | Path) else "the latency table"


def worker_types(
    tables: Sequence[Named],
    outcomes: OutcomeTable | None,
    rules: RuleSet | None,
    *,
    devices: Sequence[str] = (),
    **conditions: Any,
) -> tuple[list[WorkerType], list[str]]:
    """Return types named by their threads, and by the file if there are several; and remarks on them.

    ``conditions``, ``devices``: as of ``read_profile``; tables may be of different devices. A worker costs as much as
    it has threads. Raises ``InputError`` for a table that cannot be planned with or that is given twice.
    """
    names = _names(tables)
    types: list[WorkerType] = []
    remarks: list[str] = []
    texts: dict[str, list[str]] = {}
    for (table, source), of in zip(tables, names, strict=True):
        solo = table.where(status="ok", co_runners="").of_devices(devices)
        named = Named(solo, source)
        if solo.rows.empty:
            raise InputError(f"{named}: no row has the status ok and no co-runners: there is nothing to plan with")
        for threads in sorted(set(solo.rows["threads"])):
            name = f"{of}{threads} thread{'s' if threads > 1 else ''}"
            profile = _profile(named, outcomes, rules, threads=threads, **conditions)
            predicted = solo.where(threads=threads, predicted=True).rows["machine"]
            if len(predicted):
                whose = "" if set(predicted) <= {machine_id(), UNKNOWN_MACHINE} else ", of another machine"
                remarks.append(
                    f"latencies of {name} are predicted{whose}: compare a measurement, or what --verify serves"
                )
            if (least := int(profile.grid.sizes[0])) > 1:
                remarks.append(f"latencies of {name} begin with batches of {least}: a call of fewer is taken for one")
            texts[name] = profile.grid.remarks
            device = str(solo.rows["device"].iloc[0])
            if device == UNKNOWN_DEVICE and devices:
                device = devices[0]  # whoever named it says of what these rows are
            machines = tuple(sorted(set(solo.rows["machine"])))
            types.append(WorkerType(name, profile, int(threads), float(threads), source, device, machines=machines))
    for name, lines in texts.items():
        remarks += [f"{name}: {remark}" if len(types) > 1 else remark for remark in lines]
    return types, remarks


def named_alike(workers: Sequence[WorkerType], first: Sequence[WorkerType], model: str) -> dict[str, WorkerType]:
    """Return the ``workers`` of ``model`` by name; one that is the same as one of the ``first`` model's under its name.

    The same are those of one device, number of threads and machine; then, as each model may have been measured on a
    machine of its own, those left of the same device and threads, in order.
    """
    names: dict[str, str] = {}
    for facts in (attrgetter("device", "threads", "machines"), attrgetter("device", "threads")):
        for worker in workers:
            rest = (each for each in first if each.name not in names.values())
            same = next((each.name for each in rest if facts(each) == facts(worker)), None)
            if worker.name not in names and same is not None:
                names[worker.name] = same
    names_taken = {each.name for each in first}
    for worker in workers:
        names.setdefault(worker.name, f"{worker.name} of {model}" if worker.name in names_taken else worker.name)
    return {names[worker.name]: replace(worker, name=names[worker.name]) for worker in workers}


def _names(tables: Sequence[Named]) -> list[str]:
    """Return the prefix of types' names by table: none for a single one, else its file, and its folder if ambiguous."""
    if len(tables) == 1:
        return [""]
    paths = [Path(str(source)) for _, source in tables]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise InputError(f"{twice[0]} is given twice: one latency table is one kind of worker")
    stems = [path.stem for path in paths]
    return [f"{path.parent / path.stem if stems.count(path.stem) > 1 else path.stem}, " for path in paths]


def _profile(named: Named, outcomes: OutcomeTable | None, rules: RuleSet | None, **conditions: Any) -> Profile:
    points = _points(named)
    if outcomes is not None:
        versions = None if rules is None else {*rules.versions, rules.best_version}
        columns = outcome_columns(points, outcomes)
        lacking = [
            point for point in points if point not in columns and (versions is None or version_name(point) in versions)
        ]
        if lacking:
            # Value of rows in a table without that column.
            none = "; is its column point missing?" if points == [FULL] else ""
            raise InputError(
                f"{named} has the point {str(lacking[0])!r}, of which the outcome table has no version; it has "
                f"{', '.join(outcomes.versions)}{none}"
            )
    try:
        if rules is None or outcomes is None:
            return read_profile(named.table, outcomes, **conditions)
        return read_versions(named.table, outcomes, rules, **conditions)
    except InputError as error:
        raise InputError(f"{named}: {error}" if isinstance(named.source, str | Path) else str(error)) from error


def _points(named: Named) -> list[OperatingPoint]:
    """Raise ``InputError`` for a point that is not written as one, with how it is."""
    points = []
    for key in dict.fromkeys(named.table.rows["point"]):
        try:
            points.append(OperatingPoint.parse(key))
        except InputError:
            raise InputError(
                f"{named}, column point: {key!r} is no operating point, as a point is settings such as k=0.5; write "
                f"{OperatingPoint.of(version=key).key!r} if it is a version's name"
            ) from None
    return points
