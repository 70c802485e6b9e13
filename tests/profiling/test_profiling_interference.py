"""What others take from a measurement is seen, thrown away, and said."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_profiling_timer import FakeClock, call_taking

from slotool.machine import gpu_models
from slotool.process import cores_by_preference
from slotool.timing.interference import Interference
from slotool.timing.timer import MAX_REPEATS, MeasurementHooks, StoppingRule, measure

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count run-queue delay"
)


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: the processes are as users have them, whose times are compared."""


@contextmanager
def on_one_core() -> Iterator[int]:
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, [core])
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@needs_schedstat
def test_a_rival_on_the_same_core_is_counted_in_seconds() -> None:
    """While both want the core each has it at most half of the time; other work of the machine makes it less."""
    context = multiprocessing.get_context("fork")
    begun, ended = context.Event(), context.Event()
    with on_one_core() as core:
        lost, steal_only = Interference([core]), Interference([core], oversubscribed=True)
        rival = context.Process(target=spin_until, args=(begun, ended))
        rival.start()
        assert begun.wait(60)
        lost(), steal_only()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        spin(0.3)
        lost_s, steal_s = lost(), steal_only()
        waited_s = time.perf_counter() - started_s - (time.process_time() - cpu_s)
        ended.set()
        rival.join()
    tick_s = 0.05  # the kernel counts stolen time in ticks, and its own accounts end a little later than ours
    assert 0.05 < lost_s < waited_s + tick_s
    assert steal_s <= lost_s + tick_s


@needs_schedstat
def test_threads_that_wait_at_the_same_time_lose_it_once() -> None:
    """Each of four waits three quarters of the time, together three times as long as it lasts."""
    ready, begin = threading.Barrier(5), threading.Barrier(5)

    def compute() -> None:
        ready.wait(60)
        begin.wait(60)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # without Python's lock

    with on_one_core() as core, ThreadPoolExecutor(4) as pool:
        done = [pool.submit(compute) for _ in range(4)]
        ready.wait(60)
        with Interference([core]) as lost:
            started_s = time.perf_counter()
            begin.wait(60)
            for future in done:
                future.result(60)
            lost_s, took_s = lost(), time.perf_counter() - started_s
    assert 0.25 * took_s < lost_s < took_s + 0.05


def spin_until(begun: Any, ended: Any) -> None:
    begun.set()
    while not ended.is_set():
        spin(0.001)


def test_interrupted_samples_are_measured_again() -> None:
    clock, lost = FakeClock(), iter([0.0, 0.5, 0.0, 0.0, 0.5] + [0.0] * 100)
    found = measure(
        call_taking(clock, [], [0.01]), StoppingRule(runs=20), clock, MeasurementHooks(lost=lambda: next(lost))
    )
    assert (len(found.samples_s), found.discarded, found.interrupted) == (20, 2, False)


def test_a_machine_that_is_never_quiet_is_taken_as_it_is_and_said() -> None:
    clock = FakeClock()
    found = measure(call_taking(clock, [], [0.01]), StoppingRule(runs=20), clock, MeasurementHooks(lost=lambda: 1.0))
    assert found.interrupted
    assert found.discarded == 0
    assert 20 < len(found.samples_s) <= MAX_REPEATS * 20 + 1


def test_a_device_is_waited_for_once_per_sample_and_its_own_clock_is_kept() -> None:
    clock, waits = FakeClock(), []

    class Halved:
        def start(self) -> None:
            self.began = clock.now

        def stop(self) -> None:
            waits.append("stop")

        def seconds(self) -> float:
            return (clock.now - self.began) / 2

    def wait() -> None:
        waits.append("wait")
        clock.now += 1e-3

    hooks = MeasurementHooks(wait=wait, stopwatch=Halved())
    found = measure(call_taking(clock, [], [1e-6]), StoppingRule(runs=20), clock, hooks)
    assert found.device_samples_s is not None
    np.testing.assert_allclose(found.device_samples_s, found.samples_s / 2, rtol=0.01)
    assert len(waits) >= 22


def test_hyperthread_siblings_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for core, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert cores_by_preference(str(tmp_path)) == [3, 2, 1, 0]
    (tmp_path / "cpu3" / "topology" / "thread_siblings_list").write_text("2-3\n")
    (tmp_path / "cpu2" / "topology" / "thread_siblings_list").write_text("2-3\n")
    (tmp_path / "cpu1" / "topology" / "thread_siblings_list").write_text("0-1\n")
    (tmp_path / "cpu0" / "topology" / "thread_siblings_list").write_text("0-1\n")
    assert cores_by_preference(str(tmp_path)) == [3, 1, 2, 0]


def test_gpus_are_known_by_what_their_driver_says(tmp_path: Path) -> None:
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:01:00.0", "NVIDIA A100")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    assert gpu_models(str(tmp_path)) == ["NVIDIA A100", "NVIDIA H200"]
    assert gpu_models(str(tmp_path / "absent")) == []


STOPPED_S = 2.0


def sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("does", [spin, sleep])
def test_a_sample_during_which_the_process_was_stopped_is_measured_again(does: Callable[[float], None]) -> None:
    """By SIGSTOP, which no counter of the system's tells; also where the call itself waits, as for a device."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=measure_and_stop_once, args=(does, results))
    child.start()
    stopped, status = os.waitpid(child.pid, os.WUNTRACED)
    assert (stopped, os.WIFSTOPPED(status)) == (child.pid, True)
    time.sleep(STOPPED_S)
    os.kill(child.pid, signal.SIGCONT)
    longest_s, discarded, interrupted = results.get(timeout=60)
    os.waitpid(child.pid, 0)
    # A machine that is never quiet is taken as it is, and the result states so.
    assert interrupted or (longest_s < STOPPED_S and discarded >= 1)


def measure_and_stop_once(does: Callable[[float], None], results: Any) -> None:
    calls = itertools.count()

    def call() -> None:
        does(0.005)
        if next(calls) == 30:
            os.kill(os.getpid(), signal.SIGSTOP)

    idle_s = Interference(sorted(os.sched_getaffinity(0))).idle_s
    measured = measure(call, StoppingRule(runs=60, max_seconds=0.0), hooks=MeasurementHooks(idle=idle_s))
    results.put((float(measured.samples_s.max()), measured.discarded, measured.interrupted))


def test_what_a_call_waits_by_nature_is_kept() -> None:
    """Idle times that belong to the call vary too: only one far beyond the usual is a stop."""
    clock, idle = FakeClock(), [0.001, 0.002, 0.004, 0.003] * 10
    told = iter(pair for value in idle for pair in (0.0, value))
    rule = StoppingRule(runs=20, precision=1.0, max_samples=20)
    found = measure(call_taking(clock, [], [0.01]), rule, clock, MeasurementHooks(idle=lambda: next(told)))
    assert (found.discarded, found.interrupted, len(found.samples_s)) == (0, False, 20)
