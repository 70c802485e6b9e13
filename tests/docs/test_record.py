"""Benchmarks are recorded with what they printed; pages hold what is made of records and of code, and are short."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks.record import record
from docs.generate import benchmarks, places
from docs.generate.__main__ import DOCS, generated, texts
from docs.generate.result_tables import TABLES
from tests.docs.pages import ROOT

PAGES = sorted(page for page in (ROOT / "docs" / "results").glob("*.md") if page.name != "benchmarks.md")
# Of what people wrote: what is generated is not counted.
MAX_WORDS, MAX_LINES_OF_RESULTS = 45_000, 150
FIGURES = {"medians_s": {"floor: python -c pass": 0.01, "slotool --help": 0.17}}


def printing() -> None:
    print("latency 3 µs")
    print(json.dumps(FIGURES))


def test_a_record_has_figures_machine_date_and_commit_and_is_shown(tmp_path: Path) -> None:
    document = json.loads(record("startup", printing, tmp_path).read_text())
    assert document["figures"] == FIGURES
    assert document["printed"] == ["latency 3 µs"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT.*", document["date"])
    output = benchmarks.page(tmp_path)
    assert "## startup\n" in output
    assert "latency 3 µs" in output
    page = benchmarks.filled("Before.\n\n<!-- recorded: startup -->\n\nAfter.", tmp_path)
    assert "| `slotool --help` | 170\u00a0ms | 17\u00a0× |" in page
    assert page.startswith("Before.\n\n<!-- recorded: startup -->\n\n*Recorded: ")
    assert page.endswith("\n\n<!-- end of startup -->\n\nAfter.")
    for shown in (output, page):
        for fact in (document["machine"]["cpu"], document["date"][:10], document["commit"]):
            assert fact in shown


def test_what_is_not_recorded_has_an_empty_place_and_is_listed(tmp_path: Path) -> None:
    assert (
        benchmarks.filled("<!-- recorded: startup -->", tmp_path)
        == "<!-- recorded: startup -->\n<!-- end of startup -->"
    )
    assert "Not recorded yet: `startup`, " in benchmarks.page(tmp_path)


def test_what_stood_in_a_place_is_replaced() -> None:
    page = "A.\n\n<!-- recorded: a -->\n\n| old |\n\n<!-- end of a -->\n\n<!-- recorded: b -->\n\nB.\n"
    filled = places.filled(page, "recorded", str.upper)
    assert filled == places.filled(filled, "recorded", str.upper)
    assert places.without(filled).split() == ["A.", "B."]
    assert places.names(filled, "recorded") == ["a", "b"]
    assert "old" not in filled


def test_generated_text_is_as_code_and_records_have_it() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in texts().items()
             if not path.is_file() or path.read_text() != text]  # fmt: skip
    assert stale == [], "`python -m docs.generate` writes them"


def test_answers_in_time_are_shares_of_the_best_rate_at_any_load() -> None:
    figures = {"net": {"closed": 88.0, "best": 85.0, "3x": 144.0, "5x": 152.0}}
    (table,) = TABLES["goodput"]({"found": figures})
    assert table.rows == [["net", "88", "152", "95 %", "100 %"]]


def test_pages_are_short() -> None:
    whole = generated()
    written = {page: places.without(page.read_text()) for page in DOCS.rglob("*.md") if page not in whole}
    assert sum(len(text.split()) for text in written.values()) <= MAX_WORDS
    long = {page.name: len(written[page].splitlines()) for page in PAGES}
    assert max(long.values()) <= MAX_LINES_OF_RESULTS, long


def test_a_benchmark_without_a_json_line_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends with 'latency 3 µs'; expected one line with a JSON object"):
        record("silent", lambda: print("latency 3 µs"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_has_its_place_on_one_results_page() -> None:
    shown = [name for page in PAGES for name in benchmarks.marks(page.read_text())]
    assert sorted(shown) == sorted(TABLES) == sorted([*runner.BENCHMARKS, *runner.WITH_PEERS, *runner.KEPT])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_results_page_shows_what_is_recorded(page: Path) -> None:
    text = page.read_text()
    for name in benchmarks.marks(text):
        recorded = (benchmarks.RESULTS / f"{name}.json").is_file()
        assert (f"(benchmarks.md#{name})" in text) == recorded
    for table in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_benchmarks_import_only_what_there_is() -> None:
    """They run seldom, and a rename that misses one shows only then."""
    missing = []
    folder = ROOT / "benchmarks"
    for path in sorted([*folder.glob("*.py"), *folder.glob("gpu_pieces/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"slotool", "tests"}:
                place = ROOT.joinpath(*str(node.module).split("."))
                missing += [f"{path.name}: {node.module}.{name.name}" for name in node.names
                            if not exists(place, name.name)]  # fmt: skip
    assert missing == []
    assert not exists(ROOT / "slotool" / "machine", "no_such")
    assert not exists(ROOT / "slotool" / "no_such", "machine")


def test_a_folder_that_a_move_left_behind_hides_no_module(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved.py").write_text("NAME = 1\n")
    assert exists(tmp_path / "moved", "NAME")


def exists(module: Path, name: str) -> bool:
    """True if the file or folder of ``module`` has ``name``; nothing is imported."""
    if (module / name).is_dir() or (module / f"{name}.py").is_file():
        return True
    file = next((path for path in (module / "__init__.py", module.with_suffix(".py")) if path.is_file()), None)
    return file is not None and name in names_in(file)


@cache
def names_in(file: Path) -> set[str]:
    """Return what a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.If):  # of type checkers: names that are imported when asked for
            found.update(alias.name for of in node.body if isinstance(of, ast.ImportFrom) for alias in of.names)
        else:
            found.update(of.id for of in ast.walk(node) if isinstance(of, ast.Name) and isinstance(of.ctx, ast.Store))
    return found
