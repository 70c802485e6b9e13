"""The measuring process: restricts itself first, imports the backend after, then answers one request per line.

Started as ``python -m slotool.profiling.worker OPTIONS`` with OPTIONS a JSON object (see ``MeasuringWorker``).
Its first line says what it found in force; then each request line (see ``Bench``) gets one answer line. It ends when
its standard input closes, and dies with its parent.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from slotool.process import die_with_parent, end_without_collecting, keep_freed_memory, thread_variables

if TYPE_CHECKING:
    from slotool.profiling.backends import Backend
    from slotool.profiling.bench import Bench, StreamBench
    from slotool.timing.timer import StoppingRule

# Nothing above may import numpy, torch or tensorflow: they read their thread counts when they are loaded.


_ANSWERING = threading.Lock()


def main() -> int:
    options = json.loads(sys.argv[1])
    requests, answers = _take_over_streams()
    die_with_parent(int(options["parent"]))
    end_without_collecting()
    try:
        bench, hello = _start(options)
    except Exception as error:
        _say(answers, _refusal(error))
        return 1
    _say(answers, hello)
    if isinstance(bench, Forks):
        bench.serve(requests, answers)
    else:
        _serve(bench, requests, answers)
    return 0


def _serve(bench: Bench | StreamBench, requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        bench.handle(json.loads(line), lambda message: _say(answers, message))


def _take_over_streams() -> tuple[TextIO, TextIO]:
    """Return the pipes to the parent, moved away from 0 and 1, so that no library can read or write them."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def _start(options: dict[str, Any]) -> tuple[Bench | StreamBench | Forks, dict[str, Any]]:
    started, threads = time.perf_counter(), int(options["threads"])
    os.sched_setaffinity(0, options["affinity"])
    os.environ.update(thread_variables(threads))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from slotool.profiling.backends import backend_class
    from slotool.profiling.bench import Bench, StreamBench
    from slotool.timing.timer import StoppingRule

    rule, affinity = StoppingRule(**options["rule"]), sorted(os.sched_getaffinity(0))

    def make(threads: int | None = None) -> Backend:
        return backend_class(options["backend"])(options["device"], threads, options["seed"], options["precision"])

    backend = make(threads)
    # Keras collects garbage before each network; objects of imported libraries are none.
    gc.freeze()
    in_force = {"affinity": affinity, "threads": backend.threads(), "pools": _pools()}
    _verify(options, in_force)
    bench: Bench | StreamBench | Forks
    if options["streams"]:
        bench = StreamBench(Bench(backend, affinity, rule), lambda: Bench(make(), affinity, rule))
    elif backend.forks and backend.device == "cpu":
        bench = Forks(backend, affinity, rule)
    else:
        # Like workers of `serve`; latencies then do not depend on the subjects measured before.
        keep_freed_memory()
        bench = Bench(backend, affinity, rule)
    hello = {"pid": os.getpid(), **in_force, "device": bench.device(), "start_s": time.perf_counter() - started}
    return bench, hello


# Bytes of the largest block freed so far in a program that has imported torchvision or timm: 1.94 MB; torch alone: .97.
LARGEST_FREED = 2_000_000


class Forks:
    """Process for each subject that answers its requests as ``Bench``, forked before any subject runs.

    glibc returns freed memory to the system beyond twice the largest block that was ever freed; so in a process that
    has measured other networks, the same one may take half as long. The first process frees such a block as programs
    that run networks have when they begin.
    """

    def __init__(self, backend: Backend, affinity: list[int], rule: StoppingRule):
        self._backend, self._affinity, self._rule = backend, affinity, rule
        self._child: tuple[int, TextIO, TextIO] | None = None
        bytearray(LARGEST_FREED)
        # Computed here, children share it.
        _ = backend.weight_block

    def device(self) -> dict[str, Any]:
        """Return the device as ``Bench.device`` for a CPU."""
        return {}

    def serve(self, requests: TextIO, answers: TextIO) -> None:
        """Pass each request to the child, and its answer back; if it has died, end this process like it."""
        for request in requests:
            # A request without a subject concerns the last one.
            if self._child is None or '"subject":' in request:
                self._child = self._forked()
            child, ask, reply = self._child
            ask.write(request)
            ask.flush()
            line = reply.readline()
            if not line:
                _end_as(os.waitpid(child, 0)[1])
            answers.write(line)
            answers.flush()

    def _forked(self) -> tuple[int, TextIO, TextIO]:
        from slotool.profiling.bench import Bench

        if self._child is not None:
            pid, *pipes = self._child
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for pipe in pipes:
                pipe.close()
        parent, (read_request, ask), (read_answer, reply) = os.getpid(), os.pipe(), os.pipe()
        child = os.fork()
        if child:
            os.close(read_request)
            os.close(reply)
            return child, os.fdopen(ask, "w"), os.fdopen(read_answer)
        try:
            die_with_parent(parent)
            os.close(ask)
            os.close(read_answer)
            _serve(Bench(self._backend, self._affinity, self._rule), os.fdopen(read_request), os.fdopen(reply, "w"))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _end_as(status: int) -> NoReturn:
    """End this process like a child of ``status``."""
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) or 1)


def _pools() -> dict[str, int]:
    """Return the threads of each OpenMP and BLAS pool in this process, as the loaded libraries report them."""
    from threadpoolctl import threadpool_info

    return {pool["prefix"]: int(pool["num_threads"]) for pool in threadpool_info()}


def _verify(options: dict[str, Any], in_force: dict[str, Any]) -> None:
    from slotool.errors import WorkerError

    threads, affinity = int(options["threads"]), sorted(options["affinity"])
    if in_force["affinity"] != affinity:
        raise WorkerError(f"asked for the cores {affinity}, the system gave {in_force['affinity']}")
    if in_force["threads"] != threads:
        raise WorkerError(f"asked for {threads} threads, {options['backend']} uses {in_force['threads']}")
    wide = {name: count for name, count in in_force["pools"].items() if count > threads}
    if wide:
        raise WorkerError(f"asked for {threads} threads, these pools have more: {wide}")


def _refusal(error: Exception) -> dict[str, Any]:
    from slotool.errors import InputError
    from slotool.profiling.bench import sentence

    return {"error": sentence(error), "input": isinstance(error, InputError)}


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    # In one piece: several threads may answer.
    with _ANSWERING:
        answers.write(json.dumps(message) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.exit(main())
