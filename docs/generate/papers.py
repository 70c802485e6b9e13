"""Pages of the reproduced papers, from what ``slotool reproduce`` left in ``benchmarks/results/papers/``."""

from __future__ import annotations

import json
from pathlib import Path

from slotool.reproduction import Paper
from slotool.reproduction.page import page
from slotool.reproduction.papers import PAPERS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "papers"
FOLDER = "results/papers"


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """Markdown by the page's place in the site; of a paper that is not recorded, how that is done."""
    return {f"{FOLDER}/{paper.name}.md": _page(paper, folder / f"{paper.name}.json") for paper in PAPERS.values()}


def _page(paper: Paper, file: Path) -> str:
    if file.is_file():
        return page(json.loads(file.read_text()))
    return f"# {paper.title}\n\n{paper.cited}\n\n*Not recorded yet:* `make reproduce` writes its figures.\n"


def plots(folder: Path = RESULTS) -> dict[str, Path]:
    """Picture files by their place in the site."""
    return {f"{FOLDER}/{file.name}": file for file in sorted(folder.glob("*.png"))}
