"""Schemas of the tables that slotool reads and writes, from their declarations."""

from __future__ import annotations

from slotool.predictors.scoring import PREDICTIONS_SCHEMA
from slotool.simulation.query_log import QUERIES_SCHEMA
from slotool.tables import LATENCY_SCHEMA, OUTCOME_SCHEMA, Column, Schema
from slotool.workloads.arrivals.recorded import ARRIVALS_SCHEMA
from slotool.workloads.requests import REQUESTS_SCHEMA

# What each is for, in the order in which one meets them.
TABLES = (
    (LATENCY_SCHEMA, "How long a network or an operating point took; every raw sample is kept. "
     "`profile`, `family` and `predict` write it."),
    (OUTCOME_SCHEMA, "What each version answered for each example. `evaluate`, `family` and `import-outcomes` "
     "write it; `gen-rules` reads it."),
    (PREDICTIONS_SCHEMA, "Predicted beside measured latencies of networks."),
    (ARRIVALS_SCHEMA, "When requests arrive. `generate arrivals` writes it; `simulate` and `loadtest` read it."),
    (REQUESTS_SCHEMA, "One row per request of a load test. `loadtest` writes it."),
    (QUERIES_SCHEMA, "One row per policy and query of a simulation. `simulate --log` writes it."),
)  # fmt: skip

_INTRODUCTION = """# Tables

Tables are Parquet with the schema's name and version in the metadata key `slotool`, or CSV of the same columns. In CSV
the values of a list stand in one cell with `;` between them. A column without a default is required. Those of
"measured tables" are written only by measurements. Columns that are not listed are kept and play no part. Errors name
the file, the row and the column.
"""


def page() -> str:
    """Return the page: a section per schema with its columns."""
    return "\n".join([_INTRODUCTION, *(_section(schema, purpose) for schema, purpose in TABLES)])


def _section(schema: Schema, purpose: str) -> str:
    lines = [f"## {schema.name}", "", f"Version {schema.version}. {purpose}", ""]
    lines += ["| column | kind | default | meaning |", "|---|---|---|---|", *map(_row, schema.columns)]
    return "\n".join([*lines, ""])


def _row(column: Column) -> str:
    default = "required" if column.required else "may be missing" if column.default is None else f"`{column.default!r}`"
    default = "measured tables" if column.measured else default
    meaning = column.meaning + (f"; {column.rule.text}" if column.rule else "")
    name = f"`{column.name}`" + (f" (or `{column.alias}`)" if column.alias else "")
    return f"| {name} | {column.kind} | {default} | {meaning.replace('|', chr(92) + '|')} |"
