"""What a paper shows, as data: each figure with the paper's finding, and the function that makes ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.reproduction.workspace import Workspace
    from slotool.reports.figure import Figure as Plot


@dataclass(frozen=True)
class Found:
    """What was found for one figure.

    ``says``: our finding in the words of the paper's, a sentence or two with the numbers. ``agrees``: whether it is the
    paper's finding too; None where the paper makes no claim that another machine could share. ``columns`` and ``rows``:
    the figure's numbers, as a person reads them. ``data``: what they were measured on.
    """

    says: str
    agrees: bool | None
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: str
    plot: Plot | None = None


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, ``number`` as the paper counts (``8``, ``2e``, ``table1``).

    ``claim``: what the paper finds, with its numbers. ``agrees_if``: the criterion by which ours is compared.
    ``differs``: why our numbers cannot be the paper's. ``make``: runs the commands, and finds.
    """

    number: str
    title: str
    claim: str
    agrees_if: str
    differs: str
    make: Callable[[Workspace], Found]


@dataclass(frozen=True)
class Paper:
    """``missing``: figures that are not reproduced, by number, and why."""

    name: str
    title: str
    cited: str
    setting: str
    figures: Sequence[Figure]
    missing: Sequence[tuple[str, str]]

    def figure(self, number: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.number == number), None)
