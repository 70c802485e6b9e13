"""Times of real processes beside each other: what one takes from another is counted, and begins at one instant."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_profiling_colocated import SETTINGS, measured
from test_profiling_timer import spin

from slotool.profiling.barrier import SharedMemoryBarrier, colocated_samples, coordinate, stopped_share
from slotool.profiling.measurers.colocated import MAX_OTHERS
from slotool.profiling.plan import combinations_of
from slotool.timing.interference import Interference
from tests.profiling.conftest import MakeSubject

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count run-queue delay"
)
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process is given one core only")


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


def test_all_members_begin_at_one_instant_and_stop_when_the_slowest_has_enough() -> None:
    barrier = SharedMemoryBarrier.create(2)
    pauses, spans = (0.001, 0.01), {}
    waits = [threading.Event() for _ in pauses]

    def member(place: int) -> None:
        mine = SharedMemoryBarrier(barrier.path, 2)
        spans[place] = mine.run(place, lambda: waits[place].wait(pauses[place]), 1)
        mine.close()

    threads = [threading.Thread(target=member, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    assert coordinate(barrier, 6, (0.0, 30.0), lambda: True)
    for thread in threads:
        thread.join()
    barrier.close()
    fast, slow = spans[0].samples, spans[1].samples
    assert stopped_share([spans[0], spans[1]]) == 0.0
    assert abs(fast[0, 0] - slow[0, 0]) < 0.05
    assert len(slow) >= 8
    assert len(fast) > 2 * len(slow)
    assert all(len(s) >= 6 for s in colocated_samples([fast, slow]))


@two_cores
def test_two_that_share_a_core_slow_each_other_down_more_than_on_cores_of_their_own(
    subject: MakeSubject, tmp_path: Path
) -> None:
    """Both in the same minute, so that whatever else the machine does is part of both."""
    subjects = [subject("one", "work"), subject("two", "work")]
    ratios = {}
    for placement in ("shared", "split"):
        settings = replace(SETTINGS, placement=placement, rule=replace(SETTINGS.rule, runs=40))
        rows = measured(combinations_of(subjects, [2], settings), settings, tmp_path / f"{placement}.parquet").rows
        assert rows["affinity"].nunique() == (1 if placement == "shared" else 2)
        undisturbed = "others" in rows and (rows["others"] <= MAX_OTHERS).all()
        ratios[placement] = rows["degradation_ratio"].min() if undisturbed else np.nan
    if np.isnan(list(ratios.values())).any():
        pytest.skip("the rows state that other processes ran, so that they are no basis for a comparison")
    assert ratios["split"] < ratios["shared"]
