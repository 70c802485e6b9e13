"""``slotool.report``: one self-contained page, and the same plots as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part
from slotool.commands.outputs import writes
from slotool.commands.result import Result, listed, result, unlisted
from slotool.errors import ArgumentError
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, paths_of

if TYPE_CHECKING:
    from slotool.reports.figure import Figure

PAGES = (".html", ".htm")
MAX_NOT_DRAWN = 5


@writes("out")
def report(
    paths: FilePath | Sequence[FilePath],
    out: FilePath = "report.html",
    *,
    title: str = "slotool report",
    force: bool = False,
    progress: Reporting = "auto",
) -> Report:
    """Plot tables, rules and plans on one page.

    Plots are of measured and predicted latency, accuracy against k and latency, tolerance tiers, switching plans,
    served latency, and slow-down by co-runners. The page is one self-contained file that works offline; the same plots
    are PNG files in a folder next to it.

    Example: slotool report . -o report.html

    Example: slotool report requests.parquet outcomes.parquet -o load.html --title "Load test"

    Args:
        paths: Tables, rules, plans, artifacts, and folders of them.
        out: Page to write, an .html file.
        title: The page's heading.
        force: Replace ``out`` and its folder if they exist.

    Returns:
        ``figures``, the data of the plots; ``frame()`` has a row per plot.

    Raises:
        ArgumentError: ``out`` is no name of an .html file.
        InputError: A path cannot be drawn, or there is nothing to draw.
        TableError: A table that ``paths`` names is damaged; damaged files in folders are skipped.
        ArtifactError: An artifact that ``paths`` names is damaged.
        MissingPackageError: matplotlib is not installed.
    """
    from slotool.extras import require
    from slotool.reports import collect, write_report
    from slotool.reports.report import refuse_report

    require("matplotlib", needed_by="a report")
    page = Path(out)
    if page.suffix not in PAGES:
        raise ArgumentError("out", f"{page}: a report is a page; give a name that ends in {' or '.join(PAGES)}")
    refuse_report(page, force)
    reporter = reporter_of(progress)
    files = collect(paths_of(paths), reporter.warn)
    with reporter.progress("drawing") as steps:
        figures = write_report(files, page, title=title, force=force, progress=steps.advance)
    return Report(page, page.stat().st_size, tuple(figures), tuple(files.unused))


@result
class Report(Result):
    """Page ``out`` of ``size_bytes`` with its ``figures``; ``not_drawn``: paths without a plot, and what they are."""

    out: Path = listed("report")
    size_bytes: int = listed("bytes")
    figures: tuple[Figure, ...] = unlisted()
    not_drawn: tuple[tuple[Path, str], ...] = unlisted()

    schema = "report"
    rows_key = "plots"
    title = "Drawn"
    columns = (Column("title", "plot"), Column("source", "from"))

    @property
    def folder(self) -> Path:
        """Folder of the plots as PNG."""
        from slotool.reports.report import plots_folder

        return plots_folder(self.out)

    def findings(self) -> dict[str, Any]:
        return {
            **super().findings(),
            "figures": {name: value for figure in self.figures for name, value in figure.headlines},
            "not_drawn": {str(path): name for path, name in self.not_drawn},
        }

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "id": figure.id,
                "title": figure.title,
                "png": str(self.folder / f"{figure.id}.png"),
                "source": figure.source,
                "caption": figure.caption,
            }
            for figure in self.figures
        ]

    def shown(self) -> list[Part]:
        page = f"wrote {self.out} ({self.size_bytes / 1e6:.1f} MB, works offline)"
        return [self.table(), f"{page} and {len(self.figures)} PNG in {self.folder}"]

    @property
    def notes(self) -> list[str]:
        if not self.not_drawn:
            return []
        named = [f"{path} ({what})" for path, what in self.not_drawn[:MAX_NOT_DRAWN]]
        more = len(self.not_drawn) - len(named)
        return ["not drawn: " + ", ".join(named) + (f", and {more} more (--json names all)" if more else "")]
