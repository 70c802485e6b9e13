"""Random networks to learn latency from (inference-latency-prediction, §3.2): MLPs and CNNs, all unique.

Depth counts what the paper's "depth from 3 to 10" leaves open: the hidden layers whose size is drawn. The InputLayer,
the pooling of a CNN and the closing Dense of ten classes are not counted. The paper's CNNs are plain; other
blocks, pooling and strides are there to be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from slotool.errors import InputError
from slotool.graphs.blocks import BLOCKS
from slotool.graphs.drawing import NetworkLimits, RandomNetworks
from slotool.graphs.graph import GraphBuilder, OperatorGraph

CLASSES = 10
GREATEST_EXPONENT = 30


# How a CNN's layer may halve the image.
DOWNSAMPLING = ("none", "pool", "stride")


class Layer(NamedTuple):
    """One hidden layer as drawn: 2^``exponent`` units or channels, and, in a CNN, its block and downsampling."""

    exponent: int
    block: str = "plain"
    downsampling: str = DOWNSAMPLING[0]

    @property
    def size(self) -> int:
        return 1 << self.exponent


@dataclass(frozen=True)
class SearchSpace:
    """What to draw from: ``depth`` hidden layers, each of 2^e units (MLP) or channels (CNN), e in ``exponents``.

    Both ranges include their ends. ``input_shape`` is (features,) or (channels, height, width). For CNNs each layer is
    one of ``blocks`` and ``downsampling``, and images are square of one of ``resolutions``, or as ``input_shape``
    says where there are none. Raises ``InputError`` for an empty range, sizes below 1 or unknown names.
    """

    depth: tuple[int, int]
    exponents: tuple[int, int]
    input_shape: tuple[int, ...]
    blocks: tuple[str, ...] = ("plain",)
    downsampling: tuple[str, ...] = DOWNSAMPLING[:1]
    resolutions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.depth[0] <= self.depth[1]:
            raise InputError(f"depth {self.depth[0]}:{self.depth[1]} is no range of at least 1 layer")
        if not 0 <= self.exponents[0] <= self.exponents[1] <= GREATEST_EXPONENT:
            sizes = f"2^{self.exponents[0]} to 2^{self.exponents[1]}"
            raise InputError(f"sizes {sizes} are no range within 2^0 to 2^{GREATEST_EXPONENT}")
        if not self.input_shape or min(self.input_shape + self.resolutions) < 1:
            raise InputError(f"input shape {self.input_shape} or a resolution has a size below 1")
        for what, names, known in (("block", self.blocks, BLOCKS), ("downsampling", self.downsampling, DOWNSAMPLING)):
            unknown = [name for name in names if name not in known]
            if unknown or len(set(names)) != len(names) or not names:
                raise InputError(f"{what} {', '.join(unknown or names)!r}: choose each once, from {', '.join(known)}")
        if len(set(self.resolutions)) != len(self.resolutions):
            raise InputError(f"resolutions {self.resolutions} name one twice")

    @property
    def depths(self) -> range:
        return range(self.depth[0], self.depth[1] + 1)

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple((self.input_shape[0], size, size) for size in self.resolutions) or (self.input_shape,)

    def size_of(self, depth: int) -> int:
        """How many different networks of this depth there are."""
        layers = (self.exponents[1] - self.exponents[0] + 1) * len(self.blocks) * len(self.downsampling)
        return len(self.input_shapes) * int(layers**depth)

    @property
    def size(self) -> int:
        """The number of unique networks."""
        return sum(map(self.size_of, self.depths))


# The paper's ranges; it leaves input sizes open, so they are ours: Fashion-MNIST's pixels and a small colour image.
MLP_SPACE = SearchSpace(depth=(3, 10), exponents=(0, 14), input_shape=(784,))
CNN_SPACE = SearchSpace(depth=(3, 10), exponents=(0, 10), input_shape=(3, 32, 32))


def mlp(input_shape: tuple[int, ...], layers: Sequence[Layer]) -> OperatorGraph:
    """Hidden ``Dense`` layers with ReLU, then a ``Dense`` of ten classes. The depth counts the hidden layers."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=list(input_shape))
    for layer in layers:
        last = builder.add("Dense", last, units=layer.size, activation="relu")
    builder.add("Dense", last, units=CLASSES)
    return builder.graph()


def cnn(input_shape: tuple[int, ...], layers: Sequence[Layer]) -> OperatorGraph:
    """Blocks, global average pooling, a ``Dense`` of ten classes. The depth counts the blocks; all ``plain``
    and without downsampling they are the paper's plain CNNs."""
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=list(input_shape))
    for layer in layers:
        # Said only where there is one, so that a plain convolution is described as plainly as ever.
        stride = {"stride": 2} if layer.downsampling == "stride" else {}
        last = BLOCKS[layer.block](builder, last, layer.size, stride)
        if layer.downsampling == "pool":
            last = builder.add("MaxPooling2D", last, kernel=2, padding="same")
    builder.add("Dense", builder.add("GlobalAveragePooling2D", last), units=CLASSES)
    return builder.graph()


Build = Callable[[tuple[int, ...], Sequence[Layer]], OperatorGraph]
FAMILIES: dict[str, tuple[SearchSpace, Build]] = {"mlp": (MLP_SPACE, mlp), "cnn": (CNN_SPACE, cnn)}
# A network as drawn: which input shape, then for each layer which exponent, block and downsampling.
Genes = bytes


class RandomGraphs(RandomNetworks):
    """``count`` different networks of a family, drawn one by one: same seed, same networks in the same order.

    The depth is drawn uniformly (among those with a network left to draw), then each layer's size uniformly in base-2
    scale, and all else uniformly. A network that would take more than ``max_memory_bytes`` at ``batch_size``, or
    ``max_flops`` for one example, is passed over.

    Raises ``InputError`` for an unknown family, and when fewer such networks exist than ``count``.
    """

    def __init__(
        self,
        family: str,
        count: int,
        seed: int = 0,
        space: SearchSpace | None = None,
        max_memory_bytes: int | None = None,
        batch_size: int = 1,
        max_flops: int | None = None,
    ):
        if family not in FAMILIES:
            raise InputError(f"no family {family!r} of random networks; there are {', '.join(FAMILIES)}")
        default, self._build = FAMILIES[family]
        self.space = space or default
        super().__init__(count, self.space.size, seed, NetworkLimits(max_memory_bytes, batch_size, max_flops))
        self._seen: set[Genes] = set()
        self._left = {depth: self.space.size_of(depth) for depth in self.space.depths}
        self._require_one(self._graph(bytes([0, *[self.space.exponents[0], 0, 0] * self.space.depth[0]])))

    def _unseen(self) -> OperatorGraph | None:
        if not self._left:
            return None
        depth = self._random.choice(tuple(self._left))
        while True:
            genes = self._drawn(depth)
            if genes not in self._seen:
                break
        self._seen.add(genes)
        self._left[depth] -= 1
        if not self._left[depth]:
            del self._left[depth]
        return self._graph(genes)

    def _drawn(self, depth: int) -> Genes:
        space = self.space
        exponents = [self._random.randint(*space.exponents) for _ in range(depth)]
        blocks = [self._one_of(len(space.blocks)) for _ in range(depth)]
        downsampling = [self._one_of(len(space.downsampling)) for _ in range(depth)]
        shape = self._one_of(len(space.input_shapes))
        return bytes([shape, *chain.from_iterable(zip(exponents, blocks, downsampling, strict=True))])

    def _one_of(self, choices: int) -> int:
        """Where there is no choice, no chance is spent: plain networks stay the same for the same seed."""
        return self._random.randrange(choices) if choices > 1 else 0

    def _graph(self, genes: Genes) -> OperatorGraph:
        space, layers = self.space, zip(genes[1::3], genes[2::3], genes[3::3], strict=True)
        return self._build(
            space.input_shapes[genes[0]],
            [Layer(exponent, space.blocks[block], space.downsampling[down]) for exponent, block, down in layers],
        )
