"""Names that terminals and pages would obey: markup, escape codes, marks of direction. They are shown, never obeyed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.cli import output
from slotool.commands.display import table
from slotool.graphs import GraphBuilder
from slotool.printable import printable
from slotool.tables import LatencyTable, OutcomeTable
from slotool.testing.rules import family_outcomes

MODELS = Path(__file__).parents[2] / "models"
COLOUR, TITLE, BACKWARDS = "\x1b[31m", "\x1b]0;owned\x07", "\u202egnp.exe"
NAMES = (
    "[/red]",
    "net[old]",
    f"a{COLOUR}b",
    f"c{TITLE}",
    f"d{BACKWARDS}",
    ":smile:",
    "$\\frac{$",
    "<b>x</b>",
    "[bold]x",
)
EVERYTHING = " ".join(NAMES)
# What a terminal would obey or show as something else; line ends are the commands' own.
OBEYED = tuple(chr(code) for code in (*range(32), *range(127, 160), 0x200E, 0x200F, 0x202E, 0x2066) if code != 10)


def told(finished: Any) -> str:
    """What a command said, which must hold nothing that a terminal obeys."""
    said = finished.stdout + finished.stderr
    assert not [character for character in OBEYED if character in said], said
    return said


def test_every_character_that_is_not_plain_is_shown_by_its_code() -> None:
    assert printable(COLOUR) == "\\x1b[31m"
    assert printable("a\nb\u202ec\udc80") == "a\\nb\\u202ec\\udc80"
    assert printable("a\nb\u200b", lines=True) == "a\nb\\u200b"
    assert printable("naïve µs, 3 × ±, 中文 – ✓") == "naïve µs, 3 × ±, 中文 – ✓"


@given(st.text(max_size=40))
def test_any_text_in_a_table_or_a_remark_comes_out_as_it_is(text: str) -> None:
    stream = io.StringIO()
    console = output._console(stream)
    console.print(table(text, [text, "n"], [[text, 1.0]]))
    shown = stream.getvalue()
    assert not [character for character in OBEYED if character in shown]
    assert all(word in shown for word in printable(text).split())


def outcomes_of(folder: Path) -> Path:
    rows = family_outcomes(300).rows.copy()
    own = dict(zip(["small", "medium", "large"], ("net[old]", f"a{COLOUR}b", "[/red]"), strict=True))
    rows["version"] = rows["version"].map(own)
    OutcomeTable(rows).save(folder / "outcomes.parquet")
    return folder / "outcomes.parquet"


def test_versions_are_shown_by_their_names_where_rules_are_made_and_judged(slotool: Any, tmp_path: Path) -> None:
    outcomes, rules = outcomes_of(tmp_path), tmp_path / "rules.json"
    made = slotool("gen-rules", outcomes, "-o", rules, "--tolerances", "0.05,0.1", "--tolerance-kind", "absolute")
    assert made.exit_code == 0, made.stderr
    said = told(made) + told(slotool("evaluate-rules", rules, outcomes))
    assert all(name in said for name in ("net[old]", "[/red]", "a\\x1b[31mb"))


def test_networks_are_shown_by_their_names_where_their_latency_is_predicted(slotool: Any, tmp_path: Path) -> None:
    lines = []
    for name in NAMES:
        builder = GraphBuilder(f"kind {name}", name)
        builder.add("Dense", builder.add("InputLayer", shape=[len(lines) + 1]), units=8)
        graph = builder.graph()
        lines.append(json.dumps({**graph.document(), "name": name}))
    (tmp_path / "graphs.jsonl").write_text("\n".join(lines))
    done = slotool("predict", MODELS / "predictor-torch", "--graph", tmp_path / "graphs.jsonl")
    assert done.exit_code == 0, done.stderr
    said = told(done)
    assert all(printable(name) in said for name in ("[/red]", "net[old]", f"a{COLOUR}b"))


def test_a_file_is_named_in_an_error_as_it_is_called(slotool: Any, tmp_path: Path) -> None:
    path = tmp_path / EVERYTHING.replace("/", "|")
    path.write_text("not JSON")
    for command in (("evaluate-rules", path, path), ("predict", MODELS / "predictor-torch", "--graph", path)):
        done = slotool(*command)
        assert done.exit_code == 2
        assert "net[old]" in told(done)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_report_shows_names_as_text(slotool: Any, tmp_path: Path) -> None:
    rows = [
        {"subject": name, "subject_id": f"id {name}", "machine": "m", "samples_s": [1e-3, 1.1e-3], "backend": "torch"}
        for name in NAMES
    ]
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    outcomes_of(tmp_path)
    done = slotool("report", tmp_path, "-o", tmp_path / "r.html", "--title", "</title><script>alert(1)</script>")
    assert done.exit_code == 0, done.stderr
    told(done)
    page = (tmp_path / "r.html").read_text()
    assert not [obeyed for obeyed in (*OBEYED, "<b>x", "<script>alert") if obeyed in page]


@pytest.mark.parametrize("name", ["[/red]", f"a{COLOUR}b"])
def test_a_progress_line_is_text(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with output.Output().progress(name, total=2) as progress:
        progress.say(f"still {name}")
        progress.advance()
    assert printable(name) in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


def test_a_name_cannot_forge_a_line_of_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output.Output()
    shown.note("no interval of a\nwarning: b\tc")
    shown.warn("d\ne")
    assert capsys.readouterr().err.splitlines() == [r"no interval of a\nwarning: b\tc", r"warning: d\ne"]
