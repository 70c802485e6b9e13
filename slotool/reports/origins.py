"""Where a report's data come from: the tables at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slotool.reports.collect import Collected
from slotool.reports.figure import Rows
from slotool.tables import LatencyTable


def origins(found: Collected) -> list[tuple[str, Rows]]:
    """Titles and tables: machines the artifacts were made on, the artifacts, and the tables with their provenance."""
    return [
        ("Machine", _machines(found)),
        ("Artifacts", _artifacts(found)),
        ("Tables and rules", _tables(found)),
    ]


def _machines(found: Collected) -> Rows:
    """One row per fact; one column per machine, so that a report over several shows where they differ."""
    distinct: list[Mapping[str, Any]] = []
    for artifact in found.artifacts:
        facts = artifact.manifest.get("machine")
        if isinstance(facts, Mapping) and _machine(facts) not in distinct:
            distinct.append(_machine(facts))
    if not distinct:
        return Rows((), ())
    columns = ("fact", *(f"machine {i + 1}" for i in range(len(distinct)))) if len(distinct) > 1 else ("fact", "value")
    return Rows(columns, tuple((name, *(machine[name] for machine in distinct)) for name in distinct[0]))


def _machine(facts: Mapping[str, Any]) -> dict[str, str]:
    memory = facts.get("memory_bytes")
    libraries = {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}
    return {
        "CPU": str(facts.get("cpu") or "unknown"),
        "cores": f"{facts.get('cores_given')} of {facts.get('cores')} given",
        "memory": f"{memory / 2**30:.1f} GiB" if isinstance(memory, int | float) else "unknown",
        "governor": str(facts.get("governor") or "not visible"),
        "system": f"{facts.get('system')}, {facts.get('architecture')}, Python {facts.get('python')}",
        "libraries": ", ".join(f"{name} {version}" for name, version in libraries.items() if version),
    }


def _artifacts(found: Collected) -> Rows:
    columns = ("artifact", "kind", "made from", "seed", "created", "slotool", "id")
    rows = []
    for artifact in found.artifacts:
        manifest = artifact.manifest
        parents = ", ".join(str(parent.get("name")) for parent in manifest.get("parents", ()))
        seed = manifest.get("seed")
        created = str(manifest.get("created", "")).replace("T", " ")[:16]
        rows.append(
            (
                artifact.name,
                artifact.kind,
                parents or str((manifest.get("config") or {}).get("data") or "–"),
                "–" if seed is None else str(seed),
                created,
                str(manifest.get("slotool_version", "–")),
                artifact.id[:12],
            )
        )
    return Rows(columns, tuple(rows))


def _tables(found: Collected) -> Rows:
    rows: list[tuple[str, ...]] = []
    rows += [_row(p, "predictions", len(t), t.provenance) for p, t in found.predictions]
    rows += [_row(p, "study of predictors", len(t), t.provenance) for p, t in found.studies]
    rows += [_row(p, "outcome table", len(t.rows), t.provenance) for p, t in found.outcomes]
    rows += [
        (str(p), "rule set", f"{len(r.rules)}", f"{r.method}, table {r.table_sha256[:12]}") for p, r in found.rules
    ]
    rows += [(str(p), "latency table", f"{len(t):,}", _measured_on(t)) for p, t in found.latency]
    rows += [(str(p), "switching plan", f"{len(plan.loads)}", f"machine {plan.machine}") for p, plan in found.plans]
    rows += [_row(p, "request log", len(t), t.provenance) for p, t in found.requests]
    rows += [(str(p), what, "–", "nothing of it is drawn") for p, what in found.unused]
    return Rows(("file", "what", "rows", "provenance"), tuple(rows))


def _row(path: Path, what: str, rows: int, provenance: Mapping[str, Any]) -> tuple[str, ...]:
    said = ", ".join(f"{name} {value}" for name, value in _flat(provenance.items()))
    return str(path), what, f"{rows:,}", said or "not stated"


def _flat(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, Mapping):
            yield from _flat(value.items())
        elif value is not None:
            yield name.replace("_", " "), value if not isinstance(value, str) else value[:40]


def _measured_on(table: LatencyTable) -> str:
    return ", ".join(
        f"{column} {' and '.join(map(str, table.rows[column].unique()))}" for column in ("machine", "device", "backend")
    )
