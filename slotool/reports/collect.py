"""What there is to report on: files and folders recognised by the schema they declare, not by their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slotool import strict_json
from slotool.artifacts import Artifact, open_artifact
from slotool.artifacts.bundle import is_artifact
from slotool.errors import InputError
from slotool.predictors.scoring import PREDICTIONS_SCHEMA, PredictionsTable
from slotool.predictors.training import study
from slotool.regular_files import require_regular
from slotool.rules.ruleset.rules import RULES_SCHEMA, RuleSet
from slotool.rules.switching import PLAN_SCHEMA, SwitchingPlan
from slotool.tables import LATENCY_SCHEMA, OUTCOME_SCHEMA, LatencyTable, OutcomeTable, Schema, schema_name
from slotool.workloads.interference import INTERFERENCE_SCHEMA, InterferenceTable
from slotool.workloads.requests import REQUESTS_SCHEMA, RequestLog

PREDICTIONS_FILE = "predictions.parquet"


@dataclass
class Collected:
    """Everything recognised, each with the path it was given or found under, in the order met.

    ``unused``: paths that were recognised, but of which there is nothing to draw, and what they are.
    """

    predictions: list[tuple[Path, PredictionsTable]] = field(default_factory=list)
    studies: list[tuple[Path, study.StudyTable]] = field(default_factory=list)
    outcomes: list[tuple[Path, OutcomeTable]] = field(default_factory=list)
    requests: list[tuple[Path, RequestLog]] = field(default_factory=list)
    interference: list[tuple[Path, InterferenceTable]] = field(default_factory=list)
    latency: list[tuple[Path, LatencyTable]] = field(default_factory=list)
    rules: list[tuple[Path, RuleSet]] = field(default_factory=list)
    plans: list[tuple[Path, SwitchingPlan]] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    unused: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def drawable(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self) if each.name not in ("artifacts", "unused"))


def collect(paths: Iterable[Path]) -> Collected:
    """Read every table, rule set, plan and artifact among ``paths``; folders are searched two levels deep.

    A file that is named must be something known; in a folder others are passed over. Damage is an error either way:
    raises ``TableError``, ``ArtifactError`` or ``InputError``, the last also when nothing is there to draw.
    """
    found = Collected()
    seen: set[Path] = set()
    given = list(paths)
    for path in given:
        if not path.is_dir():
            require_regular(path, missing="no such file or folder")
        for candidate in _candidates(path):
            if candidate.resolve() in seen:
                continue
            seen.add(candidate.resolve())
            if not _take(candidate, found) and candidate == path:
                raise InputError(
                    f"{path}: neither a table, a rule set, a plan nor an artifact that a report could draw"
                )
    if not found.drawable:
        where = ", ".join(map(str, given))
        raise InputError(
            f"{where}: nothing to draw; a report needs latency or outcome tables, request logs, rule sets, "
            "switching plans or a trained predictor"
        )
    return found


def _candidates(path: Path, depth: int = 1) -> Iterator[Path]:
    """``path`` itself when it is a file or an artifact, else what is in it, artifacts and files of ``depth`` levels."""
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


def _take(path: Path, found: Collected) -> bool:
    """Whether ``path`` was recognised."""
    if path.is_dir():
        _take_artifact(open_artifact(path), found)
        return True
    if path.suffix == ".json":
        return _take_json(path, found)
    if path.suffix not in (".parquet", ".csv"):
        return False
    schema = schema_name(path) if path.suffix == ".parquet" else _csv_schema(path)
    return _take_table(path, schema, found)


def _take_artifact(artifact: Artifact, found: Collected) -> None:
    found.artifacts.append(artifact)
    if artifact.kind == "predictor" and PREDICTIONS_FILE in artifact.manifest["files"]:
        found.predictions.append((artifact.path, PredictionsTable.load(artifact.file(PREDICTIONS_FILE))))
    elif artifact.kind == study.KIND:
        found.studies.append((artifact.path, study.StudyTable.load(artifact.file(study.PREDICTIONS))))


def _take_table(path: Path, schema: str | None, found: Collected) -> bool:
    if schema == OUTCOME_SCHEMA.name:
        found.outcomes.append((path, OutcomeTable.load(path)))
    elif schema == REQUESTS_SCHEMA.name:
        log = RequestLog.load(path)
        if log.answered.any():
            found.requests.append((path, log))
        else:
            found.unused.append((path, "request log without a single answer"))
    elif schema == INTERFERENCE_SCHEMA.name:
        found.interference.append((path, InterferenceTable.load(path)))
    elif schema == LATENCY_SCHEMA.name:
        table = LatencyTable.load(path)
        if (table.rows["status"] == "ok").any():
            found.latency.append((path, table))
        else:
            found.unused.append((path, "latency table without a single sample"))
    elif schema == PREDICTIONS_SCHEMA.name:
        found.predictions.append((path, PredictionsTable.load(path)))
    elif schema is not None:
        found.unused.append((path, f"{schema} table"))
    return schema is not None


def _csv_schema(path: Path) -> str | None:
    """The schema whose required columns a CSV file has, the most demanding first; None for any other CSV."""
    with path.open(errors="replace") as file:
        columns = {name.strip().strip('"') for name in file.readline().split(",")}
    known: tuple[Schema, ...] = (REQUESTS_SCHEMA, PREDICTIONS_SCHEMA, OUTCOME_SCHEMA, LATENCY_SCHEMA)
    fitting = [schema for schema in known if {c.name for c in schema.columns if c.required} <= columns]
    return fitting[0].name if fitting else None


def _take_json(path: Path, found: Collected) -> bool:
    try:
        document: Any = strict_json.read(path)
    except OSError as error:
        raise InputError(f"{path}: not a JSON file") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == RULES_SCHEMA:
        found.rules.append((path, RuleSet.load(path)))
    elif schema == PLAN_SCHEMA:
        found.plans.append((path, SwitchingPlan.load(path)))
    return schema in (RULES_SCHEMA, PLAN_SCHEMA)
