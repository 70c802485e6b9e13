"""Pages of the reproduced papers, from what ``make reproduce`` left in ``benchmarks/results/papers/``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.reproduction import Paper
from benchmarks.reproduction.page import page
from benchmarks.reproduction.papers import PAPERS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "papers"
FOLDER = "results/papers"
PICTURES = Path(__file__).parents[1] / FOLDER


def record(made: Path, folder: Path = RESULTS, pictures: Path = PICTURES) -> None:
    """Copy the results of ``make reproduce``, pictures beside their pages in 64 colours: a third of the bytes."""
    from PIL import Image

    for place in (folder, pictures):
        place.mkdir(parents=True, exist_ok=True)
    for file in sorted(made.glob("*.json")):
        (folder / file.name).write_bytes(file.read_bytes())
    for file in sorted(made.glob("*.png")):
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(64).save(pictures / file.name, optimize=True)


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """Return pages by path in ``docs/``; for a paper without a record, the command that makes one."""
    return {f"{FOLDER}/{paper.name}.md": _page(paper, folder / f"{paper.name}.json") for paper in PAPERS.values()}


def _page(paper: Paper, file: Path) -> str:
    if file.is_file():
        # Reasons name present commands; a record has those of its version.
        missing = [{"number": number, "why": why} for number, why in paper.missing]
        return page({**json.loads(file.read_text()), "missing": missing})
    return f"# {paper.title}\n\n{paper.cited}\n\n*Not recorded yet:* `make reproduce` writes its figures.\n"


if __name__ == "__main__":
    record(Path(sys.argv[1]))
