"""``slotool.import_outcomes``: outcome tables from answers that other tools recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Column, Part, records_table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least, column_names
from slotool.errors import ArgumentError
from slotool.printable import counted
from slotool.sources import FilePath, as_list

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable


@command_line(
    required=("out",),
    values={"columns": column_names},
    metavars={"columns": "KEY=COLUMN,…"},
    panels={
        "Columns": ("columns", "versions", "pattern", "keep"),
        "Cost and meaning of answers": ("prices", "abstain", "missing_error"),
    },
)
@writes("out")
def import_outcomes(
    answers: FilePath,
    out: FilePath | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    versions: str | Sequence[str] = (),
    pattern: str = "{version}_{column}",
    prices: FilePath | Mapping[str, float] | None = None,
    abstain: str | Sequence[str] = (),
    missing_error: Annotated[float, at_least(0)] = 1.0,
    keep: str | Sequence[str] = (),
    force: bool = False,
) -> ImportedOutcomes:
    """Make an outcome table from answers of any services.

    Columns: example, version, error (or answer and truth), confidence, and optionally latency_s and cost. A missing
    answer (neither error nor answer) has ``missing_error`` and the lowest confidence.

    Example: slotool import-outcomes answers.csv --columns version=service,truth=label --prices prices.toml -o o.parquet

    Args:
        answers: CSV (also .csv.gz) or Parquet: a row per answer, or with ``versions`` a row per example.
        out: File for the outcome table (Parquet).
        columns: Names in the file of example, version, error, confidence, latency_s, cost, answer and truth.
        versions: Services whose answers are in the columns of one row.
        pattern: Names of these columns.
        prices: Price list: TOML, or CSV version,price[,per calls]. In Python also prices of a call by version.
        abstain: Answers that count as missing, such as unknown.
        missing_error: Error of a missing answer.
        keep: Further columns to keep: numbers, or text such as a language, that are known before any call.

    Returns:
        ``outcomes``, the table; ``frame()`` has a row per version.

    Raises:
        TableError: The table or the prices cannot be used; names file, row and column.
        ArgumentError: ``columns`` has another key, or ``missing_error`` is negative.
    """
    from slotool.tables.importing import KEYS, AnswerLayout, prices_of
    from slotool.tables.importing import import_outcomes as read

    names = dict(columns or {})
    if unknown := [name for name in names if name not in KEYS]:
        raise ArgumentError("columns", f"{unknown[0]!r} is no column of outcomes; expected {', '.join(KEYS)}")
    if not 0 <= missing_error < float("inf"):
        raise ArgumentError("missing_error", f"{missing_error:g} is no error; expected a number from 0 up")
    by_call, currency = prices_of(prices)
    listed = [as_list(value) if value else [] for value in (versions, abstain, keep)]
    layout = AnswerLayout(names, listed[0], pattern, listed[1], missing_error, listed[2])
    table = read(Path(answers), layout, by_call or None)
    if currency:
        table.provenance["currency"] = currency
    if out is not None:
        table.save(Path(out))
    return ImportedOutcomes(table, None if out is None else Path(out))


@result
class ImportedOutcomes(Result):
    """Imported table ``outcomes``."""

    outcomes: OutcomeTable = unlisted()
    out: Path | None = output(default=None)

    schema = "import-outcomes"
    rows_key = "versions"

    @property
    def missing(self) -> int:
        """Number of missing answers."""
        return int(self.outcomes.provenance["missing_answers"])

    def findings(self) -> dict[str, Any]:
        return {
            "examples": len(self.outcomes.examples),
            "missing_answers": self.missing,
            "currency": self.outcomes.provenance.get("currency", ""),
            "answers_known": self.outcomes.knows_answers,
            "features": self.outcomes.features,
            **super().findings(),
        }

    def records(self) -> list[dict[str, Any]]:
        means = self.outcomes.rows.groupby("version", sort=False)[["error", "confidence", "latency_s", "cost"]].mean()
        return [{str(key): value for key, value in row.items()} for row in means.reset_index().to_dict("records")]

    def shown(self) -> list[Part]:
        currency = self.outcomes.provenance.get("currency", "")
        columns = (
            *(Column("version"), Column("error", form=".4f"), Column("confidence", form=".3f")),
            *(Column("latency_s", "seconds"), Column("cost", f"cost ({currency})" if currency else "cost")),
        )
        title = f"{counted(len(self.outcomes.examples), 'example')}, {counted(self.missing, 'answer')} missing"
        return [records_table(title, self.records(), columns)]

    @property
    def notes(self) -> list[str]:
        if self.outcomes.matrix("latency_s").any():
            return []
        if not self.outcomes.matrix("cost").any():
            return ["no answer has seconds or a cost, so that rules have nothing to save; name --prices or columns"]
        return ["no answer has seconds, so that rules can only be made with --objective cost"]
