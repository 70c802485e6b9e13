"""Requests of a measuring process: a backend, its prepared model, and the ways to time it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from slotool.energy import EnergyMeter
from slotool.errors import InputError, SlotoolError
from slotool.printable import described
from slotool.process import bound_to, collector_off
from slotool.profiling.backends import Backend
from slotool.profiling.barrier import SharedMemoryBarrier
from slotool.profiling.out_of_memory import OUT_OF_MEMORY
from slotool.timing.interference import Interference
from slotool.timing.timer import MAX_LOST, Call, MeasurementHooks, StoppingRule, measure

# Decimals of seconds; further ones are noise that would only fill the journal.
DIGITS = 11
# Inferences whose operators are timed: seconds, limits of their number, pieces of them, and how many times as many at
# most, if other processes disturb pieces.
WALKS_S, MIN_WALKS, MAX_WALKS, WALK_PIECES, WALK_TRIES = 0.3, 4, 200, 4, 3
# Calls whose joules are counted: seconds of them, on a device. RAPL's counters move once a millisecond, those of GPUs
# some ten times a second.
COUNTED_S, COUNTED_ON_DEVICE_S = 0.05, 0.5
Say = Callable[[dict[str, Any]], None]
NOT_SETTLED = "durations had not settled when sampling began"


class Bench:
    """Handler of the requests of ``MeasuringWorker``, in a process bound to ``cores``; answers are JSON values.

    ``measure`` times a subject alone, ``operators`` its operators. After ``prepare``, ``sample`` times the subject
    again, ``colocated`` runs it with co-runners, and ``keep_busy`` runs it as a co-runner that is not timed. ``device``
    returns the device and its free memory.
    """

    def __init__(self, backend: Backend, cores: list[int], rule: StoppingRule):
        self._backend, self._rule = backend, rule
        self._interference = Interference(cores, oversubscribed=backend.oversubscribed)
        self._hooks = MeasurementHooks(
            begin=self._begin,
            lost=self._lost_s,
            idle=self._interference.idle_s,
            wait=backend.wait,
            stopwatch=backend.stopwatch(),
            ramp_up_s=backend.accelerator.ramp_up_s if backend.accelerator else 0.0,
            single=backend.accelerator is not None,
        )
        self._call: Call | None = None
        self._calls_per_sample = 1

    def handle(self, request: Mapping[str, Any], say: Say) -> None:
        say(self.answer(request))

    def require_streams(self) -> None:
        """Raise ``InputError`` unless several backends can use streams of their own in one process."""
        backend = self._backend
        if backend.accelerator is None or not backend.accelerator.streams:
            raise InputError(
                f"the {backend.name} backend has no streams on {backend.device}; use --sharing processes, or "
                "--backend torch"
            )

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread uses a stream of this bench, and waits for that only."""
        return self._backend.accelerator.stream() if self._backend.accelerator else nullcontext()

    def leave(self) -> None:
        """Free the model and its memory."""
        self._call = None
        self._backend.release()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the measurement, or the reason why it failed; ``healthy``: this process can measure the next one."""
        ways = {
            "measure": self.measure,
            "prepare": self.prepare,
            "run colocated": self.colocated,
            "keep busy": self.keep_busy,
            "operators": self.operators,
            "device": self.device,
        }
        try:
            return {"status": "ok", **ways[request.get("do", "measure")](request), "healthy": True}
        except Exception as error:
            failure = self._failure(error)
        # The error is gone, and with it the objects that its frames held.
        if failure["status"] == OUT_OF_MEMORY:
            self._call = None
            self._backend.release()
        return failure

    def measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Time ``subject`` at ``batch_size`` by the worker's rule."""
        return self._place(request) | self._timed(self._rule) | self._energy()

    def operators(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Time each operator of ``subject`` while the network runs at ``batch_size``.

        Returns ``calls_s``, median seconds as columns of ``Backend.walk``, and ``spreads``, half-widths of their 95 %
        intervals as shares of them. ``interrupted``: other processes ran all the time; the whole is then the lower
        quartile, as noise only adds.
        """
        self._call = None  # both together may not fit
        walk = self._backend.walk(self._backend.open(request["subject"]), int(request["batch_size"]))
        once_s = float(walk(1).sum())
        count = min(MAX_WALKS, max(MIN_WALKS, math.ceil(WALKS_S / once_s)))
        pieces: dict[bool, list[np.ndarray]] = {True: [], False: []}
        self._begin()
        with collector_off():
            for _ in range(WALK_TRIES * WALK_PIECES):
                self._lost_s()
                began = time.perf_counter()
                piece = walk(math.ceil(count / WALK_PIECES))
                # Of all that a walk takes: it also makes sessions, and times the network without its operators.
                lost = self._lost_s() / (time.perf_counter() - began)
                shortened = MAX_LOST < lost < 1.0 and not self._backend.walks_the_fastest
                pieces[lost > MAX_LOST].append(_without(piece, lost) if shortened else piece)
                if sum(map(len, pieces[False])) >= count:
                    break
        interrupted = sum(map(len, pieces[False])) < MIN_WALKS
        seconds = np.concatenate([*pieces[False], *(pieces[True] if interrupted else [])])
        low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
        # Together as long as an inference: medians alone leave out what now one operator takes longer, now another.
        whole_s = np.quantile(seconds.sum(axis=1), 0.25 if interrupted else 0.5)
        calls_s = middle * (whole_s / middle.sum())
        # Of a normal sample, by its quartiles.
        spreads = 1.57 * (high - low) / np.sqrt(len(seconds)) / np.maximum(calls_s, 1e-12)
        return {"calls_s": calls_s.tolist(), "spreads": spreads.tolist(), "interrupted": interrupted}

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Place ``subject`` and time it shortly, so that it is warm and the calls per sample are known."""
        placed, timed = self._place(request), self._timed(replace(self._rule, runs=1, max_seconds=0.0))
        return placed | {name: timed[name] for name in ("first_call_s", "calls_per_sample")} | self._energy()

    def colocated(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the prepared model as ``member`` of the ``barrier``; returns its samples and its stops."""
        barrier = SharedMemoryBarrier(request["barrier"], int(request["members"]))
        try:
            idle = self._interference.idle_s
            self._begin_watch()
            spans = barrier.run(int(request["member"]), self._ready(), self._calls_per_sample, idle, self._backend.wait)
            throttled = self._backend.throttled()
        except BaseException:
            barrier.fail()
            raise
        finally:
            barrier.close()
        return {
            "spans": spans.samples.tolist(),
            "stops": spans.stops.tolist(),
            "throttled": throttled,
            **self._watched(),
        }

    def keep_busy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the prepared model as ``member`` of the ``barrier``, without timing it."""
        barrier = SharedMemoryBarrier(request["barrier"], int(request["members"]))
        try:
            barrier.keep_busy(int(request["member"]), self._ready(), self._backend.wait)
        except BaseException:
            barrier.fail()
            raise
        finally:
            barrier.close()
        return {}

    def device(self, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return model, memory, settings and sharing of the device; nothing for a CPU."""
        accelerator = self._backend.accelerator
        if accelerator is None:
            return {}
        memory = accelerator.memory()
        return {
            "device_name": accelerator.name,
            "memory": None if memory is None else asdict(memory),
            "settings": "; ".join(f"{name} {value}" for name, value in accelerator.settings().items()),
            "colocation": accelerator.colocation(),
            "busy_percent": accelerator.readings.busy_percent(),
        }

    def _place(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._call = None  # free the last one first: both together may not fit
        started = time.perf_counter()
        subject = self._backend.open(request["subject"])
        opened = time.perf_counter()
        self._call = self._backend.prepare(subject, int(request["batch_size"]))
        took = {"open_s": opened - started, "prepare_s": time.perf_counter() - opened}
        device = self.device()
        about = {"device_name": device["device_name"], "device_settings": device["settings"]} if device else {}
        return {**took, **about, **self._backend.facts()}

    def _timed(self, rule: StoppingRule, hooks: MeasurementHooks | None = None) -> dict[str, Any]:
        call = self._ready()
        measured = measure(call, rule, hooks=hooks or self._hooks)
        self._calls_per_sample = measured.calls_per_sample
        columns = {
            "first_call_s": measured.first_call_s,
            "samples_s": _rounded(measured.samples_s),
            "calls_per_sample": measured.calls_per_sample,
            "discarded": measured.discarded,
            "interrupted": measured.interrupted,
            "measured_at": time.time(),
        }
        if measured.device_samples_s is not None:
            columns["device_samples_s"] = _rounded(measured.device_samples_s)
        return columns | self._watched(() if measured.settled else (NOT_SETTLED,))

    def _energy(self) -> dict[str, float]:
        """Return the joules of a call as a column; none where the machine counts none."""
        meter, call, calls = EnergyMeter(), self._ready(), 0
        if meter.joules() is None:
            return {}
        until = time.perf_counter() + (COUNTED_ON_DEVICE_S if self._backend.accelerator else COUNTED_S)
        while time.perf_counter() < until:
            call()
            self._backend.wait()
            calls += 1
        return {"energy_j": (meter.joules() or 0.0) / calls}

    def _begin(self) -> None:
        self._interference.look_again()
        self._begin_watch()

    def _begin_watch(self) -> None:
        if self._backend.watch is not None:
            self._backend.watch.begin()

    def _watched(self, remarks: Sequence[str] = ()) -> dict[str, Any]:
        """Return the columns of a row about its device; none for a CPU."""
        watch = self._backend.watch
        if watch is None:
            return {}
        columns = watch.columns()
        return {**columns, "remarks": "; ".join(filter(None, [*remarks, columns["remarks"]]))}

    def _failure(self, error: Exception) -> dict[str, Any]:
        if self._backend.is_out_of_memory(error):
            # A device's allocator goes on after it; a process whose own memory ran out may not.
            return {
                "status": OUT_OF_MEMORY,
                "reason": sentence(error),
                "healthy": self._backend.accelerator is not None,
            }
        return {"status": "failed", "reason": sentence(error), "healthy": isinstance(error, SlotoolError)}

    def _ready(self) -> Call:
        if self._call is None:
            raise InputError("no model is prepared: send prepare or measure first")
        return self._call

    def _lost_s(self) -> float:
        """Return seconds lost to other processes, infinite if the device lowered its clock meanwhile."""
        return float("inf") if self._backend.throttled() else self._interference()


def sentence(error: Exception) -> str:
    """Return an error as the parent reports it."""
    return " ".join(described(error).split())[:300]


def _without(seconds: np.ndarray, lost: float) -> np.ndarray:
    """Return times [inferences, calls] without the share ``lost``, taken from the longest inferences.

    Another process takes a core for milliseconds: it delays a few short inferences, and all long ones.
    """
    whole_s = seconds.sum(axis=1)
    longest_s = np.sort(whole_s)[::-1]
    limits_s = (np.cumsum(longest_s) - lost * whole_s.sum()) / np.arange(1, len(longest_s) + 1)
    return np.asarray(seconds * np.minimum(limits_s.max() / whole_s, 1.0)[:, None])


def _rounded(seconds: np.ndarray) -> list[float]:
    return [round(value, DIGITS) for value in seconds.tolist()]


class StreamBench:
    """Handler of requests as ``Bench``, for the ``seat`` and on the ``cores`` that a request names.

    ``first`` is the bench of the first seat, ``make`` makes the others: each has its own backend and weights. ``run
    colocated`` is answered from a thread at its end, so that other seats can be used meanwhile, everything else at
    once. ``leave`` frees a seat. Raises ``InputError`` for a backend without streams.
    """

    def __init__(self, first: Bench, make: Callable[[], Bench]):
        first.require_streams()
        self._first: Bench | None = first
        self._make = make
        self._seats: dict[int, Bench] = {}

    def device(self) -> dict[str, Any]:
        """Return the device as ``Bench.device``; called before any seat is taken."""
        assert self._first is not None
        return self._first.device()

    def handle(self, request: Mapping[str, Any], say: Say) -> None:
        """Answer by ``say``, now or later from a thread."""
        seat = int(request["seat"])
        if request["do"] == "leave":
            if seat in self._seats:
                self._seats.pop(seat).leave()
            say({"status": "ok", "seat": seat})
        elif request["do"] == "run colocated":
            threading.Thread(target=self._answer, args=(seat, request, say), name=f"stream-{seat}").start()
        else:
            self._answer(seat, request, say)

    def _answer(self, seat: int, request: Mapping[str, Any], say: Say) -> None:
        with bound_to(request["cores"]):
            bench = self._seat(seat)
            with bench.stream():
                answer = bench.answer(request)
        say({**answer, "seat": seat})

    def _seat(self, seat: int) -> Bench:
        if seat not in self._seats:
            self._seats[seat] = self._first or self._make()
            self._first = None
        return self._seats[seat]
