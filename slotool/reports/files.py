"""Files that slotool writes, recognised by their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from slotool import strict_json
from slotool.predictors.scoring import PredictionsTable
from slotool.rules.ruleset.rules import RULES_SCHEMA, RuleSet
from slotool.rules.switching import PLAN_SCHEMA, SwitchingPlan
from slotool.simulation.query_log import QueryLog
from slotool.tables import LatencyTable, OutcomeTable, Table, schema_name
from slotool.workloads import ArrivalTable
from slotool.workloads.requests import RequestLog

_TABLES: tuple[type[Table], ...] = (QueryLog, RequestLog, PredictionsTable, OutcomeTable, LatencyTable, ArrivalTable)
_DOCUMENTS = {RULES_SCHEMA: RuleSet, PLAN_SCHEMA: SwitchingPlan}


def kind_of(path: Path) -> Any:
    """Return the class that loads a table (.parquet, .csv), rules or a switching plan (.json); None for other files.

    A table without a schema's name is one of the most required columns that it has. Raises ``TableError`` for a
    damaged Parquet file, ``InputError`` for a damaged document.
    """
    if path.suffix == ".json":
        document = strict_json.read(path)
        return _DOCUMENTS.get(str(document.get("schema"))) if isinstance(document, dict) else None
    if path.suffix == ".parquet":
        if (name := schema_name(path)) is not None:
            return next((kind for kind in _TABLES if kind.schema.name == name), None)
        columns = set(pq.read_schema(path).names)
    elif path.suffix == ".csv":
        with path.open(errors="replace") as file:
            columns = {name.strip().strip('"') for name in file.readline().split(",")}
    else:
        return None
    required = {kind: {column.name for column in kind.schema.columns if column.required} for kind in _TABLES}
    return max(
        (kind for kind in _TABLES if required[kind] <= columns), key=lambda kind: len(required[kind]), default=None
    )
