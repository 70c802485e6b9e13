"""Worker process of the ``local`` engine: ``python -m slotool.serving.engines.local_worker OPTIONS``.

It starts with its cores and environment, loads every model, runs each at every point of its policy, reports that it is
ready, and then answers calls. Between two operators it checks whether its call is cancelled. It ends when the router
closes the socket, and dies with it. OPTIONS: JSON, see ``LocalInferenceEngine``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

from slotool import devices
from slotool.elastic import load_served
from slotool.models.signature import RowCountError
from slotool.printable import described
from slotool.process import die_with_parent, end_without_collecting, keep_freed_memory, limit_threads, schedule
from slotool.serving.engines.base import CallCancelled
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.messages import (
    CALL,
    CANCELLED,
    DONE,
    FAILED,
    MAX_MESSAGE_BYTES,
    MISCOUNTED,
    READY,
    REPLY,
    SharedTensors,
    decode_point,
    inputs_of_tensors,
    tensors_of_outputs,
)

# A slowed worker checks for cancellation this often; it does not sleep through a shorter rest.
MAX_SLEEP_S, SPUN_S = 1e-3, 2e-4


def main() -> int:
    options = json.loads(sys.argv[1])
    # Ctrl-C in the terminal is for the router, which drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(options["parent"])
    end_without_collecting()
    keep_freed_memory()
    if options["low_priority"]:
        # Serving workers need the core more.
        schedule(os.SCHED_IDLE)
    try:
        return _serve(options)
    except BrokenPipeError:  # the router has ended
        return 1


def _serve(options: dict[str, Any]) -> int:
    tensors = SharedTensors(options["tensors_fd"])
    router = socket.socket(fileno=options["socket_fd"])
    try:
        runners = _warm_runners(options)
    except Exception as error:
        router.send(REPLY.pack(FAILED, tensors.write_text(described(error))))
        return 1
    # Loaded objects stay: a full collection would stop a call for long.
    gc.collect()
    gc.freeze()
    if options["low_priority"]:
        schedule(os.SCHED_OTHER)
    for _, runner in runners:
        runner.model.set_cancellation_check(partial(_check_cancelled, tensors))
    router.send(REPLY.pack(READY, os.getpid()))
    while message := _received(router):
        try:
            began_s = time.perf_counter()
            reply = REPLY.pack(DONE, _answer(message, runners, tensors))
            if (factor := tensors.slowed) > 1.0:
                _wait(tensors, began_s + factor * (time.perf_counter() - began_s))
        except CallCancelled:
            reply = REPLY.pack(CANCELLED, 0)
        except RowCountError as error:
            reply = REPLY.pack(MISCOUNTED, tensors.write_text(str(error)))
        except Exception as error:
            reply = REPLY.pack(FAILED, tensors.write_text(described(error)))
            if devices.is_lost(options["device"]):
                # The router replaces this process.
                router.send(reply)
                return 1
        router.send(reply)
    return 0


def _received(router: socket.socket) -> bytes:
    try:
        return router.recv(MAX_MESSAGE_BYTES)
    except ConnectionResetError:
        return b""


def _warm_runners(options: dict[str, Any]) -> list[tuple[str, PointRunner]]:
    limit_threads(options["threads"])
    runners = []
    for entry in options["models"]:
        model = load_served(entry["path"], max_batch=entry["max_batch"], before=entry["before"])
        model = model.on(options["device"], options["precision"])
        runner = PointRunner(model, [decode_point(text.encode()) for text in entry["points"]])
        runner.warm(entry["batch_sizes"], warns=options["warns"])
        runners.append((entry["name"], runner))
    return runners


def _check_cancelled(tensors: SharedTensors) -> None:
    if tensors.cancelled:
        raise CallCancelled("the call was cancelled")


def _wait(tensors: SharedTensors, until_s: float) -> None:
    """Delay the answer of a slowed worker until ``until_s`` of ``time.perf_counter``."""
    while (left_s := until_s - time.perf_counter()) > 0:
        _check_cancelled(tensors)
        time.sleep(min(left_s, MAX_SLEEP_S) if left_s > SPUN_S else 0.0)


def _answer(message: bytes, runners: list[tuple[str, PointRunner]], tensors: SharedTensors) -> int:
    """Return the size of the packed outputs, bytes."""
    number, size = CALL.unpack_from(message)
    _check_cancelled(tensors)
    _, runner = runners[number]
    outputs = runner.run(inputs_of_tensors(tensors.unpack(size)), decode_point(message[CALL.size :]))
    return tensors.pack(tensors_of_outputs(outputs), after=size)


if __name__ == "__main__":
    sys.exit(main())
