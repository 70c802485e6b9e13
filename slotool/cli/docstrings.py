"""Google-style docstrings of functions as help: text, examples, and a sentence per parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Beginning of a paragraph that is a command to copy.
EXAMPLE = "Example: "
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ", re.MULTILINE)
_CODE = re.compile(r'``"?(.*?)"?``', re.DOTALL)
# Paragraphs that name papers are for readers of the code.
_SOURCES = ("Source: ", "Sources: ")

# First sentence of an entry, and what the function does without the parameter.
_DEFAULT = re.compile(r"^(.*?);? None: (.*?)\.?$")


@dataclass(frozen=True)
class Entry:
    """Parameter in ``Args``: its first sentence, and what None means where that is stated."""

    help: str
    none: str = ""


@dataclass(frozen=True)
class Docstring:
    """Text above the sections, and the entries of ``Args`` by parameter."""

    text: str
    entries: dict[str, Entry]


def read_docstring(function: Callable[..., Any], rename: Callable[[str], str]) -> Docstring:
    """Return the docstring of ``function``; ``rename`` gives what stands between double backticks on the command
    line."""
    parts = _SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    def shown(text: str) -> str:
        return _CODE.sub(lambda match: rename(" ".join(match[1].split())), text)

    names_and_texts = _ENTRY.split(sections.get("Args", ""))[1:]
    entries = {
        name: _entry(shown(" ".join(text.split())))
        for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
    }
    paragraphs = [part for part in parts[0].strip().split("\n\n") if not part.startswith(_SOURCES)]
    return Docstring(shown("\n\n".join(paragraphs)), entries)


def _entry(text: str) -> Entry:
    sentence = text.partition(". ")[0].rstrip(".")
    if match := _DEFAULT.match(sentence):
        return Entry(f"{match[1]}.", match[2])
    return Entry(f"{sentence}.")
