"""Events of a server: workers lost and replaced, points switched, settings changed."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

Listener = Callable[[str, str, dict[str, Any]], None]


class Events:
    """Distributor of every event to the listeners: its kind, a sentence, and its fields.

    A listener's failure (a log on a full disk) stops nothing: the first is printed to stderr, and the listener gets
    later events.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._failed: set[int] = set()

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def emit(self, kind: str, sentence: str, **fields: Any) -> None:
        for number, listener in enumerate(self._listeners):
            try:
                listener(kind, sentence, fields)
            except Exception as error:
                if number not in self._failed:
                    self._failed.add(number)
                    warn(f"an event ({kind}) was not recorded: {error}; serving goes on, later events are tried again")


def warn(sentence: str) -> None:
    """Print a warning to stderr, if that can be written."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slotool: {sentence}", file=sys.stderr, flush=True)


def log_to(file: TextIO) -> Listener:
    """Write one JSON object per line and event: ``time`` (seconds since 1970), ``event``, ``message``, its fields."""

    def write(kind: str, sentence: str, fields: dict[str, Any]) -> None:
        file.write(json.dumps({"time": round(time.time(), 3), "event": kind, "message": sentence, **fields}) + "\n")
        file.flush()

    return write
