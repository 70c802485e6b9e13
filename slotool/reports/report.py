"""A report on disk: one HTML file, and next to it a folder with the same plots as PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slotool.atomic import whole_file, whole_folder
from slotool.errors import AlreadyExistsError
from slotool.reports.collect import Collected
from slotool.reports.figure import Figure
from slotool.reports.figures import figures_of
from slotool.reports.origins import origins


def write_report(
    found: Collected, out: Path, *, title: str, force: bool = False, progress: Callable[[], None] = lambda: None
) -> list[Figure]:
    """Write ``out`` and ``plots_folder(out)``; ``progress`` is called per plot. Returns what was drawn.

    Everything is drawn before anything is put in place, the page last. Raises ``AlreadyExistsError`` when either is
    there and ``force`` is not set, or the folder holds anything but plots; ``InputError`` for data without a plot.
    """
    from slotool.reports.page import page
    from slotool.reports.plots import save_plots

    refuse_report(out, force)
    figures = figures_of(found)
    folder = plots_folder(out)
    with whole_file(out) as partial, whole_folder(folder) as drawn:
        save_plots(figures, drawn, progress)
        partial.write_text(page(title, figures, origins(found)), encoding="utf-8")
    return figures


def plots_folder(out: Path) -> Path:
    """``report_plots`` for ``report.html``."""
    return out.with_name(f"{out.stem}_plots")


def refuse_report(out: Path, force: bool) -> None:
    """Raises ``AlreadyExistsError`` unless ``write_report`` may write to ``out``."""
    folder = plots_folder(out)
    if out.is_dir():
        raise AlreadyExistsError(f"{out} is a folder; name the HTML file to write")
    for path in (out, folder):
        if path.exists() and not force:
            raise AlreadyExistsError(f"{path} exists already")
    if folder.exists() and not (folder.is_dir() and all(child.suffix == ".png" for child in folder.iterdir())):
        raise AlreadyExistsError(f"{folder} holds more than a report's plots; choose another name")
