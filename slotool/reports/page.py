"""Page of the plots as pictures, self-contained: it runs no code, and a content policy forbids requests."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence

from slotool.printable import printable
from slotool.reports.figure import Figure, Rows

CSS = """
:root { color-scheme: light dark; --paper: #fff; --ground: #f4f6f8; --ink: #1c2530; --soft: #4a5561; --line: #d9dee5;
  --link: #0b5fa5; }
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 20px; } h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 6px; }
section, main > .wide {
  background-color: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 20px 24px;
  margin: 0 0 24px;
}
section > .wide { margin-top: 14px; } img { display: block; max-width: 100%; height: auto; }
/* What goes on beyond an edge has a shadow there. */
.wide {
  overflow-x: auto; background: linear-gradient(90deg, var(--paper) 40%, #fff0) 0 0 / 40px 100% no-repeat local,
  linear-gradient(270deg, var(--paper) 40%, #fff0) 100% 0 / 40px 100% no-repeat local,
  linear-gradient(90deg, #0003, #0000) 0 0 / 14px 100% no-repeat,
  linear-gradient(270deg, #0003, #0000) 100% 0 / 14px 100% no-repeat var(--paper);
}
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 16px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr > :last-child { padding-right: 0; } tbody tr:last-child > * { border-bottom: none; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
th.number, td.number { text-align: right; white-space: nowrap; } td { overflow-wrap: break-word; }
.summary th { font-weight: 400; } .summary td { text-align: right; font-weight: 600; }
.source { margin: 10px 0 0 !important; font-size: 0.82rem; color: var(--soft); overflow-wrap: anywhere; }
a { color: var(--link); text-decoration: none; }
@media (prefers-color-scheme: dark) { :root { --paper: #1b2129; --ground: #12161b; --ink: #e4e9ee; --soft: #a8b3be;
  --line: #36404b; --link: #7ab8f0; } }
@media (max-width: 600px) {
  main { padding: 20px 10px 40px; } h1 { font-size: 1.5rem; }
  section, main > .wide { padding: 14px 12px; }
  section img { width: 640px; max-width: none; }
}
@media print { section, main > .wide { break-inside: avoid; border: none; padding: 0; } }
"""


def page(
    title: str, figures: Sequence[Figure], pictures: Mapping[str, bytes], facts: Sequence[tuple[str, Rows]]
) -> str:
    """Return the HTML document: summary, a section per figure, then tables.

    Args:
        title: Heading of the page.
        figures: Plots, in order.
        pictures: PNG file of each figure, by its id.
        facts: Titles and rows of the tables behind the plots.
    """
    headlines = [(what, value, figure.id) for figure in figures for what, value in figure.headlines]
    sections = "\n".join(_section(figure, pictures[figure.id]) for figure in figures)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{_summary(headlines)}
{sections}
{_facts(facts)}
</main>
</body>
</html>
"""


def _section(figure: Figure, picture: bytes) -> str:
    data = base64.b64encode(picture).decode()
    return f"""<section id="{escape(figure.id)}">
<h2>{escape(figure.title)}</h2>
<div class="wide"><img alt="{escape(figure.caption)}" src="data:image/png;base64,{data}"></div>
{_table(figure.table)}
<p class="source">from {escape(figure.source)}</p>
</section>"""


def _summary(headlines: Iterable[tuple[str, str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row"><a href="#{escape(anchor)}">{escape(what)}</a></th><td>{escape(value)}</td></tr>'
        for what, value, anchor in headlines
    )
    return f'<div class="wide"><table class="summary">{rows}</table></div>' if rows else ""


def _facts(facts: Sequence[tuple[str, Rows]]) -> str:
    return "\n".join(f"<section><h2>{escape(title)}</h2>{_table(rows)}</section>" for title, rows in facts if rows.rows)


def _table(table: Rows) -> str:
    if not table.rows:
        return ""
    numeric = [all(row[i][:1] in "0123456789±–-+" for row in table.rows) for i in range(len(table.columns))]
    head = "".join(_cell("th", name, number) for name, number in zip(table.columns, numeric, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", text, number) for text, number in zip(row, numeric, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(tag: str, text: str, number: bool) -> str:
    return f'<{tag} class="number">{escape(text)}</{tag}>' if number else f"<{tag}>{escape(text)}</{tag}>"


def escape(text: str) -> str:
    """Return ``text`` for HTML, with invisible and direction-changing characters as codes."""
    return html.escape(printable(text))
