"""The two tables in the middle, and the operating points they are keyed by."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

# Imported when asked for: processes that measure or compute need points and statistics, and no pandas.
if TYPE_CHECKING:
    from slotool.tables.latency import LATENCY_SCHEMA, LatencyTable
    from slotool.tables.outcomes import OUTCOME_SCHEMA, OutcomeTable
    from slotool.tables.points import FULL, OperatingPoint
    from slotool.tables.schema import Column, Constraint, Schema, Table, schema_name

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

__getattr__ = names_on_demand(__name__)
