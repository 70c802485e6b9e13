"""The two tables in the middle, and the operating points they are keyed by."""

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
