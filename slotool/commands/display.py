"""Tables for people, in the terminal, as plain text and in notebooks."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotool.printable import number, printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

# Width of text that goes to no terminal, columns.
PLAIN_WIDTH = 120
_NUMBER = re.compile(r"–$|[-−+±<>≤≥]?\s?\d")


@dataclass(frozen=True)
class Table:
    """Table of texts: title, names of columns, and cells by row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numeric(self) -> list[bool]:
        """True for each column of numbers, which is aligned to the right."""
        return [bool(self.rows) and all(_NUMBER.match(row[i]) for row in self.rows) for i in range(len(self.columns))]

    def __rich__(self) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        built = RichTable(title=Text(self.title, style="bold"), title_justify="left", header_style="bold")
        for name, numeric in zip(self.columns, self.numeric, strict=True):
            built.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            built.add_row(*map(Text, row))
        return built

    def html(self) -> str:
        """Return the table as HTML, every text escaped."""
        sides = ["right" if numeric else "left" for numeric in self.numeric]
        head = "".join(_cell("th", text, side) for text, side in zip(self.columns, sides, strict=True))
        lines = ["".join(_cell("td", text, side) for text, side in zip(row, sides, strict=True)) for row in self.rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        caption = f'<caption style="text-align: left"><b>{html.escape(self.title)}</b></caption>'
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


Part = Table | str


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table of any values: floats with four digits, other values by ``str``."""
    texts = (tuple(printable(number(cell) if isinstance(cell, float) else str(cell)) for cell in row) for row in rows)
    return Table(printable(title), tuple(map(printable, columns)), tuple(texts))


@dataclass(frozen=True)
class Column:
    """Column of a table of records.

    Args:
        key: Key of the value in each record.
        heading: Name of the column; None: the key, with spaces.
        form: Format specification, such as ``.4f`` or ``,``, or a function that returns text.
    """

    key: str
    heading: str | None = None
    form: str | Callable[[Any], str] = ""

    def cell(self, record: Mapping[str, Any]) -> str:
        """Return the text of the record's value; – for None and NaN, nothing for a key that the record lacks."""
        value = record.get(self.key, "")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if value == "":
            return ""
        if self.form == "" and isinstance(value, float):
            return number(value)
        return format(value, self.form) if isinstance(self.form, str) else self.form(value)


def records_table(title: str, records: Iterable[Mapping[str, Any]], columns: Iterable[Column]) -> Table:
    """Return a table with a row for each record; a column that no record has is left out."""
    rows = list(records)
    shown = [column for column in columns if any(column.key in row for row in rows)]
    headings = [column.key.replace("_", " ") if column.heading is None else column.heading for column in shown]
    return table(title, headings, [[column.cell(row) for column in shown] for row in rows])


def plain_text(parts: Iterable[Part]) -> str:
    """Return tables and sentences as text without colours, ``PLAIN_WIDTH`` columns wide."""
    from rich.console import Console

    file = io.StringIO()
    # In a notebook rich would display each part by itself.
    console = Console(file=file, width=PLAIN_WIDTH, **CONSOLE, color_system=None, force_jupyter=False)
    for part in parts:
        console.print(printable(part, lines=True) if isinstance(part, str) else part)
    return file.getvalue().rstrip("\n")


def html_text(parts: Iterable[Part]) -> str:
    """Return tables and sentences as HTML, every text escaped."""
    return "\n".join(
        f"<p>{html.escape(printable(part, lines=True))}</p>" if isinstance(part, str) else part.html() for part in parts
    )


# Options of rich: nothing is markup, since names come from files and may be ``[/red]`` or ``:net:``.
CONSOLE: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="text-align: {side}">{html.escape(text)}</{tag}>'
