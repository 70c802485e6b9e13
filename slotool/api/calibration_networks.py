"""Networks that ``calibrate`` chooses among: random ones of every kind, of sizes that are soon measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph

# So many of each space are drawn; more candidates cost seconds and hardly tell more.
COUNT = 40
SEED = 19
MAX_MEMORY_BYTES = 10**9


def calibration_networks() -> list[OperatorGraph]:
    """MLPs, plain CNNs, and CNNs of all blocks on images of 32 to 224 pixels; the same in every version that draws the
    same."""
    from slotool.graphs.blocks import BLOCKS
    from slotool.graphs.generators import DOWNSAMPLING, RandomGraphs, SearchSpace

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
    return [graph for kind, space in spaces for graph in RandomGraphs(kind, COUNT, SEED, space, MAX_MEMORY_BYTES, 1)]
