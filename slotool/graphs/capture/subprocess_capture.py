"""Capture in a process of its own: a model's code may crash, hang or eat all memory, and costs itself alone."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
from slotool.errors import GraphError, RunError, SlotoolError, TimedOut, WorkerError
from slotool.graphs.capture.sources import Source
from slotool.graphs.graph import OperatorGraph
from slotool.machine import usable_memory

DEFAULT_TIMEOUT_S = 600.0
# Graph of a source, the error of its capture, or such an answer for each of several networks that it makes, by name.
Answer = OperatorGraph | SlotoolError | list[tuple[str, OperatorGraph | SlotoolError]]
# Share of the memory available at the start for a capture.
MEMORY_SHARE = 0.9
# Networks that one process captures before another begins afresh: imports are paid for once, and memory is given back.
CHUNK = 16
_TICK_S = 0.2
_CODE = "import sys; sys.path.append({root!r}); from slotool.graphs.capture.worker import main; main()"


@dataclass(frozen=True)
class Limits:
    """Limits of one model's capture: seconds, including loading and imports, and bytes of memory.

    None for the latter means most of the available memory.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_bytes: int | None = None


def all_captured_apart(
    sources: Sequence[Source], limits: Limits | None = None, stop: threading.Event | None = None
) -> Iterator[Answer]:
    """Yield the answers of all sources in order, until ``stop`` is set.

    One process does all of one module, so that libraries are imported once; after a death another continues with the
    rest. Output of the models' code, on stdout too, goes to stderr.
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
) -> Iterator[tuple[Source, Answer]]:
    """Yield every source with its graph or error, in order of completion, with several ``processes``.

    Closing the iterator, or an interrupt, ends the processes.
    """
    results: SimpleQueue[tuple[Source, Answer] | BaseException] = SimpleQueue()
    stop = threading.Event()
    size = max(1, min(CHUNK, len(sources) // max(1, processes)))
    chunks = [sources[first : first + size] for first in range(0, len(sources), size)]

    def capture(chunk: Sequence[Source]) -> None:
        try:
            for source, answer in zip(chunk, all_captured_apart(chunk, limits, stop), strict=False):
                results.put((source, answer))
        except BaseException as error:
            results.put(error)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for chunk in chunks:
                pool.submit(capture, chunk)
            for _ in sources:
                answer = results.get()
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
    # A session of its own: Ctrl-C reaches the parent alone, which ends all processes that the model started.
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
        # The process may have ended.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reading)


class _Worker:
    """The parent's end of the pipe."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int):
        self._process, self._answers, self._unread = process, answers, b""
        self.alive_and_well = True

    def answer(self, source: Source, limits: Limits, stop: threading.Event | None = None) -> Answer:
        """Return the worker's result for the next source, or the reason for none."""
        allowed = limits.memory_bytes or int(MEMORY_SHARE * usable_memory())

        def read() -> dict[str, Any]:
            line = self._line(source, time.monotonic() + limits.timeout_s, limits.timeout_s, allowed, stop)
            return strict_json.convert(strict_json.decode(line), dict[str, Any])

        try:
            first = read()
            return _several(source, first["processes"], read) if "processes" in first else _read(first)
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
            elif (resident := _resident_bytes(self._process.pid)) > allowed_bytes:
                raise RunError(
                    f"capturing {source.name} took {resident / 1e9:.1f} GB of memory and was stopped at the limit of "
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


def _several(source: Source, processes: int, read: Callable[[], dict[str, Any]]) -> Answer:
    """Return the networks of a source in order, from lines until every process has ended its own."""
    by_place: dict[int, tuple[str, OperatorGraph | SlotoolError]] = {}
    while processes:
        if answer := read():
            by_place[int(answer["at"])] = (str(answer["name"]), _read(answer))
        else:
            processes -= 1
    if not by_place:
        return GraphError(f"{source.called} makes no network")
    ids: dict[str, str] = {}
    for name, network in by_place.values():
        if isinstance(network, OperatorGraph) and ids.setdefault(name, network.id) != network.id:
            return GraphError(f"{source.called} makes two different networks named {name}; each needs its own name")
    return [by_place[place] for place in sorted(by_place)]


def _read(answer: dict[str, Any]) -> OperatorGraph | SlotoolError:
    if "graph" in answer:
        return OperatorGraph.from_document(strict_json.decode(answer["graph"]))
    kind = getattr(slotool.errors, str(answer["error"]), RunError)
    is_ours = isinstance(kind, type) and issubclass(kind, SlotoolError)
    return (kind if is_ours else RunError)(str(answer["sentence"]))


def _resident_bytes(process: int) -> int:
    """Return the resident bytes of a process and its session, as far as shown; 0 when it is gone."""
    pages = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold anything but ends in the last bracket: state, parent, group, session.
            after = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == process:
                pages += int(after[21])
        except (OSError, IndexError, ValueError):
            # The process ended meanwhile.
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
