"""Run the examples of a page in order, and say where it does not show what they print."""

from __future__ import annotations

from pathlib import Path

from slotool.commands.result import NOT_DECIDED
from tests.docs.pages import Block, Step, blocks_of, difference, renewed, text_behind
from tests.docs.replay import Replay
from tests.docs.shell import LINKS, Shell, shell

# A machine that other processes keep busy leaves verdicts of these open.
MEASURING = ("build-tables", "gen-switching-plan", "plan")


def run_page(text: str, folder: Path, replay: Replay) -> tuple[str, list[str]]:
    """The page with its outputs as printed now, and a sentence for each that the page shows otherwise.

    What other pages have run already comes from ``replay``.
    """
    lines = text.split("\n")
    blocks = blocks_of(lines)
    wrong: list[str] = []
    new: dict[int, tuple[Block, list[str]]] = {}
    links = [name for name in LINKS if f"{name}/" in text]
    with shell(folder, stops_servers="kill -STOP" in text, links=links) as bash:
        for block in blocks:
            if block.title is not None:
                (folder / block.title).write_text("\n".join(block.lines) + "\n")
            elif block.language == "console":
                new[block.first] = block, _run_console(block, bash, replay, wrong)
            elif block.language == "python":
                behind = text_behind(block, blocks, lines)
                printed = _run_python(block, behind, bash, wrong)
                if behind is not None:
                    new[behind.first] = behind, printed
    for block, body in sorted(new.values(), key=lambda pair: -pair[0].first):
        lines[block.first : block.last] = body
    return "\n".join(lines), wrong


def _run_console(block: Block, bash: Shell, replay: Replay, wrong: list[str]) -> list[str]:
    body: list[str] = []
    for step in block.steps:
        code, printed = replay.run(bash, step.command)
        expected = block.exit_code if step is block.steps[-1] else 0
        body += ["$ " + step.command, *_compare(step, code, expected, printed, block, wrong)]
    return [line for part in body for line in part.split("\n")]


def _run_python(block: Block, behind: Block | None, bash: Shell, wrong: list[str]) -> list[str]:
    script = bash.folder / ".block.py"
    script.write_text("\n".join(block.lines) + "\n")
    code, printed = bash.run(f"python {script.name}")
    step = Step(f"the Python block at line {block.first}", behind.lines if behind else [])
    return _compare(step, code, 0, printed if behind or code else [], behind or block, wrong)


def _compare(step: Step, code: int, expected: int, printed: list[str], block: Block, wrong: list[str]) -> list[str]:
    where = f"line {block.first}: {step.command}"
    is_open = code == NOT_DECIDED and any(f"slotool {name} " in step.command for name in MEASURING)
    if code != expected and not is_open:
        wrong.append(f"{where}: ended with {code}, expected {expected}: {' / '.join(printed[-3:])}")
    elif told := difference(step.shown, printed, exact=block.exact):
        wrong.append(f"{where}: {told}")
    return renewed(step.shown, printed)
