"""Names and prose use the field's standard terms: words that slotool once had of its own do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The standard term stands behind each, as the glossary and CONTRIBUTING.md have it.
REPLACED = {
    r"\bcompan(y|ies)\b": "co-location, co-runners",
    r"--beside\b": "--co-runners",
    r"crowding": "oversubscription",
    r"ShortWay|short_way|HeadWithBody|\bBegun\b": "fast path",
    r"\bRefusal\b|too_near": "rejection, infeasible deadline",
    r"\bTicket\b|\btickets?\b|\bLane\b|class Told": "pending request, model queue",
    r"RestingSelector": "idle-tracking selector",
    r"call_off|CalledOff|\bheed\b": "cancel",
    r"\b[Aa]sker\b|[Aa]nswerer|as_brought": "inference session, reference model",
    r"WholeQueue|whole_queue": "value-iteration policy",
    r"gives_way|\bFate\b": "shed candidate, request outcome",
    r"RoundedMLP|--rows\b": "quantized, --weight-dtype",
    r"--visits\b|\bvisits\b|Surroundings": "rounds, measurement hooks, idle machine",
    r"\bdials?\b|[Ss]teering\b": "settings",
    r"refuted certificate|certificate is refuted": "violated guarantee",
    r"\broads?\b|honest rival|peers' rows": "walkthrough, baseline",
    r"\b(MOST|LEAST|FEWEST|FURTHEST)_[A-Z]": "MAX_, MIN_",
    r"asked: \d": "a user's words, not a tracker's",
}
READ = ("slotool", "tests", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
# Keys and columns of files that earlier versions wrote, which are still read.
KEPT = {
    "slotool/elastic/supernets/space.py": r"\bdials\b",
    "tests/elastic/test_supernets.py": r"\bdials\b",
}


@cache
def texts() -> dict[str, str]:
    """Contents of every source and page, by path."""
    paths = [path for name in READ for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    read = [path for path in paths if path.suffix in (".py", ".md", ".html", ".js") and path != Path(__file__)]
    return {str(path.relative_to(ROOT)): path.read_text() for path in read}


@pytest.mark.parametrize("pattern", REPLACED)
def test_words_that_were_replaced_do_not_come_back(pattern: str) -> None:
    found = []
    for name, text in texts().items():
        for number, line in enumerate(text.splitlines(), 1) if re.search(pattern, text) else ():
            if re.search(pattern, line) and not re.search(KEPT.get(name, r"(?!)"), line):
                found.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join([f"say: {REPLACED[pattern]}", *found])


NO_FIRST_WORD = re.compile(
    r"(What|Of|Whether|As|How|Which|Those|Where|Who|Whom|Whose|That|It|Also|Why|When|Whatever|These|This|Their|Its|They|So"
    r"|To|In|On|By|For|With|If|At|And|But|Such|Then|There|Here)\b"
)
VERB = re.compile(r"True if |(?!(The|An?|No|All|Every|Each|Any|One)\b|\w*[^su]s\b|(?!Bring)\w+ing\b)[A-Z][a-z]+\b")


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which several tests walk."""
    return ast.parse(path.read_text())


def docstrings(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Yield line, True for a function that is no property, and text of each docstring in a module."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = () if isinstance(node, ast.Module) else map(ast.unparse, node.decorator_list)
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            is_function &= not any(name.endswith(("property", ".setter")) for name in decorators)
            if text := ast.get_docstring(node):
                yield getattr(node, "lineno", 1), is_function, text


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    wrong = []
    for path in sorted([*(ROOT / "slotool").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]):
        for line, is_function, text in docstrings(path):
            if NO_FIRST_WORD.match(text) or (is_function and not VERB.match(text)):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:80]}")
    assert not wrong, "\n".join(wrong)


# A participle or pronoun as a name leaves its reader to find out of what: nouns of the field stand in its place.
NO_NAMES = {"found", "own", "asked", "told", "said", "given", "made"}


def stored_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, attribute and argument that a module sets."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def test_variables_are_called_by_nouns() -> None:
    wrong = []
    for path in sorted((ROOT / "slotool").rglob("*.py")):
        for line, name in stored_names(path):
            if name.lstrip("_") in NO_NAMES:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert not wrong, "\n".join(wrong)
