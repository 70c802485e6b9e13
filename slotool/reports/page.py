"""One self-contained page: plotly's JavaScript is inside, and a content policy forbids every request to outside.

JavaScript and the plots' data are packed, and unpacked by the browser: they would be nine tenths of the page.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotool.printable import printable
from slotool.reports.axes import label_is_left
from slotool.reports.figure import ALARM, FAINT, INK, Axis, Band, Curve, Figure, Limit, Rows

# plotly.js-basic-dist-min 4.1.1 as npm has it: a quarter of the size of all of plotly. Its licence lies beside it.
PLOTLY = Path(__file__).with_name("plotly-basic.min.js")
# plotly offers to upload a chart to its makers; a report of somebody's own measurements must not.
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
_MODES = {
    "line": "lines",
    "dashes": "lines",
    "steps": "lines",
    "dots": "markers",
    "dots and line": "lines+markers",
    "dots and steps": "lines+markers",
}


CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body {
  margin: 0; background: #f4f6f8; color: #1c2530; line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 20px; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 6px; }
section, main > .wide {
  background: #fff; border: 1px solid #d9dee5; border-radius: 8px; padding: 20px 24px; margin: 0 0 24px;
}
section > p { margin: 0 0 12px; max-width: 72ch; }
.plot { width: 100%; height: 440px; }
.plot.square { height: min(640px, 100vw); max-width: 700px; }
.wide { overflow-x: auto; }
section > .wide { margin-top: 14px; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 16px 5px 0; border-bottom: 1px solid #e8ecf0; vertical-align: top; }
tr > :last-child { padding-right: 0; }
tbody tr:last-child > * { border-bottom: none; }
thead th { color: #4a5561; font-weight: 600; white-space: nowrap; border-bottom: 1px solid #b9c2cc; }
th.number, td.number { text-align: right; white-space: nowrap; }
td { overflow-wrap: break-word; }
.summary th { font-weight: 400; }
.summary td { text-align: right; font-weight: 600; }
.source { margin: 10px 0 0 !important; font-size: 0.82rem; color: #5c6670; overflow-wrap: anywhere; }
a { color: #0b5fa5; text-decoration: none; }
a:hover { text-decoration: underline; }
@media (max-width: 600px) {
  main { padding: 20px 10px 40px; }
  h1 { font-size: 1.5rem; }
  section, main > .wide { padding: 14px 12px; }
  .plot { height: 360px; }
  .plot.square { height: 96vw; }
}
@media print {
  body { background: #fff; }
  section, main > .wide { break-inside: avoid; border: none; padding: 0; }
}
"""


def page(title: str, figures: Sequence[Figure], facts: Sequence[tuple[str, Rows]]) -> str:
    """The HTML document: summary, a section per figure, then the tables of ``facts`` (title and rows each)."""
    headlines = [(what, value, figure.id) for figure in figures for what, value in figure.headlines]
    sections = "\n".join(_section(figure) for figure in figures)
    plots = json.dumps({figure.id: plotly_figure(figure) for figure in figures}, allow_nan=False)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
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
<!-- plotly.js: Copyright 2012-2026, Plotly, Inc., under the MIT licence. -->
<script id="plotly" type="text/plain">{packed(PLOTLY.read_text(encoding="utf-8"))}</script>
<script id="plots" type="text/plain">{packed(plots)}</script>
<script>{_START}</script>
</body>
</html>
"""


_TOO_OLD = "This plot needs a browser of 2023 or later. It also lies as a picture in the folder beside this page."
# Sections are drawn as they come near, so that a page of many plots opens at once; printing needs them all.
_START = f"""
async function unpacked(id) {{
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}}
let plots = {{}}, drawsAll = false;
const config = {json.dumps(_CONFIG)};
function draw(box) {{
  const plot = plots[box.id];
  if (!plot) return;
  delete plots[box.id];
  if (box.clientWidth < 560) {{
    const title = plot.layout.xaxis.title, lines = title.text.match(/.{{1,40}}(?:\\s|$)/g) || [title.text];
    Object.assign(plot.layout.margin, {{l: 68, r: 20, b: 44 + 15 * lines.length}});
    title.text = lines.join("<br>");
    plot.layout.font.size = title.font.size = plot.layout.yaxis.title.font.size = 12;
  }}
  const bar = box.clientWidth < 560 ? false : "hover";
  Plotly.newPlot(box, plot.data, plot.layout, {{...config, displayModeBar: bar}}).then(() => {{
    untangle(box);
    box.on("plotly_afterplot", () => untangle(box));
  }});
}}
// Texts beside points that have no room, on a phone or after a zoom, are left out: the pointer and the table name them.
function untangle(box) {{
  const all = box.getBoundingClientRect(), axis = all.left + box.layout.margin.l, kept = [];
  for (const text of box.querySelectorAll(".textpoint text")) {{
    const own = text.getBoundingClientRect();
    const fits = own.left >= axis && own.right <= all.right && !kept.some(other =>
      own.left < other.right && other.left < own.right && own.top < other.bottom && other.top < own.bottom);
    text.style.visibility = fits ? "visible" : "hidden";
    if (fits) kept.push(own);
  }}
}}
const boxes = document.querySelectorAll(".plot");
const near = new IntersectionObserver(
  entries => entries.filter(e => e.isIntersecting).forEach(e => draw(e.target)), {{rootMargin: "1200px"}});
async function begin() {{
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  plots = JSON.parse(await unpacked("plots"));
  boxes.forEach(box => drawsAll ? draw(box) : near.observe(box));
}}
begin().catch(() => boxes.forEach(box => {{
  box.textContent = {json.dumps(_TOO_OLD)};
}}));
addEventListener("beforeprint", () => {{
  drawsAll = true;
  boxes.forEach(draw);
}});
"""


def plotly_figure(figure: Figure) -> dict[str, Any]:
    """``figure`` as plotly's data and layout, plain JSON."""
    traces = [trace for band in figure.bands for trace in _band(band)]
    traces += [_curve(curve, figure) for curve in figure.curves]
    layout = {
        "font": {"family": _FONT, "size": 14, "color": INK},
        "margin": {"l": 72, "r": 20, "t": 36, "b": 58},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {"color": INK}},
        "showlegend": sum(trace["showlegend"] for trace in traces) > 1,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "xaxis": _axis(figure.x),
        "yaxis": _axis(figure.y),
        "shapes": [_limit_line(limit) for limit in figure.limits],
        "annotations": [_limit_text(limit, figure.x) for limit in figure.limits],
    }
    return {"data": traces, "layout": layout}


def _curve(curve: Curve, figure: Figure) -> dict[str, Any]:
    dense = len(curve.x) > 60
    labelled = any(curve.labels)
    trace: dict[str, Any] = {
        "type": "scatter",
        "x": _values(curve.x),
        "y": _values(curve.y),
        "name": _plain(curve.name),
        "mode": _MODES[curve.style] + ("+text" if labelled else ""),
        "line": {
            "color": curve.paint,
            "width": 1.5 if curve.style == "dashes" else 8 if curve.wide else 2.4,
            "dash": "dash" if curve.style == "dashes" else "solid",
            "shape": "hv" if "steps" in curve.style else "linear",
        },
        "marker": {
            "color": curve.paint,
            "size": 5 if dense else 15 if curve.wide else 10,
            "opacity": 0.65 if dense else 1.0,
        },
        "opacity": 0.4 if curve.wide else 1.0,
        "showlegend": curve.in_legend,
        "cliponaxis": not labelled,
    }
    if labelled:
        trace["text"] = [_plain(label) for label in curve.labels]
        up = "top" if curve.labels_above else "bottom"
        left = label_is_left(curve.x, curve.labels, figure.x)
        trace["textposition"] = [f"{up} {'left' if is_left else 'right'}" for is_left in left]
        trace["textfont"] = {"size": 12, "color": INK}
    if curve.hover:
        trace["customdata"] = [_plain(text) for text in curve.hover]
        trace["hovertemplate"] = "%{customdata}<extra></extra>"
    if curve.style == "dashes":
        trace["hoverinfo"] = "skip"
    if curve.error is not None:
        trace["error_y"] = {"type": "data", "array": _values(curve.error), "thickness": 1.3, "width": 4}
    return trace


def _values(array: np.ndarray) -> list[float | None]:
    """For plotly, which leaves out what is None; JSON has no word for infinite or undefined. More digits than a screen
    has pixels would make half of the page."""
    return [_rounded(float(value)) if math.isfinite(value) else None for value in array]


def _rounded(value: float) -> float:
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _band(band: Band) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": _values(band.x)}
    fill = {"fill": "tonexty", "fillcolor": FAINT, "name": _plain(band.name), "showlegend": True}
    return [{**edge, "y": _values(band.low), "showlegend": False}, {**edge, "y": _values(band.high), **fill}]


def _limit_line(limit: Limit) -> dict[str, Any]:
    """From the bottom of the plot to its top."""
    line = {"color": ALARM, "width": 2, "dash": "dash"}
    return {"type": "line", "x0": limit.x, "x1": limit.x, "y0": 0, "y1": 1, "yref": "y domain", "line": line}


def _limit_text(limit: Limit, axis: Axis) -> dict[str, Any]:
    return {
        "x": math.log10(limit.x) if axis.log else limit.x,
        "y": 1,
        "yref": "paper",
        "text": _plain(limit.text),
        "textangle": -90,
        "showarrow": False,
        "xanchor": "right",
        "yanchor": "top",
        "font": {"color": ALARM, "size": 13},
    }


def _axis(axis: Axis) -> dict[str, Any]:
    bounds = [math.log10(axis.low), math.log10(axis.high)] if axis.log else [axis.low, axis.high]
    return {
        "title": {"text": _plain(axis.title), "standoff": 10, "font": {"size": 14}},
        "type": "log" if axis.log else "linear",
        "range": bounds,
        "tickmode": "array",
        "tickvals": [value for value, _ in axis.ticks],
        "ticktext": [text for _, text in axis.ticks],
        "tickangle": 0,
        "gridcolor": FAINT,
        "showline": True,
        "linecolor": "#8a94a0",
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "#8a94a0",
    }


def _section(figure: Figure) -> str:
    shape = "plot square" if figure.square else "plot"
    return f"""<section>
<h2>{escape(figure.title)}</h2>
<p>{escape(figure.caption)}</p>
<div id="{escape(figure.id)}" class="{shape}" role="img" aria-label="{escape(figure.caption)}"></div>
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


def escape(text: str, *, quote: bool = True) -> str:
    """``text`` for HTML, what turns writing around or is not shown by its code."""
    return html.escape(printable(text), quote=quote)


def _plain(text: str) -> str:
    """``text`` as plotly shows it and does not take it for markup, of which only line ends are ours."""
    return "<br>".join(escape(line, quote=False) for line in text.split("<br>"))


def packed(text: str) -> str:
    """``text`` as base64 of gzip: a third of plotly's length, and nothing in it can break out of a script element."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
