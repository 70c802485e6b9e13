"""The process in which foreign code is run to be captured: it answers on a pipe of its own, one line per model."""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from slotool.errors import SlotoolError
from slotool.graphs.capture.sources import Source, capture_source
from slotool.process import die_with_parent


def main() -> None:
    """Capture what the first argument names; see ``subprocess_capture.py`` for the other end."""
    options = json.loads(sys.argv[1])
    die_with_parent(options["parent"])
    _be_first_when_memory_runs_out()
    sys.argv[1:] = []
    sources = [Source.from_document(document) for document in options["sources"]]
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
    try:
        answer = {"graph": capture_source(source).text}
    except SlotoolError as error:
        answer = {"error": type(error).__name__, "sentence": str(error)}
    except MemoryError:
        answer = {"error": "RunError", "sentence": f"capturing {source.name} ran out of memory"}
    except BaseException as error:
        # Any error of a model's code ends its capture only.
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        answer = {"error": "RunError", "sentence": f"capturing {source.name} failed: {words}"}
    if "sentence" in answer:
        # A lone surrogate is no text that the other end reads.
        answer["sentence"] = answer["sentence"].encode(errors="backslashreplace").decode()
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
