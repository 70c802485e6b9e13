"""What every paper's file says: figures with claims, criteria and reasons."""

from __future__ import annotations

import pytest

from benchmarks.reproduction import Figure
from benchmarks.reproduction.papers import PAPERS
from benchmarks.reproduction.reproduce import reproduce

FIGURES = [(name, figure) for name, paper in PAPERS.items() for figure in paper.figures]


@pytest.mark.parametrize(("name", "figure"), FIGURES, ids=lambda part: getattr(part, "number", part))
def test_a_figure_says_what_it_is_compared_by(name: str, figure: Figure) -> None:
    assert figure.title
    assert figure.claim
    assert figure.differs
    assert figure.agrees_if or figure.number == "table1"  # which no machine decides


@pytest.mark.parametrize(("name", "figure"), FIGURES, ids=lambda part: getattr(part, "number", part))
def test_the_summary_links_to_the_figure(name: str, figure: Figure) -> None:
    # As Python-Markdown and GitHub alike make an anchor of a heading: of ASCII both keep the same.
    assert f"{figure.number} {figure.title}".isascii()


@pytest.mark.parametrize("name", list(PAPERS))
def test_numbers_are_unique_and_what_is_missing_has_a_reason(name: str) -> None:
    paper = PAPERS[name]
    numbers = [figure.number for figure in paper.figures]
    assert len(numbers) == len({*numbers})
    assert paper.name == name
    assert paper.setting
    assert all(why for _, why in paper.missing)
    assert paper.missing


def test_all_figures_are_listed_without_being_made() -> None:
    listed = reproduce()
    assert [(row["paper"], row["figure"]) for row in listed.document["figures"]] == [
        (name, figure.number) for name, figure in FIGURES
    ]
    assert listed.document["pages"] == []
