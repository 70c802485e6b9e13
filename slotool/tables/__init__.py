"""The two tables in the middle, and the operating points they are keyed by."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotool.tables.latency import LATENCY_SCHEMA, LatencyTable
    from slotool.tables.outcomes import OUTCOME_SCHEMA, OutcomeTable
    from slotool.tables.points import FULL, OperatingPoint
    from slotool.tables.schema import Column, Constraint, Schema, schema_name
    from slotool.tables.table import Table

__all__ = [
    "FULL",
    "LATENCY_SCHEMA",
    "OUTCOME_SCHEMA",
    "Column",
    "Constraint",
    "LatencyTable",
    "OperatingPoint",
    "OutcomeTable",
    "Schema",
    "Table",
    "schema_name",
]

# Where each is, imported when asked for: processes that measure or compute need points and statistics, and no pandas.
_MODULES = {
    "FULL": "points",
    "LATENCY_SCHEMA": "latency",
    "OUTCOME_SCHEMA": "outcomes",
    "Column": "schema",
    "Constraint": "schema",
    "LatencyTable": "latency",
    "OperatingPoint": "points",
    "OutcomeTable": "outcomes",
    "Schema": "schema",
    "Table": "table",
    "schema_name": "schema",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'slotool.tables' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"slotool.tables.{_MODULES[name]}"), name)
    return value
