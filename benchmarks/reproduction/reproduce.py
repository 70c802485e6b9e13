"""Tables and figures of the five papers, made here beside what the papers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result
from slotool.errors import ArgumentError, RunError
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath

if TYPE_CHECKING:
    from benchmarks.reproduction import Figure, Paper

_AGREES = {True: "yes", False: "no", None: "–"}


@writes(folders=("out",), resumes=True)
def reproduce(
    figures: str | Sequence[str] = (),
    out: FilePath = "reproduction",
    *,
    scale: Literal["small", "paper"] = "small",
    data: FilePath | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Reproduction:
    """Make figures of the papers by commands of slotool, and write a page per paper: the paper's finding and ours.

    Interrupted, the same call goes on where it was: figures and commands that ``out`` holds are not made again.

    Args:
        figures: ``"superserve"`` for all of a paper, ``"superserve:8"`` for one, ``"all"`` for all papers; none only
            lists them.
        out: Folder for the pages, plots and artifacts.
        scale: ``"small"`` takes minutes a paper, ``"paper"`` the paper's sizes.
        data: Folder with data sets of the papers by their names, such as fashion-mnist and wiki10, and recorded traces.
        seed: Of all that is drawn and trained.
        force: Make the figures again, and take another scale or seed for ``out``.
        progress: Progress display: "auto", True, None, or a callback.

    Returns:
        ``figures``, a row per figure with the paper's claim and what was found; ``frame()`` has them as a pandas frame.

    Raises:
        ArgumentError: There is no such paper or figure, or ``data`` is no folder.
        InputError: ``out`` holds figures of another scale or seed.
        MissingPackageError: matplotlib, onnx or onnxruntime is not installed.
        RunError: A command failed; the other figures are made, and the same call tries it again.
    """
    from benchmarks.reproduction import reproduced
    from benchmarks.reproduction.papers import PAPERS
    from benchmarks.reproduction.workspace import KNOWN, find
    from slotool.extras import require

    folder = Path(out)
    source = None if data is None else Path(data)
    if source is not None and not source.is_dir():
        raise ArgumentError("data", f"{source} is not a folder of data sets")
    if source is not None and not any(find(source, name) for name in KNOWN):
        raise ArgumentError("data", f"{source} holds nothing that a figure needs; it may hold {', '.join(KNOWN)}")
    wanted = _wanted([figures] if isinstance(figures, str) else figures, PAPERS)
    if not wanted:
        return Reproduction(None, tuple(_known(paper) for paper in PAPERS.values()), ())
    require("matplotlib", "onnx", "onnxruntime", needed_by="make reproduce")
    reporter = reporter_of(progress)
    documents, pages, failed = [], [], dict[str, str]()
    try:
        with reporter.progress("reproducing", total=sum(map(len, wanted.values()))) as steps:
            for name, chosen in wanted.items():
                result = reproduced(
                    PAPERS[name], chosen, folder, scale=scale, data=source, seed=seed, again=force,
                    note=reporter.note, finished=lambda figure: steps.advance(),
                )  # fmt: skip
                documents.append(result.document)
                pages.append(result.page_file)
                failed |= {f"{name}:{number}": reason for number, reason in result.failed.items()}
    except KeyboardInterrupt as interruption:
        goes_on = "the same command without --force" if force else "the same command"
        interruption.add_note(f"what is finished is in {folder}, and {goes_on} goes on with the rest")
        raise
    if failed:
        (figure, reason), others = next(iter(failed.items())), [*failed][1:]
        rest = f"; so did {', '.join(others)}" if others else ""
        raise RunError(f"{figure} failed, and the same command tries again: {reason}{rest}")
    return Reproduction(folder, tuple(documents), tuple(pages))


def _wanted(figures: Sequence[str], papers: Mapping[str, Paper]) -> dict[str, list[Figure]]:
    """Figures by paper, each once and in the paper's order."""
    selected: dict[str, list[Figure]] = {}
    for text in figures:
        if text == "all":
            selected |= {name: list(paper.figures) for name, paper in papers.items()}
            continue
        name, _, number = text.partition(":")
        if name not in papers:
            raise ArgumentError(
                "figures", f"no paper {name!r}; there are {', '.join(papers)}; all stands for all of them"
            )
        paper = papers[name]
        one = paper.figure(number)
        if ":" in text and one is None:
            numbers = ", ".join(figure.number for figure in paper.figures)
            raise ArgumentError("figures", f"no figure {number!r} of {name}; there are {numbers}")
        chosen = {*selected.get(name, ()), *([one] if one else paper.figures)}
        selected[name] = [figure for figure in paper.figures if figure in chosen]
    return selected


def _known(paper: Paper) -> dict[str, Any]:
    """What is said of a paper of which nothing is made."""
    about = [
        {"number": f.number, "title": f.title, "claim": f.claim, "says": "", "agrees": None, "not_here": ""}
        for f in paper.figures
    ]
    missing = [{"number": number, "why": why} for number, why in paper.missing]
    return {"paper": paper.name, "title": paper.title, "figures": about, "missing": missing}


@dataclass(frozen=True, repr=False, eq=False)
class Reproduction(Result):
    """``papers``: a document per paper, as lies in ``out`` beside its page; ``pages``: the pages written."""

    out: Path | None
    papers: tuple[Mapping[str, Any], ...]
    pages: tuple[Path, ...]

    schema = "reproduce"
    rows_key = "figures"

    def findings(self) -> Mapping[str, Any]:
        rows = [
            {"paper": paper["paper"], "figure": f["number"], "title": f["title"], "claim": f["claim"],
             "here": f["says"], "agrees": f["agrees"], "not_here": f["not_here"],
             "timing": f.get("timing")}
            for paper in self.papers for f in paper["figures"]
        ]  # fmt: skip
        missing = [
            {"paper": paper["paper"], "figure": row["number"], "why": row["why"]}
            for paper in self.papers
            for row in paper["missing"]
        ]
        return {"out": self.out, "pages": [str(page) for page in self.pages], "figures": rows, "missing": missing}

    def shown(self) -> Sequence[Part]:
        if self.out is None:
            columns = ["figure", "title", "the paper's finding"]
            return [
                table(
                    p["title"], columns, [(f"{p['paper']}:{f['number']}", f["title"], f["claim"]) for f in p["figures"]]
                )
                for p in self.papers
            ]
        columns = ["figure", "the paper", "here", "agrees", "timing"]
        tables = [
            table(
                paper["title"],
                columns,
                [
                    (f["number"], f["claim"], f["says"] or f["not_here"], _AGREES[f["agrees"]], f.get("timing") or "–")
                    for f in paper["figures"]
                ],
            )
            for paper in self.papers
        ]
        return [*tables, *(f"wrote {page}" for page in self.pages)]

    @property
    def notes(self) -> Sequence[str]:
        listed = "python -m benchmarks.reproduction PAPER:FIGURE makes one, PAPER all of a paper"
        return [listed] if self.out is None else []
