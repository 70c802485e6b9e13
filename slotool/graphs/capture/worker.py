"""Process in which foreign code is run to be captured: it writes a line per network to a pipe of its own.

Of a source of several networks the first line is the number of processes that share them, and an empty object ends the
lines of each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from typing import Any, TextIO

from slotool.errors import SlotoolError
from slotool.graphs.capture.sources import Candidate, Source, captured
from slotool.machine import usable_cores
from slotool.process import die_with_parent, thread_variables

# Processes that share a pipe write in turn.
_WRITING = get_context("fork").Lock()


def main() -> None:
    """Capture what the first argument names; see ``subprocess_capture.py`` for the other end."""
    options = json.loads(sys.argv[1])
    die_with_parent(options["parent"])
    _be_first_when_memory_runs_out()
    sys.argv[1:] = []
    sources = [Source.from_document(document) for document in options["sources"]]
    # Shapes need no threads, and a process with threads cannot fork.
    os.environ.update(thread_variables(1))
    if any(source.framework == "keras" for source in sources):
        # With torch as backend, users' own layers can be exported.
        os.environ.setdefault("KERAS_BACKEND", "torch")
    with open(options["answers"], "w") as answers:
        for source in sources:
            _answer(answers, source)
    # Threads that the model's code has left must not keep us, nor what it does at exit change an answer that was given.
    sys.stdout.flush()
    os._exit(0)


def _answer(answers: TextIO, source: Source) -> None:
    result, error = _tried(source.name, partial(captured, source))
    if not isinstance(result, Iterator):
        _write(answers, error or {"graph": result.text})
        return
    parent, processes, number = os.getpid(), usable_cores(), 0
    _write(answers, {"processes": processes})
    forked: list[int] = []
    while number == 0 and len(forked) < processes - 1:
        if child := os.fork():
            forked.append(child)
        else:
            die_with_parent(parent)
            number = len(forked) + 1
    _, error = _tried(source.name, partial(_share, answers, result, number, processes))
    if error is not None and number == 0:
        _write(answers, {"at": sys.maxsize, "name": source.called, **error})
    _write(answers, {})
    if number or any(os.waitpid(child, 0)[1] for child in forked):
        os._exit(0 if number else 1)


def _share(answers: TextIO, candidates: Iterator[Candidate], number: int, processes: int) -> None:
    """Write each candidate whose place is ``number`` modulo ``processes``; every process makes all of them."""
    for at, (name, capture) in enumerate(candidates):
        if at % processes == number:
            graph, error = _tried(name, capture)
            _write(answers, {"at": at, "name": name, **(error or {"graph": graph.text})})


def _tried(name: str, run: Callable[[], Any]) -> tuple[Any, dict[str, str] | None]:
    """Return the result of a model's code, or the error that it ends with, as the other end reads it."""
    try:
        return run(), None
    except SlotoolError as error:
        kind, sentence = type(error).__name__, str(error)
    except MemoryError:
        kind, sentence = "RunError", f"capturing {name} ran out of memory"
    except BaseException as error:
        # Any error of a model's code ends its capture only.
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        kind, sentence = "RunError", f"capturing {name} failed: {words}"
    # A lone surrogate is no text that the other end reads.
    return None, {"error": kind, "sentence": sentence.encode(errors="backslashreplace").decode()}


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    with _WRITING:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _be_first_when_memory_runs_out() -> None:
    """Should the system run out of memory, let it end this process and not its parent."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        # A system without this file chooses for itself.
        pass
