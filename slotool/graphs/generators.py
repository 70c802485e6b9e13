"""Random networks to learn latency from (inference-latency-prediction, §3.2): MLPs and plain CNNs, no two alike.

Depth counts what the paper's "depth from 3 to 10" leaves open: the hidden layers whose size is drawn. The InputLayer,
the pooling of a CNN and the closing Dense of ten classes are not counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slotool.errors import InputError
from slotool.graphs.graph import GraphBuilder, OperatorGraph

CLASSES = 10
GREATEST_EXPONENT = 30
# So many in a row over the memory limit, and the search for one below it ends.
MOST_SKIPPED_IN_A_ROW = 20_000


@dataclass(frozen=True)
class Bounds:
    """What to draw from: ``depth`` hidden layers, each of 2^e units (MLP) or channels (CNN), e in ``exponents``.

    Both ranges include their ends. ``input_shape`` is (features,) or (channels, height, width).
    Raises ``InputError`` for an empty range or sizes below 1.
    """

    depth: tuple[int, int]
    exponents: tuple[int, int]
    input_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.depth[0] <= self.depth[1]:
            raise InputError(f"depth {self.depth[0]}:{self.depth[1]} is no range of at least 1 layer")
        if not 0 <= self.exponents[0] <= self.exponents[1] <= GREATEST_EXPONENT:
            sizes = f"2^{self.exponents[0]} to 2^{self.exponents[1]}"
            raise InputError(f"sizes {sizes} are no range within 2^0 to 2^{GREATEST_EXPONENT}")
        if not self.input_shape or min(self.input_shape) < 1:
            raise InputError(f"input shape {self.input_shape} has a size below 1")

    @property
    def depths(self) -> range:
        return range(self.depth[0], self.depth[1] + 1)

    def distinct_of(self, depth: int) -> int:
        """How many different networks of this depth there are."""
        return (self.exponents[1] - self.exponents[0] + 1) ** depth

    @property
    def distinct(self) -> int:
        """How many different networks there are within these bounds."""
        return sum(map(self.distinct_of, self.depths))


# The paper's ranges; it leaves input sizes open, so they are ours: Fashion-MNIST's pixels and a small colour image.
MLP_BOUNDS = Bounds(depth=(3, 10), exponents=(0, 14), input_shape=(784,))
CNN_BOUNDS = Bounds(depth=(3, 10), exponents=(0, 10), input_shape=(3, 32, 32))


def mlp(input_shape: tuple[int, ...], units: tuple[int, ...]) -> OperatorGraph:
    """Hidden ``Dense`` layers with ReLU, then a ``Dense`` of ten classes. The depth counts the hidden layers."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=list(input_shape))
    for size in units:
        last = builder.add("Dense", last, units=size, activation="relu")
    builder.add("Dense", last, units=CLASSES)
    return builder.graph()


def plain_cnn(input_shape: tuple[int, ...], channels: tuple[int, ...]) -> OperatorGraph:
    """3×3 'same' convolutions with ReLU, global average pooling, a ``Dense`` of ten classes. The depth counts the
    convolutions."""
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=list(input_shape))
    for size in channels:
        last = builder.add("Conv2D", last, filters=size, kernel=3, padding="same", activation="relu")
    builder.add("Dense", builder.add("GlobalAveragePooling2D", last), units=CLASSES)
    return builder.graph()


Build = Callable[[tuple[int, ...], tuple[int, ...]], OperatorGraph]
FAMILIES: dict[str, tuple[Bounds, Build]] = {"mlp": (MLP_BOUNDS, mlp), "cnn": (CNN_BOUNDS, plain_cnn)}


class RandomGraphs(Iterator[OperatorGraph]):
    """``count`` different networks of a family, drawn one by one: same seed, same networks in the same order.

    The depth is drawn uniformly (among those with a network left to draw), then each layer's size uniformly in base-2
    scale. A network that would take more than ``max_memory_bytes`` at batch size 1 is passed over, counted in
    ``skipped``, and another drawn in its place. Memory grows by some hundred bytes per network.

    Raises ``InputError`` for an unknown family, and when fewer such networks exist than asked for: at once where the
    bounds say so, else when the search has found no more.
    """

    def __init__(
        self,
        family: str,
        count: int,
        seed: int = 0,
        bounds: Bounds | None = None,
        max_memory_bytes: int | None = None,
    ):
        if family not in FAMILIES:
            raise InputError(f"no family {family!r} of random networks; there are {', '.join(FAMILIES)}")
        default, self._build = FAMILIES[family]
        self.bounds = bounds or default
        if count > self.bounds.distinct:
            raise InputError(
                f"{count:,} networks asked for, but only {self.bounds.distinct:,} different ones lie within the bounds"
            )
        self.count, self.drawn, self.skipped = count, 0, 0
        self._limit = max_memory_bytes
        self._random = random.Random(seed)
        self._seen: set[bytes] = set()
        self._left = {depth: self.bounds.distinct_of(depth) for depth in self.bounds.depths}
        smallest = self._graph(bytes([self.bounds.exponents[0]] * self.bounds.depth[0]))
        if not self._fits(smallest):
            raise InputError(
                f"the smallest network within these bounds takes {smallest.memory_bytes():,} bytes, "
                f"the memory limit is {max_memory_bytes:,}"
            )

    def __next__(self) -> OperatorGraph:
        if self.drawn == self.count:
            raise StopIteration
        for _ in range(MOST_SKIPPED_IN_A_ROW):
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

    def _unseen(self) -> bytes:
        """The exponents of a network not drawn before."""
        depth = self._random.choice(tuple(self._left))
        while True:
            exponents = bytes(self._random.randint(*self.bounds.exponents) for _ in range(depth))
            if exponents not in self._seen:
                break
        self._seen.add(exponents)
        self._left[depth] -= 1
        if not self._left[depth]:
            del self._left[depth]
        return exponents

    def _graph(self, exponents: bytes) -> OperatorGraph:
        return self._build(self.bounds.input_shape, tuple(2**e for e in exponents))

    def _fits(self, graph: OperatorGraph) -> bool:
        return self._limit is None or graph.memory_bytes() <= self._limit
