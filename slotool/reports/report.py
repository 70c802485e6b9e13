"""A report on disk: one HTML file, and next to it a folder with the same plots as PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slotool.atomic import whole_file, whole_folder
from slotool.errors import AlreadyExistsError
from slotool.reports.collect import Collected
from slotool.reports.figure import Figure, Rows
from slotool.reports.series.accuracy import accuracy_against_k, accuracy_against_latency, has_k
from slotool.reports.series.colocation import colocation_figures
from slotool.reports.series.latency import latency_figures
from slotool.reports.series.load_test import served_latency, served_over_time
from slotool.reports.series.predictions import predicted_against_measured, study_figures
from slotool.reports.series.switching import plan_figures
from slotool.reports.series.tiers import tolerance_tiers
from slotool.reports.text import file_name
from slotool.tables import LatencyTable, OutcomeTable


def write_report(
    found: Collected, out: Path, *, title: str, force: bool = False, progress: Callable[[], None] = lambda: None
) -> list[Figure]:
    """Write ``out`` and ``plots_folder(out)``; ``progress`` is called per plot. Returns what was drawn.

    Everything is drawn before anything is put in place, the page last. Raises ``AlreadyExistsError`` when either is
    there and ``force`` is not set, or the folder holds anything but plots; ``InputError`` for data without a plot.
    """
    from slotool.reports.page import page
    from slotool.reports.plots import save_plots

    refuse_report(out, force)
    figures = figures_of(found)
    folder = plots_folder(out)
    with whole_file(out) as partial, whole_folder(folder) as drawn:
        pictures = {path.stem: path.read_bytes() for path in save_plots(figures, drawn, progress)}
        partial.write_text(page(title, figures, pictures, origins(found)), encoding="utf-8")
    return figures


def plots_folder(out: Path) -> Path:
    """``report_plots`` for ``report.html``."""
    return out.with_name(f"{out.stem}_plots")


def refuse_report(out: Path, force: bool) -> None:
    """Raises ``AlreadyExistsError`` unless ``write_report`` may write to ``out``."""
    folder = plots_folder(out)
    if out.is_dir():
        raise AlreadyExistsError(f"{out} is a folder; name the HTML file to write")
    for path in (out, folder):
        if path.exists() and not force:
            raise AlreadyExistsError(f"{path} exists already")
    if folder.exists() and not (folder.is_dir() and all(child.suffix == ".png" for child in folder.iterdir())):
        raise AlreadyExistsError(f"{folder} holds more than a report's plots; choose another name")


def figures_of(found: Collected) -> list[Figure]:
    """Every figure that ``found`` holds the data for; their ids are distinct. Raises ``InputError``."""
    drawn: list[Figure] = []
    for figure in _figures(found):
        stem = file_name(figure.id)
        taken = {other.id for other in drawn}
        free = next(name for n in range(1, len(taken) + 2) if (name := stem if n == 1 else f"{stem}-{n}") not in taken)
        drawn.append(replace(figure, id=free))
    return drawn


def _figures(found: Collected) -> Iterator[Figure]:
    for path, predictions in found.predictions:
        yield predicted_against_measured(path.resolve().stem, predictions, str(path))
    for path, study in found.studies:
        yield from study_figures(path.resolve().stem, study, str(path))
    for path, table in found.outcomes:
        if has_k(table):
            yield accuracy_against_k(subject_of(path, table), table, str(path))
    for name, tables in _by_data(found.outcomes).items():
        sources = ", ".join(str(path) for path, _ in tables)
        yield accuracy_against_latency(name, _distinct_names(tables), sources)
    for path, latency in found.latency:
        # One median among other tables is a number, not a plot.
        if len(latency.rows) > 1 or len(found.latency) == 1:
            yield from latency_figures(path.stem, latency, str(path))
    for path, measured in found.interference:
        yield from colocation_figures(str(measured.provenance.get("subject") or path.stem), measured, str(path))
    for path, rules in found.rules:
        yield from tolerance_tiers(path.stem, rules, str(path))
    for path, plan in found.plans:
        yield from plan_figures(plan, str(path))
    for path, log in found.requests:
        name = str(log.provenance.get("subject") or path.stem)
        yield served_latency(name, log, str(path))
        if log.provenance.get("faults"):
            yield served_over_time(name, log, str(path))


def subject_of(path: Path, table: OutcomeTable) -> str:
    """What the table's provenance calls its subject, or the file's name."""
    return str(table.provenance.get("subject") or path.stem)


def _by_data(outcomes: list[tuple[Path, OutcomeTable]]) -> dict[str, list[tuple[Path, OutcomeTable]]]:
    """Only accuracies on the same data may stand in one plot."""
    groups: dict[str, list[tuple[Path, OutcomeTable]]] = {}
    for path, table in outcomes:
        data, split = table.provenance.get("data"), table.provenance.get("split")
        name = f"{data} ({split})" if data and split else str(data or path.stem)
        groups.setdefault(name, []).append((path, table))
    return groups


def _distinct_names(tables: list[tuple[Path, OutcomeTable]]) -> list[tuple[str, OutcomeTable]]:
    subjects = [subject_of(path, table) for path, table in tables]
    return [
        (subject if subjects.count(subject) == 1 else f"{subject} · {path.stem}", table)
        for subject, (path, table) in zip(subjects, tables, strict=True)
    ]


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
