"""The parent's handle on a measuring process, with detection of its death and of hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from slotool import strict_json
from slotool.errors import InputError, WorkerError
from slotool.process import module_command
from slotool.timing.timer import StoppingRule

START_TIMEOUT_S = 180.0


class WorkerHung(WorkerError):
    """Timeout of a worker, which has been killed."""


class MeasuringProcess(Protocol):
    """Interface of a ``MeasuringWorker``, or of a seat in one that several share."""

    @property
    def pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]: ...

    def send(self, request: Mapping[str, Any]) -> None: ...

    def receive(self, timeout_s: float) -> dict[str, Any]: ...

    def kill(self) -> None: ...


class MeasuringWorker:
    """Process of ``slotool.profiling.worker`` with verified threads and affinity, as a context manager.

    With ``streams`` a request names its seat (``StreamBench``). ``hello``: pid, affinity, threads, pools, device and
    start_s in force. Raises ``WorkerError`` if it cannot start or the system denies its settings; ``InputError`` if the
    backend does not offer the device.
    """

    def __init__(
        self,
        *,
        backend: str,
        device: str,
        threads: int,
        affinity: Sequence[int],
        rule: StoppingRule,
        seed: int = 0,
        precision: str | None = None,
        streams: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ):
        options = {
            "backend": backend,
            "device": device,
            "threads": threads,
            "affinity": list(affinity),
            "rule": asdict(rule),
            "seed": seed,
            "precision": precision,
            "streams": streams,
            "parent": os.getpid(),
        }
        # A file needs no reader, and its end can be read after the worker dies.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        # Its own session, so that Ctrl-C in the terminal reaches the parent alone.
        self._process = subprocess.Popen(
            module_command("slotool.profiling.worker", json.dumps(options)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            start_new_session=True,
        )
        self._unread = b""
        try:
            self.hello = self.receive(start_timeout_s)
        except BaseException:
            self.kill()
            raise
        if "error" in self.hello:
            self.kill()
            kind = InputError if self.hello["input"] else WorkerError
            raise kind(f"the measuring process did not start: {self.hello['error']}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request; return the answer. Raises ``WorkerHung`` after ``timeout_s``, ``WorkerError`` if it died."""
        self.send(request)
        return self.receive(timeout_s)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request, to be followed by ``receive``. Raises ``WorkerError`` if the worker died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._death() from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once; further calls do nothing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> MeasuringWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer. Raises as ``ask`` does."""
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._process.kill()
                self._process.wait()
                raise WorkerHung(f"no answer within {timeout_s:g} s; the measuring process was killed")
            received = os.read(descriptor, 1 << 16)
            if not received:
                raise self._death()
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer: dict[str, Any] = strict_json.decode(line)
            return answer
        except strict_json.JsonError as error:
            self._process.kill()
            self._process.wait()
            raise WorkerError(f"the measuring process answered nonsense ({error}); it was killed") from error

    def _death(self) -> WorkerError:
        code = self._process.wait()
        if code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (as the system does when memory runs out)"
        words = self._last_words()
        return WorkerError(f"the measuring process {how}" + (f"; its last line: {words}" if words else ""))

    def _last_words(self) -> str:
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - 4096))
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
