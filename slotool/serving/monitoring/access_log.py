"""Access log: a line of JSON for every answered request, written by a separate thread."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from slotool.errors import InputError
from slotool.serving.events import warn
from slotool.serving.request import InferenceResult

STDOUT = "-"
# Limit of the characters of clients' paths and names.
MAX_CHARACTERS = 200
# Lines that wait to be written; further ones are lost and counted, so that a slow disk stops no request.
MAX_LINES = 10_000
# Interval of writes: waking the thread for each line would cost more than the line.
WRITE_INTERVAL_S = 0.05
CLOSE_S = 2.0
# Probes of a server or model, over HTTP and gRPC. An orchestrator sends one every few seconds.
_PROBE = re.compile(
    r"/v2/(health/(live|ready)|models/[^/]+(/versions/[^/]+)?/ready)"
    r"|/inference\.GRPCInferenceService/(ServerLive|ServerReady|ModelReady)"
)


class AccessLog:
    """Log appended to the file ``path``, or to standard output for ``-``.

    ``add`` never waits: at most ``max_lines`` wait to be written; a line after a gap states how many were lost. Raises
    ``InputError`` for a path that is no file, or cannot be opened.
    """

    def __init__(self, path: str | Path, *, max_lines: int = MAX_LINES):
        self._path = None if str(path) == STDOUT else Path(path)
        self._max_lines = max_lines
        self._waiting: queue.SimpleQueue[dict[str, Any] | FileIO | None] = queue.SimpleQueue()
        self._lost = 0
        self._has_failed = False
        self._file = self._open()
        self._writer = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._writer.start()

    def add(
        self,
        headers: Mapping[str, str],
        trace: str | None = None,
        *,
        protocol: str,
        client: str | None,
        peer: str | None,
        path: str,
        model: str | None,
        status: int,
        total_us: float | None,
        bytes_in: int,
        bytes_out: int,
        answer: Mapping[str, Any],
    ) -> None:
        """Append the line of an answered request; a successful health probe gets none.

        ``headers``: names in lower case, of which only ``x-request-id`` is read. ``trace``: id of the request's trace.
        ``total_us``: from the head to the answer. ``answer``: that of ``facts_of``; {} for a rejection.
        """
        if status < 300 and _PROBE.fullmatch(path):
            return
        if self._waiting.qsize() >= self._max_lines:
            self._lost += 1
            return
        given_id = headers.get("x-request-id")
        self._waiting.put(
            {
                "time": round(time.time(), 6),
                "protocol": protocol,
                "client": client,
                "peer": peer,
                "id": None if given_id is None else given_id[:MAX_CHARACTERS],
                "trace": trace,
                "path": path[:MAX_CHARACTERS],
                "model": model[:MAX_CHARACTERS] if model else None,
                "status": status,
                **answer,
                "total_us": None if total_us is None else round(total_us, 1),
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
            }
        )

    def reopen(self) -> None:
        """Open the path again, after log rotation. Raises ``InputError``; then the old file stays open."""
        if self._path is not None:
            self._waiting.put(self._open())

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        self._waiting.put(None)
        self._writer.join(CLOSE_S)

    def _open(self) -> FileIO:
        # Unbuffered: a hanging write must hold no lock that the end of the process needs.
        if self._path is None:
            return FileIO(os.dup(1), "w")
        if self._path.exists() and not self._path.is_file():
            raise InputError(f"access-log: {self._path} is no file; a file, or - for standard output, is expected")
        try:
            return FileIO(self._path, "a")
        except OSError as error:
            raise InputError(f"access-log: {self._path} cannot be written ({error.strerror})") from None

    def _write_all(self) -> None:
        goes_on = True
        while goes_on:
            entry = self._waiting.get()
            if entry is not None:
                time.sleep(WRITE_INTERVAL_S)
            lines: list[bytes] = []
            while True:
                if isinstance(entry, FileIO):
                    self._write(lines)
                    lines = []
                    self._file.close()
                    self._file = entry
                elif entry is None:
                    goes_on = False
                else:
                    lines.append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
                if self._waiting.empty():
                    break
                entry = self._waiting.get()
            self._write(lines)
        self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            lines.append(orjson.dumps({"time": round(time.time(), 6), "lost": lost}, option=orjson.OPT_APPEND_NEWLINE))
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                warn(f"the access log was not written: {error}; serving goes on, later lines are tried again")


def facts_of(answer: InferenceResult) -> dict[str, Any]:
    """Return an answer's facts for a log line: the request's id, its operating point and times."""
    return {
        "request": answer.request,
        "operating_point": answer.decision.point.label,
        "queue_us": round(answer.queue_us, 1),
        "compute_us": round(answer.compute_us, 1),
    }
