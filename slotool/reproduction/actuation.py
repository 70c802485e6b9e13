"""What it takes to change the network that serves: actuating a subnet in place, beside extracting and loading one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from slotool.elastic.supernets.layers import LAYERS
from slotool.elastic.supernets.supernet import Supernet
from slotool.graphs.torch_module import GraphModule

REPEATS = 200

Clock = Callable[[], float]


@dataclass(frozen=True)
class Actuation:
    """Median seconds, of this thread's CPU time. ``forward_s``: one call of one example at the largest point.

    ``switch_s``: what a call costs more after one at the other end of the range than after one at its own;
    ``extracted_switch_s``: the same of two extracted subnets that are both loaded. ``load_s``: reading the largest
    subnet from a file into a module that is ready to answer. ``weight_bytes``: of that subnet.
    """

    forward_s: float
    switch_s: float
    extracted_switch_s: float
    load_s: float
    weight_bytes: int


def measured_actuation(model: Supernet, one: np.ndarray, folder: Path, repeats: int = REPEATS) -> Actuation:
    """Actuation and loading of ``model``, measured by turns. ``one``: float32, one example; ``folder``: for a file."""
    first, last = model.points[0], model.points[-1]
    small, large = (model.extract(model.subnets[point]) for point in (first, last))
    return Actuation(
        forward_s=median_s(lambda: model.forward(one, last), repeats),
        switch_s=switching_s(lambda: model.forward(one, first), lambda: model.forward(one, last), repeats),
        extracted_switch_s=switching_s(lambda: run_once(small, one), lambda: run_once(large, one), repeats),
        load_s=loading_s(large, folder / "subnet.safetensors", max(3, repeats // 10)),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in large.state_dict().values()),
    )


def switching_s(
    first: Callable[[], object], second: Callable[[], object], repeats: int, *, clock: Clock = time.thread_time
) -> float:
    """Median of what a round of both by turns costs more than a round of each twice, per call. ``clock``: as in
    ``interleaved_s``."""
    extra = np.empty(repeats)
    for i in range(repeats):
        seconds = {}
        for before, now in ((first, first), (second, first), (second, second), (first, second)):
            before()
            started = clock()
            now()
            seconds[before, now] = clock() - started
        turns, stays = seconds[second, first] + seconds[first, second], seconds[first, first] + seconds[second, second]
        extra[i] = (turns - stays) / 2
    return float(np.median(extra))


def loading_s(module: GraphModule, file: Path, repeats: int) -> float:
    """Median seconds of reading ``module``'s weights from ``file``, where they are written first."""
    save_file(module.state_dict(), str(file))

    def load() -> None:
        fresh = GraphModule(module.graph, device="meta", layers=LAYERS)
        fresh.load_state_dict(load_file(str(file)), assign=True)

    return median_s(load, repeats)


def interleaved_s(*calls: Callable[[], object], repeats: int = REPEATS, clock: Clock = time.thread_time) -> list[float]:
    """Median seconds of each; they take turns, so that drift hits all alike; the second run of a turn counts.

    Seconds are those of ``clock``: this thread's, in which other programs' turns on the core do not count; of calls
    that wait for a device ``time.perf_counter``.
    """
    seconds = np.empty((len(calls), repeats))
    for i in range(repeats):
        for c, call in enumerate(calls):
            call()
            started = clock()
            call()
            seconds[c, i] = clock() - started
    return [float(value) for value in np.median(seconds, axis=1)]


def median_s(call: Callable[[], object], repeats: int = REPEATS, *, clock: Clock = time.thread_time) -> float:
    """Median seconds of one call, as ``interleaved_s``."""
    return interleaved_s(call, repeats=repeats, clock=clock)[0]


def run_once(module: GraphModule, x: np.ndarray) -> np.ndarray:
    """The module's answer to ``x``, float32 as its input."""
    with torch.inference_mode():
        return np.asarray(module(torch.from_numpy(x)).numpy())
