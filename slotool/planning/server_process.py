"""A real ``slotool serve`` in a process of its own, for those who put one under load or call one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import slotool.process
from slotool.errors import InputError, RunError, TimedOut

START_WITHIN_S = 120.0
END_WITHIN_S = 30.0
# The owner was interrupted, and somebody waits.
INTERRUPTED_WITHIN_S = 1.0
# Exit code of a command that was given what it cannot use.
_USAGE = 2
# ``slotool``, but for a server that must not outlive the process that started it, however that one ends.
_LEASHED = """
import sys
from slotool.process import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from slotool.cli import main
main()
"""


class RunningServer:
    """``slotool serve ARGUMENTS`` in a process of its own, ready when this is made, ended by ``stop`` or ``with``.

    ``url``: where it serves HTTP; ``grpc``: the address for gRPC or None; ``models``: keys of the operating points by
    model. What it writes to stderr is kept in a file, for ``log_text``.

    Raises ``InputError`` with its own sentence when it cannot use its arguments, ``RunError`` when it does not start
    for another reason, ``TimedOut`` when it is not ready within ``start_timeout_s``.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path | None = None, *, start_timeout_s: float = START_WITHIN_S
    ):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server may write)
        self._process = subprocess.Popen(
            [slotool.process.INTERPRETER, "-c", _LEASHED, str(os.getpid()), "serve", *arguments, "--json"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._drain = threading.Thread(target=self._read_on, daemon=True)
        try:
            ready = self._ready(start_timeout_s)
        except BaseException as error:
            self._stop(error)
            raise
        self.url: str = ready["url"]
        self.grpc: str | None = ready["grpc"]
        self.models: dict[str, list[str]] = ready["models"]

    @property
    def process_id(self) -> int:
        return self._process.pid

    def log_text(self) -> str:
        """Return the text that the server has written to stderr: warnings and remarks; empty after ``stop``."""
        if self._stderr.closed:
            return ""
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0).decode(errors="replace")

    def stop(self) -> None:
        """End the server as by SIGTERM, which answers requests in flight; once it has ended, nothing."""
        self._stop(None)

    def _stop(self, error: BaseException | None) -> None:
        within_s = INTERRUPTED_WITHIN_S if isinstance(error, KeyboardInterrupt) else END_WITHIN_S
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._drain.ident is not None:
            self._drain.join(INTERRUPTED_WITHIN_S)
        # A process that outlives the server may hold the pipe.
        if self._process.stdout is not None and not self._drain.is_alive():
            self._process.stdout.close()
        self._stderr.close()

    def _read_on(self) -> None:
        """Read what is printed beside requests: a full pipe would stop the server."""
        assert self._process.stdout is not None
        while os.read(self._process.stdout.fileno(), 65_536):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(error)

    def __repr__(self) -> str:
        state = "ended" if self._process.poll() is not None else "serving"
        return f"{state} {', '.join(self.models)} at {self.url}"

    def _ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the document that the server prints when it is ready."""
        until, printed = time.monotonic() + timeout_s, b""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        # Code of a user's models prints there too, before and afterwards.
        while (ready := _document(printed)) is None:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimedOut(f"the server was not ready after {timeout_s:g} s{self._last_words()}")
            piece = os.read(pipe, 65_536)
            if not piece:
                code = self._process.wait(END_WITHIN_S)
                kind = InputError if code == _USAGE else RunError
                raise kind(f"the server did not start{self._last_words() or f': it ended with exit code {code}'}")
            printed += piece
        self._drain.start()
        return ready

    def _last_words(self) -> str:
        """Return the last line on stderr, without the prefix of every command."""
        lines = [line.strip() for line in self.log_text().splitlines() if line.strip()]
        return f": {lines[-1].removeprefix('slotool: ').removeprefix('Error: ')}" if lines else ""


def _document(printed: bytes) -> dict[str, Any] | None:
    """Return the document of a server that is ready, None where no line is one."""
    for line in printed.split(b"\n")[:-1]:
        try:
            document = json.loads(line[line.find(b"{") :])
        except ValueError:
            continue
        if isinstance(document, dict) and "url" in document:
            return document
    return None


@contextmanager
def server_process(arguments: Sequence[str]) -> Iterator[str]:
    """Start ``slotool serve ARGUMENTS`` on a free port, yield its address, and stop it by SIGTERM.

    Raises ``RunError`` with its last words if it does not start, ``TimedOut`` if that takes too long.
    """
    try:
        server = RunningServer([*arguments, "--port", "0"])
    except InputError as error:
        # An argument of the caller, not of a person.
        raise RunError(str(error)) from error
    with server:
        yield server.url
