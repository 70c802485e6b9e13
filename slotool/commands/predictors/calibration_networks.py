"""Networks that ``calibrate`` chooses among: random ones of every kind, of sizes that are soon measured; and which of
them it measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotool.commands.predictors.chosen_predictor import KERAS

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.predictors.base import Predictor

# So many of each space are drawn; more candidates cost seconds and hardly tell more.
COUNT = 40
COUNT_OF_ARCHITECTURE = 16
SEED = 19
MAX_MEMORY_BYTES = 10**9
MAX_FLOPS = 4 * 10**9
COUNT_OF_SMALL = 6
# Architectures of fewer FLOPs are small: calls are most of their time, which larger ones tell little of.
SMALL_FLOPS = 30 * 10**6
# How much of the labels a part gets; any other kind 1. Of random CNNs there are eight sorts of blocks.
SMALL_PART, GROUPS_PART = "small", "groups"
WEIGHTS = {"mlp": 2, "cnn": 6, SMALL_PART: 3}


def calibration_networks(backend: str) -> list[OperatorGraph]:
    """MLPs, plain CNNs, CNNs of all blocks on images of 32 to 224 pixels, and all architectures, attention and small
    ones among them, and as a backend's own library writes them; the same in every version that draws the same."""
    from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
    from slotool.graphs.architectures.convolutional import with_groups
    from slotool.graphs.architectures.drawing import SMALL
    from slotool.graphs.generators import BLOCKS, DOWNSAMPLING, NetworkLimits, RandomGraphs, SearchSpace

    spaces = [
        ("mlp", SearchSpace(depth=(3, 10), exponents=(5, 12), input_shape=(784,))),
        ("cnn", SearchSpace(depth=(3, 10), exponents=(3, 9), input_shape=(3, 32, 32))),
        *(
            ("cnn", SearchSpace(
                depth=(4, 16), exponents=(4, 9), input_shape=(3, 64, 64), blocks=(block,), downsampling=DOWNSAMPLING,
                resolutions=(64, 128, 224),
            ))
            for block in BLOCKS if block != "plain"
        ),
        ("cnn", SearchSpace(
            depth=(4, 24), exponents=(4, 9), input_shape=(3, 64, 64), blocks=tuple(BLOCKS), downsampling=DOWNSAMPLING,
            resolutions=(64, 128, 224),
        )),
    ]  # fmt: skip
    plain = [graph for kind, space in spaces for graph in RandomGraphs(kind, COUNT, SEED, space, MAX_MEMORY_BYTES, 1)]
    limits = NetworkLimits(MAX_MEMORY_BYTES, 1, MAX_FLOPS)
    architectures = [
        graph for kind in ARCHITECTURES for graph in RandomArchitectures([kind], COUNT_OF_ARCHITECTURE, SEED, limits)
    ]
    small = [graph for kind in SMALL for graph in RandomArchitectures([kind], COUNT_OF_SMALL, SEED, limits, SMALL)]
    written = [with_groups(graph) for graph in architectures if graph.kind == "convnext" and backend == KERAS]
    return plain + architectures + small + written


def spread_over_kinds(
    predictor: Predictor[OperatorGraph], graphs: Sequence[OperatorGraph], samples: int, seed: int
) -> list[OperatorGraph]:
    """So many of the graphs, those that tell most for their time first, no part having more than its share while others
    have networks left."""
    from slotool.predictors.transfer.sampling import propose

    samples = min(samples, len(graphs))
    order = propose(predictor, graphs, min(len(graphs), 6 * samples), seed, by_time=True)
    parts = list(map(part_of, graphs))
    whole = sum(WEIGHTS.get(part, 1) for part in set(parts))
    left = Counter({part: math.ceil(samples * WEIGHTS.get(part, 1) / whole) for part in set(parts)})
    chosen: list[int] = []
    passed: list[int] = []
    seen = set(order)
    for row in [*order, *(row for row in range(len(graphs)) if row not in seen)]:
        (chosen if left[parts[row]] > 0 else passed).append(row)
        left[parts[row]] -= 1
    return [graphs[row] for row in [*chosen, *passed][:samples]]


def part_of(graph: OperatorGraph) -> str:
    """What has its own share of the labels: a kind, small networks of all architectures, and those with depthwise
    convolutions written in groups."""
    from slotool.graphs.architectures import ARCHITECTURES

    if graph.kind == "convnext" and any(operator.attributes.get("groups", 1) > 1 for operator in graph.operators):
        return GROUPS_PART
    return SMALL_PART if graph.kind in ARCHITECTURES and graph.flops < SMALL_FLOPS else graph.kind
