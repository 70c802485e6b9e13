"""Plots of ``gen-rules``: the versions and their requests, and what tiers save beside single versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable


def draw_rules(table: OutcomeTable, rules: RuleSet, alone: RuleSet, folder: Path, name: str) -> list[Path]:
    """Write the plots into ``folder`` and return their paths; ``alone``: the rules of single versions only."""
    from slotool.reports.plots import save_png
    from slotool.reports.series.savings import savings_against_tolerance
    from slotool.reports.series.versions import version_figures

    figures = [*version_figures(name, table), *savings_against_tolerance(name, rules, alone)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.id}.png" for figure in figures]
    for figure, path in zip(figures, paths, strict=True):
        save_png(figure, path)
    return paths
