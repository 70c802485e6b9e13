"""Going from one subnet of a supernet to another on the device, beside loading the other's weights from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu_pieces.piece import Figures, Piece
from benchmarks.gpu_pieces.solo import SEED
from benchmarks.reproduction import actuation
from slotool.elastic.supernets.layers import LAYERS
from slotool.elastic.supernets.networks import resnet
from slotool.elastic.supernets.plan import SubnetNorm
from slotool.elastic.supernets.space import Space, Subnet, wrap
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.graphs.torch_module import GraphModule

# A host waits for a device in wall-clock time; the CPU's own figures are of this thread's CPU time.
CALIBRATED, DRAWN, MIN_LOADINGS = 4, 2, 3
REPEATS, REHEARSED = 200, 3


def run(piece: Piece) -> None:
    piece.step("small residual network", lambda: measured(piece, small_space()))
    if piece.full:
        piece.step("size of OFA-ResNet-50", lambda: measured(piece, large_space()))


def small_space() -> Space:
    """For images of 28 × 28, some thousand weights."""
    graph = resnet((1, 28, 28), 10, channels=(32, 64), blocks=(2, 3), ratio=0.5, stem=16, stem_kernel=5, stem_stride=4)
    return wrap(graph, width=(0.5, 0.75, 1.0))


def large_space() -> Space:
    """Once-for-all's ResNet-50 (Cai et al. 2020), as the benchmark on the CPU has it."""
    from benchmarks.supernets import ofa_space

    return ofa_space()


def measured(piece: Piece, space: Space) -> Figures:
    """Median seconds of a forward pass, of a switch, and of what is done where there is no supernet."""
    model, one = of_random_weights(space)
    there, repeats = model.on(piece.device), piece.sized(REPEATS, REHEARSED)
    first, last = there.points[0], there.points[-1]
    alone = [model.extract(model.subnets[point]).to(piece.device) for point in (first, last)]
    small, large = (lambda module=module: extracted_answer(module, one, piece.device) for module in alone)

    def forward(point: Any) -> Any:
        return lambda: there.forward(one, point)

    return {
        "subnets": len(there.points),
        "weight_bytes": model.weight_bytes,
        "forward_s": actuation.median_s(forward(last), repeats),
        "extracted_forward_s": actuation.median_s(large, repeats),
        "switch_s": actuation.switching_s(forward(first), forward(last), repeats),
        "extracted_switch_s": actuation.switching_s(small, large, repeats),
        "load_s": loading_s(alone[-1], piece.folder / "subnet.safetensors", piece.device, repeats // 10),
    }


def of_random_weights(space: Space) -> tuple[Supernet, np.ndarray]:
    """With the statistics of its smallest and largest subnet and some between; and one example."""
    module, norm, rng = GraphModule(space.graph, layers=LAYERS), SubnetNorm(), np.random.default_rng(SEED)
    subnets: Sequence[Subnet] = [space.smallest, space.largest, *(space.draw(rng) for _ in range(DRAWN))]
    x = rng.random((CALIBRATED, *space.graph.input_shape), dtype=np.float32)
    measure(space, module, norm, subnets, x)
    return Supernet("supernet", space, module, norm, subnets), x[:1]


def extracted_answer(module: GraphModule, x: np.ndarray, device: str) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(module(torch.from_numpy(x).to(device)).cpu())


def loading_s(module: GraphModule, file: Path, device: str, repeats: int) -> float:
    """Median seconds of reading weights from ``file``, which the system has in memory, to the device."""
    save_file(module.state_dict(), str(file))

    def load() -> None:
        fresh = GraphModule(module.graph, device="meta", layers=LAYERS)
        fresh.load_state_dict(load_file(str(file), device=device), assign=True)
        if device != "cpu":
            torch.cuda.synchronize()

    return actuation.median_s(load, max(MIN_LOADINGS, repeats))
