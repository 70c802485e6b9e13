"""Networks that ``calibrate`` chooses among: random ones of every kind, attention included, of all sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph

# So many of each space, and of each kind of architecture, are drawn; more cost seconds and hardly tell more.
COUNT, ARCHITECTURES_OF_A_KIND = 40, 24
SEED = 19
MAX_MEMORY_BYTES = 10**9


def calibration_networks() -> list[OperatorGraph]:
    """MLPs, plain CNNs, CNNs of all blocks on images of 32 to 224 pixels, and every kind of architecture that people
    use, from residual networks to language models; the same in every version that draws the same."""
    from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
    from slotool.graphs.blocks import BLOCKS
    from slotool.graphs.drawing import Limits
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
    drawn = [graph for kind, space in spaces for graph in RandomGraphs(kind, COUNT, SEED, space, MAX_MEMORY_BYTES, 1)]
    limits = Limits(memory_bytes=MAX_MEMORY_BYTES)
    for kind, described in ARCHITECTURES.items():
        count = min(ARCHITECTURES_OF_A_KIND, described.size)
        drawn += RandomArchitectures([kind], count, SEED, limits)
    return drawn
