"""Pages whose examples are run: what stands in their fenced blocks, and how printed output is compared.

``console`` blocks hold commands and what they print. A command begins with ``$ `` and goes on while a line ends with a
backslash or a ' is open; a line ``…`` stands for lines left out. ``python`` blocks are run as they stand; a ``text``
block right behind one is what it prints. A block with a ``title="FILE"`` is written to that file. ``bash`` blocks hold
commands that take too long for a test, or need what a test has not (a GPU, a cluster): only their subcommands and
options are checked.

A comment before a block says how it is compared: ``<!-- exact -->`` character by character; otherwise numbers, units of
time, padding and the width of boxes may differ. ``<!-- exit 1 -->`` says that its last command ends with that code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = "…"
# Pages that begin in an empty folder.
SCENARIOS = "scenarios"

_FENCE = re.compile(r"^```(\w+)(.*)$")
_DIRECTIVE = re.compile(r"^<!-- (?:(exact)|exit (\d+)) -->$")
_TITLE = re.compile(r'title="([^"]+)"')
_NUMBER = re.compile(r"[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_TIME = re.compile(r"0 (?:ns|µs|ms|s|min)\b")
_BOX = re.compile(r"[━─]+")
_ID = re.compile(r'"request":"[0-9a-f]{24}"')
_MACHINE = re.compile(r"\bmachine [0-9a-f]{12} \(.*\)(?:; this machine runs at [\d.]+ × of the one measured)?")


@dataclass
class Step:
    """One command, and the lines that the page says it prints."""

    command: str
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A fenced block: its lines lie at ``first <= line < last`` of the page, fences left out."""

    language: str
    title: str | None
    first: int
    last: int
    lines: list[str]
    exact: bool = False
    exit_code: int = 0
    steps: list[Step] = field(default_factory=list)


def pages() -> list[Path]:
    """README, scenarios, tutorials and how-to guides, in the order in which one reads them."""
    folders = [ROOT / "docs" / name for name in (SCENARIOS, "tutorials", "how-to")]
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def blocks_of(lines: list[str]) -> list[Block]:
    """The fenced blocks of a page in order."""
    found: list[Block] = []
    exact, exit_code, at = False, 0, 0
    while at < len(lines):
        directive, fence = _DIRECTIVE.match(lines[at]), _FENCE.match(lines[at])
        if directive:
            exact, exit_code = exact or bool(directive[1]), int(directive[2] or exit_code)
        elif fence:
            end = lines.index("```", at + 1)
            title = _TITLE.search(fence[2])
            inside = lines[at + 1 : end]
            block = Block(fence[1], title[1] if title else None, at + 1, end, inside, exact, exit_code)
            block.steps = _steps(inside) if block.language == "console" else []
            found.append(block)
            at = end
        if not directive and lines[at].strip():
            exact, exit_code = False, 0
        at += 1
    return found


def _steps(lines: list[str]) -> list[Step]:
    steps: list[Step] = []
    continued = False
    for line in lines:
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif continued:
            steps[-1].command += "\n" + line
        elif steps:
            steps[-1].shown.append(line)
        else:
            raise ValueError(f"a console block begins with a command ('$ '), not with {line!r}")
        command = steps[-1].command
        continued = not steps[-1].shown and (command.endswith("\\") or command.count("'") % 2 == 1)
    return steps


def text_behind(python: Block, blocks: list[Block], lines: list[str]) -> Block | None:
    """The ``text`` block that follows ``python`` with nothing but blank lines between them."""
    behind = next((block for block in blocks if block.first > python.last), None)
    if behind is None or behind.language != "text":
        return None
    between = lines[python.last + 1 : behind.first - 1]
    return None if any(line.strip() and not _DIRECTIVE.match(line) for line in between) else behind


def commands_in(block: Block) -> list[str]:
    """The commands of a ``bash`` block, continuation lines joined."""
    return [line for line in re.sub(r"\\\n\s*", "", "\n".join(block.lines)).split("\n") if line.strip()]


def masked(line: str) -> str:
    """``line`` without what depends on the machine and the hour: its name, numbers, ids, units of time, padding."""
    line = _ID.sub('"request":""', line)
    line = _TIME.sub("0 s", _NUMBER.sub("0", _BOX.sub("─", _MACHINE.sub("machine", line))))
    return " ".join(line.split())


def difference(shown: list[str], printed: list[str], *, exact: bool) -> str | None:
    """What the page shows and the command does not print, in one sentence; None when they agree."""
    same = (lambda line: line.rstrip()) if exact else masked
    expected, got = [same(line) for line in shown], [same(line) for line in printed]
    if LEFT_OUT in expected:
        head, tail = expected[: expected.index(LEFT_OUT)], expected[expected.index(LEFT_OUT) + 1 :]
        got = [*got[: len(head)], LEFT_OUT, *(got[-len(tail) :] if tail else [])]
    for number, (want, have) in enumerate(zip(expected, got, strict=False), 1):
        if want != have:
            return f"line {number} of the output is shown as {want!r} and printed as {have!r}"
    if len(expected) != len(got):
        return f"{len(expected)} lines are shown and {len(got)} printed: {(got or expected)[-1]!r} ends the longer one"
    return None


def renewed(shown: list[str], printed: list[str]) -> list[str]:
    """``printed``, with as much left out as the page leaves out."""
    printed = [line.rstrip() for line in printed]
    if LEFT_OUT not in shown:
        return printed
    head, tail = shown.index(LEFT_OUT), len(shown) - shown.index(LEFT_OUT) - 1
    return [*printed[:head], LEFT_OUT, *(printed[-tail:] if tail else [])]
