"""Random networks to learn latency from (inference-latency-prediction, §3.2): MLPs and CNNs, all unique.

Depth counts what the paper's "depth from 3 to 10" leaves open: the hidden layers whose size is drawn. The InputLayer,
the pooling of a CNN and the closing Dense of ten classes are not counted. The paper's CNNs are plain; other
blocks, pooling and strides are there to be asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from slotool.errors import InputError
from slotool.graphs.blocks import BLOCKS
from slotool.graphs.graph import GraphBuilder, OperatorGraph

CLASSES = 10
GREATEST_EXPONENT = 30
# So many in a row over the memory limit, and the search for one below it ends.
MAX_SKIPPED_IN_A_ROW = 20_000


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


class RandomGraphs(Iterator[OperatorGraph]):
    """``count`` different networks of a family, drawn one by one: same seed, same networks in the same order.

    The depth is drawn uniformly (among those with a network left to draw), then each layer's size uniformly in base-2
    scale, and all else uniformly. A network that would take more than ``max_memory_bytes`` at ``batch_size`` is passed
    over, counted in ``skipped``, and another drawn in its place. Memory grows by some hundred bytes per network.

    Raises ``InputError`` for an unknown family, and when fewer such networks exist than ``count``: at once where the
    search space is too small, else when the search has found no more.
    """

    def __init__(
        self,
        family: str,
        count: int,
        seed: int = 0,
        space: SearchSpace | None = None,
        max_memory_bytes: int | None = None,
        batch_size: int = 1,
    ):
        if family not in FAMILIES:
            raise InputError(f"no family {family!r} of random networks; there are {', '.join(FAMILIES)}")
        default, self._build = FAMILIES[family]
        self.space = space or default
        if count > self.space.size:
            raise InputError(f"{count:,} networks wanted, but the search space has only {self.space.size:,}")
        self.count, self.drawn, self.skipped = count, 0, 0
        self._limit, self._batch_size = max_memory_bytes, batch_size
        self._random = random.Random(seed)
        self._seen: set[Genes] = set()
        self._left = {depth: self.space.size_of(depth) for depth in self.space.depths}
        smallest = self._graph(bytes([0, *[self.space.exponents[0], 0, 0] * self.space.depth[0]]))
        if not self._fits(smallest):
            raise InputError(
                f"the smallest network in this search space takes {smallest.memory_bytes(batch_size):,} bytes, "
                f"the memory limit is {max_memory_bytes:,}"
            )

    def __next__(self) -> OperatorGraph:
        if self.drawn == self.count:
            raise StopIteration
        for _ in range(MAX_SKIPPED_IN_A_ROW):
            if not self._left:
                break
            graph = self._graph(self._unseen())
            if self._fits(graph):
                self.drawn += 1
                return graph
            self.skipped += 1
        raise InputError(
            f"found only {self.drawn:,} of {self.count:,} networks within a memory limit of {self._limit:,} bytes; "
            f"{self.skipped:,} drawn ones take more"
        )

    def _unseen(self) -> Genes:
        """A network not drawn before."""
        depth = self._random.choice(tuple(self._left))
        while True:
            genes = self._drawn(depth)
            if genes not in self._seen:
                break
        self._seen.add(genes)
        self._left[depth] -= 1
        if not self._left[depth]:
            del self._left[depth]
        return genes

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

    def _fits(self, graph: OperatorGraph) -> bool:
        return self._limit is None or graph.memory_bytes(self._batch_size) <= self._limit
