"""Capture in a process of its own: a model's code may crash, hang or eat all memory, and costs itself alone."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import slotool
import slotool.errors
import slotool.process
from slotool import strict_json
from slotool.errors import RunError, SlotoolError, TimedOut, WorkerError
from slotool.graphs.capture.sources import Source
from slotool.graphs.graph import OperatorGraph
from slotool.machine import usable_memory

DEFAULT_TIMEOUT_S = 600.0
# Of the memory available at the start, what a capture may take.
MEMORY_SHARE = 0.9
# Networks that one process captures before another begins afresh: imports are paid for once, and memory is given back.
CHUNK = 16
_TICK_S = 0.2
_CODE = "import sys; sys.path.append({root!r}); from slotool.graphs.capture.worker import main; main()"


@dataclass(frozen=True)
class Limits:
    """What one model's capture may take: seconds, loading and the imports it needs included, and bytes of memory, of
    which None means most of what is available."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_bytes: int | None = None


def captured_apart(source: Source, limits: Limits | None = None) -> OperatorGraph:
    """The graph of one source. Raises what capturing raises, ``TimedOut`` when it takes too long, ``RunError`` when it
    takes too much memory, and ``WorkerError`` when its process dies."""
    (answer,) = all_captured_apart([source], limits)
    if isinstance(answer, SlotoolError):
        raise answer
    return answer


def all_captured_apart(
    sources: Sequence[Source], limits: Limits | None = None, stop: threading.Event | None = None
) -> Iterator[OperatorGraph | SlotoolError]:
    """The graphs of all sources in order, of each that fails the error instead; nothing more once ``stop`` is set.

    One process does all of one module, so that libraries are imported once; after a death another goes on with the
    rest. What the models' code prints, on stdout too, goes to stderr.
    """
    limits, done = limits or Limits(), 0
    while done < len(sources) and not (stop and stop.is_set()):
        # Two modules may have one name, or helpers of one name, in different folders.
        module = _module(sources[done])
        same = list(takewhile(lambda source: _module(source) == module, sources[done:]))  # noqa: B023
        with _worker(same) as worker:
            for source in same:
                answer = worker.answer(source, limits, stop)
                if stop and stop.is_set():
                    return
                yield answer
                done += 1
                if not worker.alive_and_well:
                    break


def captured_side_by_side(
    sources: Sequence[Source], limits: Limits | None = None, processes: int = 1
) -> Iterator[tuple[Source, OperatorGraph | SlotoolError]]:
    """Every source with its graph, or with the error where it fails, as they come; so many ``processes`` at a time.

    Who closes the iterator, or is interrupted, ends the processes.
    """
    found: SimpleQueue[tuple[Source, OperatorGraph | SlotoolError] | BaseException] = SimpleQueue()
    stop = threading.Event()
    size = max(1, min(CHUNK, len(sources) // max(1, processes)))
    chunks = [sources[first : first + size] for first in range(0, len(sources), size)]

    def capture(chunk: Sequence[Source]) -> None:
        try:
            for source, answer in zip(chunk, all_captured_apart(chunk, limits, stop), strict=False):
                found.put((source, answer))
        except BaseException as error:
            found.put(error)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for chunk in chunks:
                pool.submit(capture, chunk)
            for _ in sources:
                answer = found.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _module(source: Source) -> tuple[str, str]:
    return source.framework, source.name.partition(":")[0] if source.framework == "torch" else ""


@contextmanager
def _worker(sources: Sequence[Source]) -> Iterator[_Worker]:
    reading, writing = os.pipe()
    options = {"parent": os.getpid(), "answers": writing, "sources": [source.document() for source in sources]}
    code = _CODE.format(root=str(Path(slotool.__file__).parents[1]))
    # Its own session, so that Ctrl-C in the terminal reaches the parent alone, which ends all that the model started.
    process = subprocess.Popen(
        [slotool.process.INTERPRETER, "-P", "-c", code, json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=(writing,),
        start_new_session=True,
    )
    os.close(writing)
    try:
        yield _Worker(process, reading)
    finally:
        # It may have ended and left nobody.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reading)


class _Worker:
    """The parent's end of the pipe."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int):
        self._process, self._answers, self._unread = process, answers, b""
        self.alive_and_well = True

    def answer(
        self, source: Source, limits: Limits, stop: threading.Event | None = None
    ) -> OperatorGraph | SlotoolError:
        """What it says of the next source, or what has become of it."""
        allowed = limits.memory_bytes or int(MEMORY_SHARE * usable_memory())
        try:
            line = self._line(source, time.monotonic() + limits.timeout_s, limits.timeout_s, allowed, stop)
            return _read(strict_json.decode(line))
        except SlotoolError as error:
            self.alive_and_well = False
            if not isinstance(error, strict_json.JsonError):
                return error
            return WorkerError(f"capturing {source.name}: its process answered nonsense ({error})")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.alive_and_well = False
            return WorkerError(f"capturing {source.name}: its process answered nonsense ({type(error).__name__})")

    def _line(
        self, source: Source, deadline: float, timeout_s: float, allowed_bytes: int, stop: threading.Event | None
    ) -> bytes:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if poll.poll(_TICK_S * 1000):
                received = os.read(self._answers, 1 << 20)
                if not received:
                    raise self._death(source)
                self._unread += received
            elif self._process.poll() is not None:
                # A child of its own may hold the pipe open after its death.
                raise self._death(source)
            elif stop and stop.is_set():
                raise RunError(f"capturing {source.name} was called off")
            elif time.monotonic() > deadline:
                raise TimedOut(
                    f"capturing {source.name} took longer than {timeout_s:g} s and was stopped; "
                    "see whether its code waits for something, or allow more with --timeout"
                )
            elif (taken := _resident_bytes(self._process.pid)) > allowed_bytes:
                raise RunError(
                    f"capturing {source.name} took {taken / 1e9:.1f} GB of memory and was stopped at the limit of "
                    f"{allowed_bytes / 1e9:.1f} GB; use a smaller network, or a machine with more memory"
                )
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _death(self, source: Source) -> WorkerError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerError(f"capturing {source.name}: its code closed the pipe to slotool and went on")
        how = f"ended the process with exit code {code}" if code >= 0 else f"crashed ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            how = "was killed (SIGKILL), as the system does when memory runs out"
        return WorkerError(
            f"capturing {source.name}: the model's code {how} before there was a graph; "
            "see whether it can be built and called in a Python of its own"
        )


def _read(answer: dict[str, Any]) -> OperatorGraph | SlotoolError:
    if "graph" in answer:
        return OperatorGraph.from_document(strict_json.decode(answer["graph"]))
    kind = getattr(slotool.errors, str(answer["error"]), RunError)
    known = isinstance(kind, type) and issubclass(kind, SlotoolError)
    return (kind if known else RunError)(str(answer["sentence"]))


def _resident_bytes(process: int) -> int:
    """Of a process and all in its session, as far as the system shows them; 0 when it is gone."""
    pages = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold anything but ends in the last bracket: state, parent, group, session.
            after = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == process:
                pages += int(after[21])
        except (OSError, IndexError, ValueError):
            # It ended meanwhile.
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
