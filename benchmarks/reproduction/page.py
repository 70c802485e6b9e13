"""The page of a paper: its findings and ours side by side, with the commands that made ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slotool.timing.interference import QUIET_CORES, state

_AGREES = {True: "yes", False: "**no**", None: "–"}


def page(document: Mapping[str, Any]) -> str:
    """Markdown of the document that ``python -m benchmarks.reproduction`` writes for one paper."""
    figures = [figure for figure in document["figures"] if not figure["not_here"]]
    elsewhere = [(figure["number"], figure["not_here"]) for figure in document["figures"] if figure["not_here"]]
    elsewhere += [
        (number, f"not made yet: `python -m benchmarks.reproduction {document['paper']}:{number}`")
        for number in document["not_made"]
    ]
    elsewhere += [(row["number"], row["why"]) for row in document["missing"]]
    parts = [_head(document), _summary(figures), *map(_section, figures)]
    if elsewhere:
        parts += ["## Not reproduced\n", _table(("figure", "why"), elsewhere)]
    return "\n".join(parts)


def name_of(number: str) -> str:
    """``Figure 8``, ``Table 1``."""
    return f"Table {number.removeprefix('table')}" if number.startswith("table") else f"Figure {number}"


def _head(document: Mapping[str, Any]) -> str:
    machine, setting = document["machine"], document["setting"]
    cores = machine.get("cores_given")
    data = " (`$DATA`: your folder of data sets)" if setting["data"] else ""
    return (
        f"# {document['title']}\n\n{document['cited']}\n\n"
        f"- **The paper measured on** {document['paper_setting']}.\n"
        f"- **Here**: {machine.get('cpu')}, {cores} cores, scale `{setting['scale']}`, seed {setting['seed']}, slotool "
        f"{document['slotool']}, {document['date']}.\n"
        f"- **Command**: `python -m benchmarks.reproduction {document['paper']} --scale {setting['scale']}"
        f"{' --data $DATA' if setting['data'] else ''}`{data} makes all figures, {document['paper']}:NUMBER one. The "
        f"commands below ran, in that version, in the folder `{document['paper']}`; by hand, run them in order in an "
        "empty one. "
        "`models/` and `datasets/` are slotool's own. Commands, options and predictors that have left since are in "
        "`benchmarks/LOG.md`, with dates.\n"
    )


def _summary(figures: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (f"[{name_of(f['number'])}](#{_anchor(f)})", f["claim"], f["says"], _AGREES[f["agrees"]], f["agrees_if"] or "–")
        for f in figures
    ]
    return "## Summary\n\n" + _table(("figure", "the paper", "here", "agrees", "if"), rows)


def _section(figure: Mapping[str, Any]) -> str:
    parts = [f"## {_heading(figure)}\n", f"**The paper**: {figure['claim']}\n", f"**Here**: {figure['says']}\n"]
    if figure["agrees"] is not None:
        parts.append(f"Agrees: {_AGREES[figure['agrees']]} (criterion: {figure['agrees_if']}).\n")
    if figure["plot"]:
        parts.append(f"![{figure['title']}]({figure['plot']})\n")
    made = f" Made on {figure['date']}." if figure.get("date") else ""
    parts += [_table(figure["columns"], figure["rows"]), f"Data: {figure['data']}.{made}\n"]
    parts.append(f"**Why the numbers differ**: {figure['differs']}\n")
    parts.append(_commands(figure["commands"]))
    return "\n".join(parts)


def _commands(commands: Sequence[Mapping[str, Any]]) -> str:
    seconds = sum(command["seconds"] for command in commands)
    busy = sum(command["seconds"] * command["busy_cores"] for command in commands) / max(seconds, 1e-9)
    quiet = busy < QUIET_CORES
    shared = f" Timing: {state(quiet)}" + ("." if quiet else f"; other processes kept {busy:.1f} cores busy.")
    if not commands:
        return "Computed from these data, without a command.\n"
    lines = "\n".join(f"$ {command['command']}" for command in commands)
    return f"Commands ({seconds:.0f} s in all; figures share some).{shared}\n\n```console\n{lines}\n```\n"


def _heading(figure: Mapping[str, Any]) -> str:
    return f"{name_of(figure['number'])}: {figure['title']}"


def _anchor(figure: Mapping[str, Any]) -> str:
    """As Markdown's table of contents makes it of the heading."""
    kept = "".join(c for c in _heading(figure).lower() if c.isalnum() or c in " -_")
    return "-".join(kept.split())


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
