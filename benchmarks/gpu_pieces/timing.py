"""Timing of functions that are no subject of a campaign: as CUDA graphs on a GPU, as calls on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.gpu_pieces.piece import Figures
from slotool.timing.timer import MeasurementHooks, StoppingRule, measure
from slotool.transfers import cuda_graph

RULE = StoppingRule(runs=20, precision=0.01, max_seconds=0.3, max_samples=200)
# Of calls of at least so many seconds, which need neither a warm-up of the clock nor many samples.
LONG_S, LONG_RULE = 0.05, StoppingRule(runs=5, precision=0.01, max_seconds=0.3, max_samples=20)
REHEARSED = StoppingRule(runs=2, max_seconds=0.01, max_samples=3)


def captured(function: Callable[[], object], device: str) -> Callable[[], object]:
    """Return a call of ``function`` in inference mode: as a CUDA graph, on a CPU as it is."""

    @torch.inference_mode()
    def call() -> object:
        return function()

    return call if device == "cpu" else cuda_graph(device, call)


def timed(call: Callable[[], object], device: str, full: bool) -> Figures:
    """Seconds of a call and of waiting for it: median, 10th and 90th percentile of samples of one call each."""
    wait = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    call(), wait()
    began = time.perf_counter()
    call(), wait()
    is_long = time.perf_counter() - began > LONG_S
    rule = (LONG_RULE if is_long else RULE) if full else REHEARSED
    hooks = MeasurementHooks(wait=wait, ramp_up_s=0.5 if full and not is_long else 0.0, single=not is_long)
    samples_s = measure(call, rule, hooks=hooks).samples_s
    low, median, high = np.quantile(samples_s, [0.1, 0.5, 0.9])
    return {"s": float(median), "p10_s": float(low), "p90_s": float(high), "samples": len(samples_s)}


def free_bytes(device: str) -> int:
    """Return the memory that is free, of a CPU as much as a rehearsal may take."""
    return 1 << 30 if device == "cpu" else int(torch.cuda.mem_get_info(device)[0])
