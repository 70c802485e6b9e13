"""Makes the figures of a paper, keeps each as it is found, and writes the paper's page and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.reproduction.page import page
from benchmarks.reproduction.paper import Figure, Paper
from benchmarks.reproduction.workspace import NotHere, Scale, Workspace
from slotool import __version__
from slotool.atomic import alone, whole_file
from slotool.errors import InputError, RunError
from slotool.machine import machine_facts, machine_id
from slotool.timing.interference import QUIET_CORES, state

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Reproduced:
    """``document``: all that is known of the paper's figures, as in ``json_file``; ``page_file``: the same to read;
    ``failed``: by number, why a command of a figure failed."""

    document: Document
    page_file: Path
    json_file: Path
    failed: Mapping[str, str]


def reproduced(
    paper: Paper,
    figures: Sequence[Figure],
    out: Path,
    *,
    scale: Scale = "small",
    data: Path | None = None,
    seed: int = 0,
    again: bool = False,
    note: Callable[[str], None] = lambda text: None,
    finished: Callable[[Figure], None] = lambda figure: None,
) -> Reproduced:
    """Make ``figures`` of ``paper`` in the folder ``out``, and write ``out/PAPER.md`` and ``.json`` after each.

    A figure that ``out`` holds already is not made again, and no command whose document and outputs are still there.
    Figures made earlier stay on the page.

    ``again``: make them again, by commands that run again, and drop figures of another scale or seed.

    A figure whose commands fail is left out, and what they measured dropped; the others are made.

    Raises ``InputError`` when ``out`` holds figures of another scale or seed, or another process makes some there.
    """
    out.mkdir(parents=True, exist_ok=True)
    with alone(out / f".{paper.name}.lock"):
        return _reproduced(paper, figures, out, scale, data, seed, again, note, finished)


def _reproduced(
    paper: Paper,
    figures: Sequence[Figure],
    out: Path,
    scale: Scale,
    data: Path | None,
    seed: int,
    again: bool,
    note: Callable[[str], None],
    finished: Callable[[Figure], None],
) -> Reproduced:
    setting = {"scale": scale, "seed": seed, "data": data is not None}
    json_file, page_file = out / f"{paper.name}.json", out / f"{paper.name}.md"
    recorded = _kept(json_file, setting, again)
    workspace = Workspace(out / paper.name, scale, data.absolute() if data else None, seed, note, again=again)
    failed: dict[str, str] = {}
    for figure in figures:
        if again or figure.number not in recorded:
            note(f"{paper.name}, figure {figure.number}: {figure.title}")
            try:
                recorded[figure.number] = _made(figure, workspace, out)
            except RunError as error:
                failed[figure.number] = str(error)
                recorded.pop(figure.number, None)
                workspace.measure_again()
                note(f"{paper.name}, figure {figure.number} failed: {error}")
        document = _document(paper, setting, recorded)
        with whole_file(json_file) as partial:
            partial.write_text(json.dumps(document, indent=1) + "\n")
        with whole_file(page_file) as partial:
            partial.write_text(page(document))
        finished(figure)
    return Reproduced(document, page_file, json_file, failed)


def _kept(json_file: Path, setting: Mapping[str, Any], again: bool) -> dict[str, dict[str, Any]]:
    """Figures that an earlier run made, by number; none of those that lacked data which may be given now."""
    if not json_file.is_file():
        return {}
    kept = json.loads(json_file.read_text())
    if kept["setting"] != setting:
        if again:
            return {}
        words = ", ".join(f"{name} {kept['setting'][name]}" for name in setting)
        raise InputError(f"{json_file} was made with {words}; name another folder by --out, or use --force")
    return {figure["number"]: figure for figure in kept["figures"] if not figure["not_here"]}


def _made(figure: Figure, workspace: Workspace, out: Path) -> dict[str, Any]:
    """The figure's part of the document."""
    from slotool.reports.plots import save_png

    workspace.fresh()
    plot_file = None
    try:
        figure_data = figure.make(workspace)
    except NotHere as error:
        result: dict[str, Any] = {
            "not_here": str(error),
            "says": "",
            "agrees": None,
            "data": "",
            "columns": [],
            "rows": [],
        }
    else:
        result = {"not_here": "", "says": figure_data.says, "agrees": figure_data.agrees, "data": figure_data.data}
        result |= {"columns": list(figure_data.columns), "rows": [list(row) for row in figure_data.rows]}
        if figure_data.plot is not None:
            plot_file = f"{workspace.folder.name}-{figure.number}.png"
            save_png(figure_data.plot, out / plot_file)
    timing = state(all(ran.busy_cores < QUIET_CORES for ran in workspace.ran))
    commands = [asdict(ran) for ran in workspace.ran]
    return {**result, "date": _today(), "plot": plot_file, "commands": commands, "timing": timing}


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _document(paper: Paper, setting: Mapping[str, Any], made: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    facts = machine_facts()
    return {
        "schema": "slotool/reproduction",
        "schema_version": 1,
        "paper": paper.name,
        "title": paper.title,
        "cited": paper.cited,
        "paper_setting": paper.setting,
        "setting": dict(setting),
        "machine": {"id": machine_id(facts), **facts},
        "slotool": __version__,
        "date": _today(),
        "figures": [{**made[figure.number], **_about(figure)} for figure in paper.figures if figure.number in made],
        "not_made": [figure.number for figure in paper.figures if figure.number not in made],
        "missing": [{"number": number, "why": why} for number, why in paper.missing],
    }


def _about(figure: Figure) -> dict[str, str]:
    """What is said of a figure whatever is found."""
    return {
        "number": figure.number,
        "title": figure.title,
        "claim": figure.claim,
        "agrees_if": figure.agrees_if,
        "differs": figure.differs,
    }
