"""Advice on causes of noisy latencies on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from slotool.nvml import Nvml
from slotool.profiling.accelerator import mps_is_running


def gpu_advice(facts: Mapping[str, Any], usable: int) -> list[str]:
    """Return advice on GPUs that torch cannot use, and on noisy ones; ``usable``: number that torch can use."""
    if not facts["gpus"]:
        return []
    nvml = Nvml()
    advice = [*nvml.remarks]
    if not usable:
        advice.append("there is a GPU, but torch finds none it can use; install a build of torch for the driver's CUDA")
    for number, device in enumerate(nvml.devices()):
        if device.persistence is False:
            advice.append(
                f"GPU {number} is not kept ready while it is idle, so its first call takes seconds; nvidia-smi -pm 1"
            )
        slowdown = device.slowdown()
        if slowdown is not None and slowdown.throttled:
            advice.append(f"the clock of GPU {number} is held down by heat; measure when it is cool")
    if mps_is_running():
        advice.append("NVIDIA's Multi-Process Service is running: co-located models use a GPU at once, not in turns")
    return advice


def cpu_advice(facts: Mapping[str, Any]) -> list[str]:
    """Return advice on facts that make latencies noisy or models fail."""
    advice = []
    if facts["governor"] not in (None, "performance"):
        advice.append(f"the CPU governor is {facts['governor']}; 'performance' gives steadier latencies")
    if facts["cpu_quota"] is not None and facts["cpu_quota"] < facts["cores_given"]:
        advice.append(
            f"the container may use {facts['cpu_quota']:g} cores' time but sees {facts['cores_given']}; "
            "throttling will show as outliers"
        )
    if os.getloadavg()[0] > 0.5 * facts["cores_given"]:
        advice.append(f"other work is running (load {os.getloadavg()[0]:.1f}); measure on an idle machine")
    if facts["cores_given"] < 2:
        advice.append("one core only: co-located measurements share it, and a load test slows the server down")
    return advice
