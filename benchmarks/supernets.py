"""Supernets: what actuating a subnet costs beside extracting one, and what many subnets weigh beside separate networks.

Peers: the same subnet extracted as an ordinary module (forward), extracting it and loading it from a file (actuation),
hand-sized ResNets and extracted subnets (memory). Weights are random: neither speed nor memory asks what they are.
"""

from __future__ import annotations

import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reproduction import actuation
from slotool.elastic.supernets.layers import LAYERS
from slotool.elastic.supernets.networks import patch_transformer, resnet
from slotool.elastic.supernets.plan import SubnetNorm, signatures
from slotool.elastic.supernets.space import Space, Subnet, wrap
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.graphs import OperatorGraph
from slotool.graphs.torch_module import GraphModule

REPEATS = actuation.REPEATS
# Alike in FLOPs, and those nearer in accuracy to what a trained one's subnets reach.
FOURS = ((18, 34, 50, 101), (34, 50, 101, 152))
# Of calls of a tenth of a second, of which the caches are no noticeable part.
FEW = 6
# Inputs over which statistics are taken; their values do not matter here.
CALIBRATED = 4
# (blocks per stage, bottleneck) of the hand-sized ResNets, and their GFLOP (He et al. 2016, Table 1).
RESNETS = {18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True), 101: ((3, 4, 23, 3), True)}
RESNETS |= {152: ((3, 8, 36, 3), True)}
GFLOP = {18: 3.6, 34: 7.2, 50: 7.6, 101: 15.2, 152: 22.6}


def main() -> None:
    torch.set_num_threads(1)
    report: dict[str, Any] = {"benchmark": "supernets", "memory": _memory()}
    small = {
        "convolutional": wrap(
            resnet((1, 28, 28), 10, channels=(32, 64), blocks=(2, 3), ratio=0.5, stem=16, stem_kernel=5, stem_stride=4),
            width=(0.5, 0.75, 1.0),
        ),
        "transformer": wrap(patch_transformer((1, 28, 28), 10, patch=4, width=64, layers=4, heads=4, hidden=128)),
    }
    report["speed"] = {name: _speed(name, space) for name, space in small.items()}
    report["speed"]["OFA-ResNet-50"] = _speed("OFA-ResNet-50", ofa_space(), drawn=2, batches=(1,), repeats=FEW)
    print(json.dumps(report))


def _memory() -> dict[str, Any]:
    """A supernet of OFA-ResNet-50's size: weights, statistics of hundreds of subnets, and what else holds its range."""
    space = ofa_space()
    subnets = _grid(space)
    norm = SubnetNorm()
    for subnet in subnets:
        _fill(norm, space.narrowed(subnet))
    weights = 4 * (space.graph.weights - _statistics(space.graph))
    largest, held = 4 * space.graph.weights, weights + norm.bytes
    hand = {depth: 4 * _resnet_weights(*shape) for depth, shape in RESNETS.items()}
    fours = {
        f"ResNet-{', '.join(map(str, four))} ({GFLOP[four[0]]} to {GFLOP[four[-1]]} GFLOP)": four for four in FOURS
    }
    order = sorted(subnets, key=space.flops)
    extracted = {
        f"{n} subnets extracted": sum(
            4 * space.narrowed(order[i]).weights for i in np.linspace(0, len(order) - 1, n).astype(int)
        )
        for n in (4, 6)
    }
    rivals = {
        "its largest subnet": largest,
        **{t: sum(hand[d] for d in four) for t, four in fours.items()},
        **extracted,
    }
    flops = [space.flops(order[0]), space.flops(order[-1])]
    span = f"{flops[0] / 1e9:.2f} to {flops[1] / 1e9:.2f} GFLOP"
    print(f"OFA-ResNet-50's size: {len(subnets)} of {space.size:,} subnets, {span}")
    rows = f"statistics {norm.bytes / 1e6:.1f} MB ({norm.rows:,} rows)"
    print(f"weights {weights / 1e6:.1f} MB + {rows} = {held / 1e6:.1f} MB")
    for name, size in rivals.items():
        print(f"  {name:42} {size / 1e6:8.1f} MB, supernet ÷ it {held / size:.3f}, it ÷ supernet {size / held:.2f}")
    return {"subnets": len(subnets), "weight_bytes": weights, "statistics_bytes": norm.bytes, "rivals_bytes": rivals}


def _speed(
    name: str, space: Space, *, drawn: int = 6, batches: tuple[int, ...] = (1, 4, 16), repeats: int = REPEATS
) -> Any:
    """Forward at each of some subnets beside the extracted one, and switching between them beside not switching."""
    module, norm = GraphModule(space.graph, layers=LAYERS), SubnetNorm()
    rng = np.random.default_rng(0)
    subnets = [space.smallest, space.largest, *(space.draw(rng) for _ in range(drawn))]
    x = rng.random((max(batches), *space.graph.input_shape), dtype=np.float32)
    measure(space, module, norm, subnets, x[:CALIBRATED])
    model = Supernet(name, space, module, norm, subnets)
    ratios: dict[int, list[float]] = {batch: [] for batch in batches}
    for point, subnet in model.subnets.items():
        alone, told = model.extract(subnet), []
        for batch in batches:
            some = x[:batch]
            ours, theirs = actuation.interleaved_s(
                lambda p=point, s=some: model.forward(s, p),
                lambda a=alone, s=some: actuation.run_once(a, s),
                repeats=repeats,
            )
            ratios[batch].append(ours / theirs)
            told.append(f"batch {batch}: {ours * 1e6:,.0f} µs ÷ {theirs * 1e6:,.0f} = {ours / theirs:.2f}")
        print(f"{name} {point}, forward ÷ extracted: {'; '.join(told)}")
    print(
        f"{name}: weights {model.weight_bytes:,} bytes, statistics of {len(model.points)} points {norm.bytes:,} bytes"
    )
    return {"forward_ratios": ratios, "actuation_s": _actuation(name, model, x[:1], repeats)}


def _actuation(name: str, model: Supernet, one: np.ndarray, repeats: int) -> dict[str, float]:
    """Seconds that a forward costs more after one at the other end than after one at its own, mean of both ends.

    Beside it the same of two extracted subnets that are both loaded: that is what the processor's caches take to
    follow, whatever the mechanism. And what is done instead where there are no supernets: extracting, loading.
    """
    first, last = model.points[0], model.points[-1]
    small, large = (model.extract(model.subnets[point]) for point in (first, last))
    figures = {"look-up": actuation.median_s(lambda: model._plans[last])}
    if repeats > FEW:
        figures |= {
            "switching beyond forward": actuation.switching_s(
                lambda: model.forward(one, first), lambda: model.forward(one, last), repeats
            ),
            "switching of two extracted": actuation.switching_s(
                lambda: actuation.run_once(small, one), lambda: actuation.run_once(large, one), repeats
            ),
        }
    figures |= _extract_and_load(model, model.subnets[last], min(repeats, 10))
    print(f"{name}: {', '.join(f'{key} {value * 1e6:,.1f} µs' for key, value in figures.items())}")
    return figures


def _extract_and_load(model: Supernet, subnet: Subnet, repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        loading_s = actuation.loading_s(model.extract(subnet), Path(folder) / "subnet.safetensors", repeats)
        return {"extracting": actuation.median_s(lambda: model.extract(subnet), repeats), "loading": loading_s}


def ofa_space() -> Space:
    """Once-for-all's ResNet-50 (Cai et al. 2020): depths 2 to 4 (stage three: 4 to 6), inner share 0.35, width 1."""
    sizes: dict[str, Any] = {"channels": (256, 512, 1024, 2048), "blocks": (4, 4, 6, 4), "ratio": 0.35}
    graph = resnet((3, 224, 224), 1000, **sizes, stem=64, stem_kernel=7, stem_stride=2, pooled=True)
    return wrap(graph, drop=2, expand=(0.2 / 0.35, 0.25 / 0.35, 1.0), width=(0.65, 0.8, 1.0))


def _grid(space: Space) -> list[Subnet]:
    """All choices of the last two stages, below a few of what is before them and of the width: they agree for long."""
    early, late, widths = space.dimensions[:4], space.dimensions[4:8], space.dimensions[8].choices
    before = [tuple(dimension.choices[i] for dimension in early) for i in range(3)]
    beginnings = [(b, w) for w in widths[:-1] for b in before] + [(before[-1], widths[-1])]
    return [(*b, *a, w) for b, w in beginnings for a in product(*(dimension.choices for dimension in late))]


def _fill(norm: SubnetNorm, graph: OperatorGraph) -> None:
    told = signatures(graph)
    for operator in graph.operators:
        if operator.op == "BatchNormalization" and not norm.known(operator.name, told[operator.name]):
            channels = operator.shape[0]
            norm.add(operator.name, told[operator.name], torch.zeros(channels), torch.ones(channels))


def _statistics(graph: OperatorGraph) -> int:
    return sum(2 * operator.shape[0] for operator in graph.operators if operator.op == "BatchNormalization")


def _resnet_weights(blocks: tuple[int, ...], bottleneck: bool) -> int:
    """Weights and kept statistics of an ImageNet ResNet, counted layer by layer."""

    def convolution(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel**2 + 4 * outputs

    total, inputs = convolution(3, 64, 7), 64
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            if bottleneck:
                total += convolution(inputs, inner, 1) + convolution(inner, inner, 3) + convolution(inner, outer, 1)
            else:
                total += convolution(inputs, inner, 3) + convolution(inner, outer, 3)
            total += convolution(inputs, outer, 1) if not block and inputs != outer else 0
            inputs = outer
    return total + inputs * 1000 + 1000
