"""What it takes to change the network that serves: actuating a subnet in place, beside extracting and loading one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from slotool.elastic.supernets.layers import LAYERS
from slotool.elastic.supernets.supernet import Supernet
from slotool.graphs.torch_module import GraphModule
from slotool.timing.turns import in_turns

REPEATS = 200


@dataclass(frozen=True)
class Actuation:
    """Median seconds. ``forward_s``: one call of one example at the largest point.

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


def switching_s(first: Callable[[], object], second: Callable[[], object], repeats: int) -> float:
    """Seconds that a call costs more where both take turns than where each follows itself."""
    orders = ((first, second) * 2, (first,) * 4, (second,) * 4)
    turns, one, other = interleaved_s(*(lambda o=order: [call() for call in o] for order in orders), repeats=repeats)
    return (turns - (one + other) / 2) / 4


def loading_s(module: GraphModule, file: Path, repeats: int) -> float:
    """Median seconds of reading ``module``'s weights from ``file``, where they are written first."""
    save_file(module.state_dict(), str(file))

    def load() -> None:
        fresh = GraphModule(module.graph, device="meta", layers=LAYERS)
        fresh.load_state_dict(load_file(str(file)), assign=True)

    return median_s(load, repeats)


def interleaved_s(*calls: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Median seconds of each call, measured in turns."""
    medians_s: list[float] = in_turns(calls, lambda block: [[()] * len(block)] * len(calls), repeats).medians_s.tolist()
    return medians_s


def median_s(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds of one call."""
    return interleaved_s(call, repeats=repeats)[0]


def run_once(module: GraphModule, x: np.ndarray) -> np.ndarray:
    """The module's answer to ``x``, float32 as its input."""
    with torch.inference_mode():
        return np.asarray(module(torch.from_numpy(x)).numpy())
