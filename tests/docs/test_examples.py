"""What README, tutorials and how-to guides show is what their commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slotool.cli.app import command as command_line
from tests.docs.examples import run_page
from tests.docs.pages import ROOT, SCENARIOS, blocks_of, commands_in, difference, masked, pages, renewed
from tests.docs.replay import Replay
from tests.docs.shell import LINKS, shell

# Pages whose examples `make test` runs; `make test-long` runs all others.
QUICK = ("README.md", "docs/scenarios/new-board.md")
PAGES = [
    pytest.param(page, id=name, marks=() if name in QUICK else pytest.mark.long)
    for page in pages()
    if (name := str(page.relative_to(ROOT)))
]
SCENARIO_PAGES = [page for page in pages() if page.parent.name == SCENARIOS]
OTHERS = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("explanation/*.md"), *(ROOT / "docs").glob("results/*.md")]
MAX_WIDTH = 112  # characters, of which GitHub shows 108 without a bar to scroll by


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return Replay(tmp_path_factory.mktemp("replay"))


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_print_what_the_page_shows(page: Path, tmp_path: Path, replay: Replay) -> None:
    wrong = ["it was not run to its end"]
    try:
        _, wrong = run_page(page.read_text(), tmp_path, replay)
    finally:
        if wrong:  # what was kept, perhaps measured on a crowded machine, may be the reason
            replay.forget()
    assert not wrong, "\n".join([*wrong, "make docs-outputs writes the true output into the pages"])


@pytest.mark.parametrize("page", SCENARIO_PAGES, ids=lambda page: page.stem)
def test_a_scenario_has_files_of_its_own_and_at_most_ten_commands(page: Path) -> None:
    text = page.read_text()
    commands = [step.command for block in blocks_of(text.split("\n")) for step in block.steps]
    assert len(commands) <= 10
    assert not any(f"{folder}/" in command for command in commands for folder in LINKS)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 250


@pytest.mark.parametrize("page", [*pages(), *sorted(OTHERS)], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_not_run_have_these_options(page: Path) -> None:
    root = command_line()
    for block in blocks_of(page.read_text().split("\n")):
        for line in commands_in(block) if block.language == "bash" else []:
            words = shlex.split(line, comments=True)
            while words and "=" in words[0]:
                words.pop(0)
            if words[:1] == ["slotool"]:
                assert unknown_options(root, words[1:]) == [], f"line {block.first}: {line}"


def unknown_options(command, words: list[str]) -> list[str]:
    """Options among ``words`` that the subcommand named there lacks."""
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    return sorted(asked - known - {"--help", "-h"}) + ([words[0]] if getattr(command, "commands", None) else [])


def test_an_option_that_does_not_exist_is_noticed() -> None:
    root = command_line()
    assert unknown_options(root, ["predict", "predictor", "--no-such"]) == ["--no-such"]
    assert unknown_options(root, ["profile", "sola", "x"]) == ["sola"]


def test_readme_is_short_and_no_table_of_it_wide() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    wide = [line for line in lines if len(line) > MAX_WIDTH and line[:1] in "|│┃┏└"]
    assert not wide


def test_numbers_units_and_padding_may_differ_and_words_may_not() -> None:
    assert masked("│ p50 latency │   812.3 µs │") == masked("│ p50 latency │ 1.024 ms │")
    assert difference(["median 3 µs"], ["median 4.1 ms"], exact=False) is None
    here, there = "for cpu, machine 9f0510a08e35 (AMD EPYC)", "for cpu, machine 7f0f1a0c0b22 (Intel(R) Xeon(R))"
    assert difference([here], [there], exact=False) is None
    assert difference([here], [there.replace("cpu", "gpu")], exact=False) is not None
    assert difference(["median 3 µs"], ["mean 3 µs"], exact=False) is not None
    assert difference(["median 3 µs"], ["median 4 µs"], exact=True) is not None
    assert difference(["a", "b"], ["a"], exact=False) is not None
    assert difference(["a"], ["a", "b"], exact=False) is not None


def test_lines_left_out_stay_left_out() -> None:
    assert difference(["a", "…", "d"], ["a", "b", "c", "d"], exact=True) is None
    assert difference(["a", "…", "e"], ["a", "b", "c", "d"], exact=True) is not None
    assert renewed(["old", "…", "old"], ["a", "b", "c", "d"]) == ["a", "…", "d"]
    assert renewed(["…"], ["a", "b"]) == ["…"]


def test_a_page_is_compared_and_rewritten(tmp_path: Path) -> None:
    page = (
        'Text.\n```python title="answer.py"\nprint("one", 41 + 1)\n```\n'
        "<!-- exact -->\n```console\n$ python answer.py\nshown 7\n$ echo a \\\n    b\na b\n```\n"
        "```python\nprint(2)\n```\n\n```text\n3\n```\n<!-- exit 4 -->\n```console\n$ (exit 4)\n```\n"
    )
    (folder := tmp_path / "page").mkdir()
    renewed_page, wrong = run_page(page, folder, Replay(tmp_path / "runs"))
    assert renewed_page == page.replace("shown 7", "one 42").replace("```text\n3", "```text\n2")
    assert len(wrong) == 1
    assert "shown as 'shown 7' and printed as 'one 42'" in wrong[0]


def test_a_command_runs_again_only_when_a_file_that_it_names_differs(tmp_path: Path) -> None:
    replay, page = (
        Replay(tmp_path / "kept"),
        "```console\n$ python -c \"print(open('a.txt').read(), open('runs', 'a').write('x'))\"\n```\n",
    )
    printed = []
    for number, text in enumerate(["one", "one", "two"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.txt").write_text(text)
        printed.append(run_page(page, folder, replay)[0])
        assert (folder / "runs").read_text() == "x"
    assert "one 1" in printed[0]
    assert printed[1] == printed[0]
    assert "two 1" in printed[2]
    assert len(replay._runs) == 2


def test_a_server_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    with shell(tmp_path) as bash, pytest.raises(ChildProcessError, match=r"ended before it served: .*no such"):
        bash.run("slotool serve no-such-artifact &")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ('slotool --version > by-fork && "$(which -a slotool | tail -1)" --version | cmp - by-fork', 0),
        ("slotool predict no-such-artifact --torch torch.nn:ReLU --input-shape 4", 2),
        ("timeout --preserve-status --signal INT 2 slotool generate mlp --count 100000000 -o many.parquet", 130),
    ],
)
def test_a_command_run_in_a_fork_ends_as_by_itself(command: str, code: int, tmp_path: Path) -> None:
    with shell(tmp_path) as bash:
        assert bash.run(command)[0] == code
