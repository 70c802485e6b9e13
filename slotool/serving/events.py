"""What a server does of its own accord, told as it happens: workers lost and replaced, models switched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TextIO

Listener = Callable[[str, str, dict[str, Any]], None]


class Events:
    """Hands every event to those who listen: its kind, a sentence for people, and its fields."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def tell(self, kind: str, sentence: str, **fields: Any) -> None:
        for listener in self._listeners:
            listener(kind, sentence, fields)


def log_to(file: TextIO) -> Listener:
    """Writes one JSON object per event and line: ``time`` (seconds since 1970), ``event``, ``message``, its fields."""

    def write(kind: str, sentence: str, fields: dict[str, Any]) -> None:
        file.write(json.dumps({"time": round(time.time(), 3), "event": kind, "message": sentence, **fields}) + "\n")
        file.flush()

    return write
