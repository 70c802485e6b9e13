"""A small network at batch 1 beside a large one at batch 64 that runs without a pause: on streams, and in processes.

The small one's p99 beside the large one is held against the longest that it can wait: on streams a kernel of the large
one, in processes its whole call.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import applications
from benchmarks.gpu_pieces.timing import captured
from slotool.graphs import OperatorGraph
from slotool.graphs.torch_module import GraphModule

# Of the Keras applications by size; the large one's batch.
SMALL, LARGE, LARGE_BATCH = 2, 30, 64
CALLS, REHEARSED_CALLS, PAUSE_S = 500, 5, 0.002
START_WITHIN_S = 90.0


def run(piece: Piece) -> None:
    graphs = applications(piece.sized(LARGE + 1, 2))
    small, large = graphs[piece.sized(SMALL, 0)], graphs[-1]
    batch = piece.sized(LARGE_BATCH, 2)
    piece.step("alone", lambda: alone(piece, small, large, batch))
    for sharing, beside in {"streams": on_a_stream, "processes": in_a_process}.items():
        for priority in (False, True) if sharing == "streams" else (False,):
            name = f"{sharing}, small one first" if priority else sharing
            piece.step(name, lambda beside=beside, priority=priority: shared(
                piece, small, large, batch, beside, priority
            ))  # fmt: skip


def alone(piece: Piece, small: OperatorGraph, large: OperatorGraph, batch: int) -> Figures:
    """Each without the other, and the longest kernel of the large one."""
    figures: Figures = {"small": small.name, "large": large.name, "large_batch": batch}
    call = network(large, batch, piece.device)
    figures["large_alone"] = quantiles(latencies(call, piece, piece.sized(20, 2)))
    figures["small_alone"] = quantiles(latencies(network(small, 1, piece.device), piece))
    if piece.on_gpu:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        figures["longest_kernel_s"] = max((event.device_time * 1e-6 for event in profile.events()), default=None)
    return figures


def shared(
    piece: Piece, small: OperatorGraph, large: OperatorGraph, batch: int, beside: Callable[..., Any], priority: bool
) -> Figures:
    """The small one beside the large one, with the calls that the large one ended meanwhile."""
    if not piece.on_gpu and beside is on_a_stream:
        raise Left("streams are those of a GPU")
    with own_stream(piece.device, -1 if priority else 0):
        call = network(small, 1, piece.device)
        with beside(large, batch, piece.device) as count:
            began, before = time.perf_counter(), count()
            figures = latencies(call, piece)
            seconds, ended = time.perf_counter() - began, count() - before
    return {"small_beside_large": quantiles(figures), "large_s": seconds / ended if ended else None}


def network(graph: OperatorGraph, batch: int, device: str) -> Callable[[], object]:
    """A call of a network of random weights, captured on a GPU."""
    torch.manual_seed(0)
    module = GraphModule(graph).eval().requires_grad_(False).to(device)
    x = torch.randn(batch, *graph.input_shape, device=device)
    return captured(lambda: module(x), device)


def latencies(call: Callable[[], object], piece: Piece, calls: int | None = None) -> np.ndarray:
    """Seconds of single calls with a pause between, as requests come; each waits for its own stream."""
    wait = torch.cuda.current_stream().synchronize if piece.on_gpu else lambda: None
    samples_s = []
    for _ in range(calls or piece.sized(CALLS, REHEARSED_CALLS)):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        call()
        wait()
        samples_s.append(time.perf_counter() - began)
    return np.array(samples_s)


def quantiles(seconds: np.ndarray) -> Figures:
    return {"p50_s": float(np.median(seconds)), "p99_s": float(np.quantile(seconds, 0.99))}


def own_stream(device: str, priority: int = 0) -> AbstractContextManager[Any]:
    return nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream(device, priority=priority))


@contextmanager
def on_a_stream(graph: OperatorGraph, batch: int, device: str) -> Iterator[Callable[[], int]]:
    """The large network on a stream and a thread of this process; yields how many of its calls have ended."""
    stop, ended = threading.Event(), multiprocessing.Value("q", 0)
    thread = threading.Thread(target=repeat, args=(graph, batch, device, stop, ended), daemon=True)
    thread.start()
    try:
        until_it_runs(lambda: int(ended.value))
        yield lambda: int(ended.value)
    finally:
        stop.set()
        thread.join(START_WITHIN_S)


@contextmanager
def in_a_process(graph: OperatorGraph, batch: int, device: str) -> Iterator[Callable[[], int]]:
    """The large network in a process of its own."""
    context = multiprocessing.get_context("spawn")
    stop, ended = context.Event(), context.Value("q", 0)
    process = context.Process(target=repeat, args=(graph, batch, device, stop, ended), daemon=True)
    process.start()
    try:
        until_it_runs(lambda: int(ended.value))
        yield lambda: int(ended.value)
    finally:
        stop.set()
        process.join(10.0)
        process.kill()


def repeat(graph: OperatorGraph, batch: int, device: str, stop: Any, ended: Any) -> None:
    """Call the network until ``stop`` is set, and count its calls in ``ended``."""
    with own_stream(device):
        call = network(graph, batch, device)
        while not stop.is_set():
            call()
            if device != "cpu":
                torch.cuda.current_stream().synchronize()
            ended.value += 1


def until_it_runs(count: Callable[[], int]) -> None:
    until = time.monotonic() + START_WITHIN_S
    while count() < 2:
        if time.monotonic() > until:
            raise TimeoutError(f"the large network has not run within {START_WITHIN_S:.0f} s")
        time.sleep(0.05)
