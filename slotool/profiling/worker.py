"""The measuring process: restricts itself first, imports the backend after, then answers one request per line.

Started as ``python -m slotool.profiling.worker OPTIONS`` with OPTIONS a JSON object (see ``MeasuringWorker``).
Its first line says what it found in force; then each request line (see ``Bench``) gets one answer line. It ends when
its standard input closes, and dies with its parent.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from slotool.process import die_with_parent, end_without_collecting, keep_freed_memory, thread_variables

if TYPE_CHECKING:
    from slotool.profiling.backends import Backend
    from slotool.profiling.bench import Bench, StreamBench

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
    for line in requests:
        bench.handle(json.loads(line), lambda message: _say(answers, message))
    return 0


def _take_over_streams() -> tuple[TextIO, TextIO]:
    """The pipes to the parent, moved away from 0 and 1, so that no library can read or write them."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def _start(options: dict[str, Any]) -> tuple[Bench | StreamBench, dict[str, Any]]:
    started, threads = time.perf_counter(), int(options["threads"])
    os.sched_setaffinity(0, options["affinity"])
    os.environ.update(thread_variables(threads))
    # As the workers of `serve` do; and so a latency does not depend on the networks measured before.
    keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # All libraries then number devices alike, as nvidia-smi does.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    from slotool.profiling.backends import backend_class
    from slotool.profiling.bench import Bench
    from slotool.timing.timer import StoppingRule

    rule, affinity = StoppingRule(**options["rule"]), sorted(os.sched_getaffinity(0))

    def make(threads: int | None = None) -> Backend:
        return backend_class(options["backend"])(options["device"], threads, options["seed"], options["precision"])

    backend = make(threads)
    # Keras collects garbage before each network: among what libraries made as they were imported there is none.
    gc.freeze()
    in_force = {"affinity": affinity, "threads": backend.threads(), "pools": _pools()}
    _verify(options, in_force)
    first = Bench(backend, affinity, rule)
    bench: Bench | StreamBench = first
    if options["streams"]:
        from slotool.profiling.bench import StreamBench

        bench = StreamBench(first, lambda: Bench(make(), affinity, rule))
    hello = {"pid": os.getpid(), **in_force, "device": bench.device(), "start_s": time.perf_counter() - started}
    return bench, hello


def _pools() -> dict[str, int]:
    """Threads of each OpenMP and BLAS pool in this process, as the loaded libraries report them."""
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
