"""Commands of slotool in processes of their own, each with the JSON document that it prints."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotool.errors import RunError

Document = Mapping[str, Any]
# 1 is a verdict, given with its document, and 4 one that a disturbed machine leaves open: neither ends the whole.
_ANSWERED = (0, 1, 4)
# Lines of stderr that may hold the cause of a failure.
_LAST_WORDS = 2


def run_command(command: str, folder: Path) -> Document:
    """The JSON document of ``slotool ARGUMENTS``, run in ``folder``; ``net{0..2}`` is expanded as a shell does.

    ``command`` may also begin with ``python``: then there is no document, and ``{}`` is returned.

    Raises ``RunError`` with the command's last words when it fails.
    """
    program, *arguments = (word for words in shlex.split(command) for word in _expanded(words))
    ours = program == "slotool"
    line = [sys.executable, "-m", "slotool", *arguments, "--json"] if ours else [sys.executable, *arguments]
    finished = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if finished.returncode not in (_ANSWERED if ours else (0,)) or (ours and not finished.stdout):
        lines = [line for line in finished.stderr.strip().splitlines() if line and not line.startswith("Try ")]
        words = " ".join(lines[-_LAST_WORDS:]) or "no message"
        raise RunError(f"the step '{command}' ended with exit code {finished.returncode}: {words}")
    return dict(json.loads(finished.stdout)) if ours else {}


def outputs_of(command: str) -> list[str]:
    """Files and folders that the command's options name as its outputs."""
    words = shlex.split(command)
    return [word for option, word in pairwise(words) if option in _OUTPUTS]


_OUTPUTS = ("-o", "--out", "--log")


def _expanded(word: str) -> list[str]:
    found = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", word)
    if found is None:
        return [word]
    before, first, last, after = found.groups()
    return [f"{before}{number}{after}" for number in range(int(first), int(last) + 1)]
