"""From what was found to the figures of a report, in the order one reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slotool.reports.collect import Collected
from slotool.reports.figure import Figure
from slotool.reports.series.accuracy import accuracy_against_k, accuracy_against_latency, has_k
from slotool.reports.series.colocation import colocation_figures
from slotool.reports.series.latency import latency_figures
from slotool.reports.series.load_test import served_latency, served_over_time
from slotool.reports.series.predictions import predicted_against_measured
from slotool.reports.series.predictor_study import study_figures
from slotool.reports.series.switching import plan_figures
from slotool.reports.series.tiers import tolerance_tiers
from slotool.reports.text import file_name
from slotool.tables import OutcomeTable


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
