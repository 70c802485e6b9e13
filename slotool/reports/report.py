"""A report on disk: an HTML file and a folder of the same plots as PNG, of all files that declare a known schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from slotool.artifacts import Artifact, open_artifact
from slotool.artifacts.bundle import is_artifact
from slotool.atomic import whole_file, whole_folder
from slotool.errors import AlreadyExistsError, InputError
from slotool.predictors.scoring import PredictionsTable
from slotool.regular_files import require_regular
from slotool.reports.figure import Figure, Rows, file_name
from slotool.reports.files import kind_of
from slotool.reports.series.accuracy import accuracy_against_k, accuracy_against_latency, has_k
from slotool.reports.series.latency import latency_figures
from slotool.reports.series.load_test import dynamics_figures, served_latency, served_over_time
from slotool.reports.series.predictions import predicted_against_measured
from slotool.reports.series.switching import plan_figures
from slotool.reports.series.tiers import tolerance_tiers
from slotool.rules.ruleset.rules import RuleSet
from slotool.rules.switching import SwitchingPlan
from slotool.simulation.query_log import QueryLog
from slotool.tables import LatencyTable, OutcomeTable, Table, schema_name
from slotool.workloads import ArrivalTable
from slotool.workloads.requests import RequestLog

PREDICTIONS_FILE = "predictions.parquet"
Kind = TypeVar("Kind")


@dataclass
class Collected:
    """Recognised files, each with its path as given or collected, in order.

    ``read``: what can be drawn. ``unused``: recognised paths with nothing to draw, and their kinds. Damaged files
    in folders are unused.
    """

    read: list[tuple[Path, Any]] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    unused: list[tuple[Path, str]] = field(default_factory=list)

    def of(self, kind: type[Kind]) -> list[tuple[Path, Kind]]:
        """Return the tables, rules or plans of a kind."""
        return [(path, value) for path, value in self.read if isinstance(value, kind)]


def collect(paths: Iterable[Path], warn: Callable[[str], object] = lambda _: None) -> Collected:
    """Read every table, rule set, plan and artifact among ``paths``; folders are searched two levels deep.

    A file that is named must be something known and readable: raises ``TableError``, ``ArtifactError`` or
    ``InputError``, the last also when nothing is there to draw. In a folder others are passed over, damaged ones with
    ``warn``.
    """
    collected = Collected()
    visited: set[Path] = set()
    pending = list(paths)
    for path in pending:
        if not path.is_dir():
            require_regular(path, missing="no such file or folder")
        for candidate in _candidates(path):
            if candidate.resolve() in visited:
                continue
            visited.add(candidate.resolve())
            try:
                recognised = _take(candidate, collected)
            except (InputError, OSError) as error:
                if candidate == path:
                    raise
                warn(f"{candidate} is skipped: {str(error).removeprefix(f'{candidate}: ')}")
                collected.unused.append((candidate, "damaged"))
                continue
            if not recognised and candidate == path:
                raise InputError(
                    f"{path}: neither a table, a rule set, a plan nor an artifact that a report could draw"
                )
    if not collected.read:
        where = ", ".join(map(str, pending))
        raise InputError(
            f"{where}: nothing to draw; a report needs latency or outcome tables, request logs, rule sets, "
            "switching plans or a trained predictor"
        )
    return collected


def _candidates(path: Path, depth: int = 1) -> Iterator[Path]:
    """Yield ``path`` if it is a file or an artifact, else artifacts and files in ``depth`` levels of it."""
    if path.is_file() or is_artifact(path):
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name.startswith("."):
            continue
        if child.is_file() or is_artifact(child):
            yield child
        elif child.is_dir() and depth:
            yield from _candidates(child, depth - 1)


def _take(path: Path, collected: Collected) -> bool:
    """True if ``path`` was recognised."""
    if path.is_dir():
        artifact = open_artifact(path)
        collected.artifacts.append(artifact)
        if artifact.kind == "predictor" and PREDICTIONS_FILE in artifact.manifest["files"]:
            collected.read.append((artifact.path, PredictionsTable.load(artifact.file(PREDICTIONS_FILE))))
        return True
    kind = kind_of(path)
    if kind is None or kind is ArrivalTable:
        name = schema_name(path) if path.suffix == ".parquet" else None
        if name is not None:
            collected.unused.append((path, f"{name} table"))
        return name is not None
    value = kind.load(path)
    if isinstance(value, RequestLog) and not value.answered.any():
        collected.unused.append((path, "request log without a single answer"))
    elif isinstance(value, LatencyTable) and not (value.rows["status"] == "ok").any():
        collected.unused.append((path, "latency table without a single sample"))
    else:
        collected.read.append((path, value))
    return True


def write_report(
    collected: Collected, out: Path, *, title: str, force: bool = False, progress: Callable[[], None] = lambda: None
) -> list[Figure]:
    """Write ``out`` and ``plots_folder(out)``; ``progress`` is called per plot. Returns what was drawn.

    Everything is drawn before anything is put in place, the page last. Raises ``AlreadyExistsError`` when either is
    there and ``force`` is not set, or the folder holds anything but plots; ``InputError`` for data without a plot.
    """
    from slotool.reports.page import page
    from slotool.reports.plots import save_plots

    refuse_report(out, force)
    figures = figures_of(collected)
    folder = plots_folder(out)
    with whole_file(out) as partial, whole_folder(folder) as drawn:
        pictures = {path.stem: path.read_bytes() for path in save_plots(figures, drawn, progress)}
        partial.write_text(page(title, figures, pictures, origins(collected)), encoding="utf-8")
    return figures


def plots_folder(out: Path) -> Path:
    """Return ``report_plots`` for ``report.html``."""
    return out.with_name(f"{out.stem}_plots")


def refuse_report(out: Path, force: bool) -> None:
    """Raise ``AlreadyExistsError`` unless ``write_report`` may write to ``out``."""
    folder = plots_folder(out)
    if out.is_dir():
        raise AlreadyExistsError(f"{out} is a folder; name the HTML file to write")
    for path in (out, folder):
        if path.exists() and not force:
            raise AlreadyExistsError(f"{path} exists already")
    if folder.exists() and not (folder.is_dir() and all(child.suffix == ".png" for child in folder.iterdir())):
        raise AlreadyExistsError(f"{folder} holds more than a report's plots; choose another name")


def figures_of(collected: Collected) -> list[Figure]:
    """Return every figure that ``collected`` holds the data for; their ids are distinct. Raises ``InputError``."""
    drawn: list[Figure] = []
    for figure in _figures(collected):
        stem = file_name(figure.id)
        ids = {other.id for other in drawn}
        free = next(name for n in range(1, len(ids) + 2) if (name := stem if n == 1 else f"{stem}-{n}") not in ids)
        drawn.append(replace(figure, id=free))
    return drawn


def _figures(collected: Collected) -> Iterator[Figure]:
    for path, predictions in collected.of(PredictionsTable):
        yield predicted_against_measured(path.resolve().stem, predictions, str(path))
    outcomes, latencies = collected.of(OutcomeTable), collected.of(LatencyTable)
    for path, table in outcomes:
        if has_k(table):
            yield accuracy_against_k(_subject(path, table), table, str(path))
    for name, tables in _by_data(outcomes).items():
        sources = ", ".join(str(path) for path, _ in tables)
        yield accuracy_against_latency(name, _distinct_names(tables), sources)
    for path, latency in latencies:
        # A single median beside other tables is a number, not a plot.
        if len(latency.rows) > 1 or len(latencies) == 1:
            yield from latency_figures(path.stem, latency, str(path))
    for path, rules in collected.of(RuleSet):
        yield from tolerance_tiers(path.stem, rules, str(path))
    for path, plan in collected.of(SwitchingPlan):
        yield from plan_figures(plan, str(path))
    for path, simulated in collected.of(QueryLog):
        yield from dynamics_figures(_subject(path, simulated), simulated, str(path))
    for path, log in collected.of(RequestLog):
        name = _subject(path, log)
        yield served_latency(name, log, str(path))
        if log.provenance.get("faults"):
            yield served_over_time(name, log, str(path))


def _subject(path: Path, table: Table) -> str:
    """Return what the table's provenance calls its subject, or the file's name."""
    return str(table.provenance.get("subject") or path.stem)


def _by_data(outcomes: list[tuple[Path, OutcomeTable]]) -> dict[str, list[tuple[Path, OutcomeTable]]]:
    """Group outcomes by data set: accuracies on different data may not share a plot."""
    groups: dict[str, list[tuple[Path, OutcomeTable]]] = {}
    for path, table in outcomes:
        data, split = table.provenance.get("data"), table.provenance.get("split")
        name = f"{data} ({split})" if data and split else str(data or path.stem)
        groups.setdefault(name, []).append((path, table))
    return groups


def _distinct_names(tables: list[tuple[Path, OutcomeTable]]) -> list[tuple[str, OutcomeTable]]:
    subjects = [_subject(path, table) for path, table in tables]
    return [
        (subject if subjects.count(subject) == 1 else f"{subject} · {path.stem}", table)
        for subject, (path, table) in zip(subjects, tables, strict=True)
    ]


def origins(collected: Collected) -> list[tuple[str, Rows]]:
    """Return titles and tables: machines of the artifacts, the artifacts, and the tables with their provenance."""
    return [
        ("Machine", _machines(collected)),
        ("Artifacts", _artifacts(collected)),
        ("Tables and rules", _tables(collected)),
    ]


def _machines(collected: Collected) -> Rows:
    """Return one row per fact, one column per machine, so that differences show."""
    distinct: list[Mapping[str, Any]] = []
    for artifact in collected.artifacts:
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


def _artifacts(collected: Collected) -> Rows:
    columns = ("artifact", "kind", "made from", "seed", "created", "slotool", "id")
    rows = []
    for artifact in collected.artifacts:
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


def _tables(collected: Collected) -> Rows:
    rows = [_row(p, "predictions", len(t), t.provenance) for p, t in collected.of(PredictionsTable)]
    rows += [_row(p, "outcome table", len(t.rows), t.provenance) for p, t in collected.of(OutcomeTable)]
    rows += [
        (str(p), "rule set", f"{len(r.rules)}", f"{r.method}, table {r.table_sha256[:12]}")
        for p, r in collected.of(RuleSet)
    ]
    rows += [(str(p), "latency table", f"{len(t):,}", _measured_on(t)) for p, t in collected.of(LatencyTable)]
    rows += [
        (str(p), "switching plan", f"{len(plan.loads)}", f"machine {plan.machine}")
        for p, plan in collected.of(SwitchingPlan)
    ]
    rows += [_row(p, "request log", len(t), t.provenance) for p, t in collected.of(RequestLog)]
    rows += [(str(p), what, "–", "nothing of it is drawn") for p, what in collected.unused]
    return Rows(("file", "what", "rows", "provenance"), tuple(rows))


def _row(path: Path, what: str, rows: int, provenance: Mapping[str, Any]) -> tuple[str, ...]:
    text = ", ".join(f"{name} {value}" for name, value in _flat(provenance.items()))
    return str(path), what, f"{rows:,}", text or "not stated"


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
